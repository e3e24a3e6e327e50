"""What `make test` runs in several processes: each test once, and a failure in any of them fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
INI = "[pytest]\nmarkers =\n    beside\n    left_out\ntimeout = 60\n"
FILE = """
import os
from pathlib import Path
import pytest

def note(name):
    with open("ran", "a") as file:
        print(name, os.getpid(), file=file)

@pytest.mark.beside
def test_computes():
    note("{name} computes")

def test_watches():
    note("{name} watches")
    assert "{name}" != "c"

@pytest.mark.left_out
def test_left_out():
    note("{name} left out")

@pytest.mark.skip
def test_skipped():
    note("{name} skipped")
"""


def test_each_test_runs_once_and_all_are_counted(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(INI)
    files = [f"test_{name}.py" for name in "abcd"]
    for name, file in zip("abcd", files, strict=True):
        (tmp_path / file).write_text(FILE.format(name=name))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.deal", "-m", "not left_out", "--lean", *files[1:3], "--", *files]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    ran = [line.rsplit(" ", 1) for line in (tmp_path / "ran").read_text().splitlines()]
    wanted = [f"{name} {does}" for name in "abcd" for does in ("computes", "watches")]
    assert sorted(name for name, _ in ran) == wanted
    watching = [(name[0], pid) for name, pid in ran if name.endswith("watches")]
    assert [name for name, _ in watching] == [*"bcad"] and len({pid for _, pid in watching}) == 2
    *_, failed, closing = done.stdout.splitlines()
    assert done.returncode == 1 and failed == "FAILED test_c.py::test_watches", done.stdout + done.stderr
    assert closing.strip("= ").startswith("1 failed, 7 passed, 4 skipped in "), closing
