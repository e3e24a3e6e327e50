"""Files that are whole at any time: what a reader sees, and what a writer leaves, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pufferlib.util.files import written_whole

pytestmark = pytest.mark.beside

KILLED = """
import os, signal, sys
from pufferlib.util.files import written_whole
with written_whole(sys.argv[1]) as part:
    part.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_is_the_old_one_until_it_is_the_new_one(tmp_path):
    target = tmp_path / "a.pt"
    for content in ("old", "new"):
        with written_whole(target) as part:
            part.write_text(content)
            assert not target.exists() or target.read_text() == "old"
        assert target.read_text() == content
    with pytest.raises(ValueError, match="no further"), written_whole(target) as part:
        part.write_text("half")
        raise ValueError("no further")
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_what_a_killed_writer_left_goes_with_the_next_write_of_the_same_file(tmp_path):
    target = tmp_path / "a[1].pt"
    with written_whole(target) as part:
        part.write_text("old")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(target)])
    assert killed.returncode == -signal.SIGKILL
    (left,) = (path.name for path in tmp_path.iterdir() if path != target)
    living = f".{target.name}.{os.getppid()}.part"
    of_others = [left.replace("a[1]", "a1"), ".a[1].pt.part", f"{left}.txt", living]
    for name in of_others:
        (tmp_path / name).write_text("")
    with written_whole(target) as part:
        part.write_text("new")
    assert target.read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {target.name, *of_others}


def test_a_folder_that_is_not_there_is_the_writers_to_answer(tmp_path):
    with pytest.raises(FileNotFoundError), written_whole(tmp_path / "none" / "a.pt") as part:
        part.write_text("")
    with written_whole(Path(os.path.relpath(tmp_path / "a.pt"))) as part:
        part.write_text("")
    assert (tmp_path / "a.pt").exists()
