"""The worked example of a kernel of one's own, as docs/kernels.md tells it, and what is said of its faults."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_ext import sources
from pufferlib import cli

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/kernel"
QUICK_FLAGS = tuple("-O0" if flag == "-O3" else flag for flag in sources.HOST_FLAGS)  # to compile, not to run


Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A copy of the example, to be spoilt."""
    yield Path(shutil.copytree(EXAMPLE, tmp_path / "kernel", ignore=shutil.ignore_patterns("__pycache__")))
    sys.modules.pop("catch", None)


def check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run ``puffer check`` in a folder, in this process, and return its exit status."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return cli.main(["check", "catch:KERNEL", "--backend", "cuda", "--device", "host"])


def spoil(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def require_played(folder: Path, device: str) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "catch.py", "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "bit for bit" in done.stdout and "of which 100% were caught" in done.stdout


@pytest.mark.gpu
def test_on_a_gpu_the_example_plays_what_it_is_to_play(folder: Path, device: str) -> None:
    require_played(folder, device)


@pytest.mark.long
@pytest.mark.slow
def test_the_example_passes_its_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "HOST_FLAGS", QUICK_FLAGS)
    assert check(folder, monkeypatch) == 0


@pytest.mark.slow
@pytest.mark.long
def test_the_example_plays_what_it_is_to_play(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_played(folder, "host")
    assert len(list((folder / "cache/pufferlib/kernels").glob("kernel_catch-*.so"))) == 1
    assert check(folder, monkeypatch) == 0
    assert len(list((folder / "cache/pufferlib/kernels").iterdir())) == 1  # compiled once, and nothing left behind


@pytest.mark.slow
def test_a_field_that_the_schema_lacks_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    spoil(folder / "catch.py", ', Field("basket", "int32", per="env")', ",")
    assert check(folder, monkeypatch) == 1
    said = capsys.readouterr().err
    assert 'catch.cuh uses env.basket, which the schema of "catch" lacks; add Field("basket", …)' in said


@pytest.mark.slow
def test_an_attribute_that_the_reference_lacks_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    spoil(
        folder / "catch.py", 'Parameter("height", "int32")', 'Parameter("height", "int32"), Parameter("depth", "int32")'
    )
    assert check(folder, monkeypatch) == 1
    said = capsys.readouterr().err
    assert 'the schema of "catch" has depth, and its reference catch:Catch has no attribute of that name' in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("? 1.0f : -1.0f", "? 1.0f : -2.0f", "rewards is -2.0, and the reference has -1.0"),
        pytest.param(
            "words.w[1], env.width", "words.w[0], env.width", "step 0 (next_step), environment",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "if (env.t[e] < env.height) return;", "if (env.t[e] <= env.height) return;",
            "rewards is 0.0, and the reference has", marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_the_first_difference_is_named(
    old: str, new: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    spoil(folder / "catch.cuh", old, new)
    monkeypatch.setattr(sources, "HOST_FLAGS", QUICK_FLAGS)
    assert check(folder, monkeypatch) == 1
    said = capsys.readouterr().out
    assert "catch: the kernel differs after" in said and message in said


def test_a_kernel_without_its_file_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    (folder / "catch.cuh").unlink()
    assert check(folder, monkeypatch) == 1
    said = capsys.readouterr().err
    assert "there is no file" in said and "catch.cuh" in said
