"""Building the compiled path, and doing without it: installing always works, and what is missing is said in words."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import setuptools

from cuda_ext import sources
from pufferlib import _native

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parent.parent
SOURCES = {
    path.name for path in (ROOT / "pufferlib/_native").iterdir() if path.suffix in {".h", ".pxd", ".pyi", ".pyx"}
}
MAKE = "import pufferlib; [pufferlib.make('ocean/squared').close() for _ in range(2)]"
IMPORT = "from pufferlib import _native; print(_native.available, _native.reason, sep=': ')"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what setup.py reads, in which nothing has been built."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("pufferlib", "ocean", "cuda_ext", "cleanrl_demo"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return tree


def run(tree: Path, *arguments: Any, **environment: str) -> str:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=tree, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["a compiler that works", "a compiler", "Cython"])
def test_builds_and_runs_without(missing: str, tree: Path, tmp_path: Path) -> None:
    environment = {}
    if missing == "Cython":
        (tmp_path / "Cython").mkdir()
        (tmp_path / "Cython/__init__.py").write_text("raise ImportError")
        environment["PYTHONPATH"] = str(tmp_path)
    else:
        compiler = "/bin/false" if missing == "a compiler that works" else str(tmp_path / "nothing")
        environment |= {"CC": compiler, "CXX": compiler}
    said = run(tree, "setup.py", "build", "--build-lib", tmp_path / "built", **environment)
    for name in ("pufferlib._native.pack", "cuda_ext._host"):
        assert missing == "Cython" or f'building extension "{name}" failed' in said
    libraries = [path.name.partition(".")[0] for path in (tmp_path / "built").rglob("*.so")]
    assert libraries == (["_host"] if missing == "Cython" else [])  # kernels are C++, and need none
    printed = run(tmp_path / "built", "-c", f"{IMPORT}\n{MAKE}" if missing == "a compiler" else IMPORT)
    assert printed.count("pufferlib uses its portable path") == (missing == "a compiler")  # said once, by make
    assert printed.startswith(
        "False: it was not built, or for another Python (No module named 'pufferlib._native.pack')"
    )


@pytest.mark.slow
def test_builds_every_source_in_place(tree: Path) -> None:
    run(tree, "setup.py", "build_ext", "--inplace", "-j2")
    kernels = sources.stems()
    symbols = b"".join(path.read_bytes() for path in (tree / "cuda_ext").glob("_host*.so"))
    assert kernels and all(f"kernel_{name}_digest".encode() in symbols for name in kernels)
    built = {path.name.partition(".")[0] for path in (tree / "pufferlib/_native").glob("*.so")}
    assert built == {Path(name).stem for name in SOURCES if name.endswith(".pyx")}
    assert not list((tree / "pufferlib").rglob("*.c"))
    modules = ", ".join(sorted(built))
    assert "_native" in run(tree, "-c", f"from pufferlib._native import {modules}; print({modules})")


@pytest.mark.slow
def test_sources_travel_in_the_sdist_and_nothing_generated_does(tree: Path, tmp_path: Path) -> None:
    (tree / "pufferlib/_native/pack.so").touch()
    run(tree, "setup.py", "sdist", "--dist-dir", tmp_path / "dist")
    (archive,) = (tmp_path / "dist").iterdir()
    with tarfile.open(archive) as file:
        names = [Path(name) for name in file.getnames()]
    assert {path.name for path in names if path.parent.name == "_native"} == {*SOURCES, "__init__.py"}
    assert not [path for path in names if path.suffix in {".c", ".so"}]


@pytest.mark.parametrize(("what", "value"), [("platform", "darwin"), ("implementation", SimpleNamespace(name="pypy"))])
def test_nothing_is_compiled_elsewhere(what: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    monkeypatch.setattr(sys, what, value)
    runpy.run_path(str(ROOT / "setup.py"))
    assert given["ext_modules"] == []


def test_wishes_are_granted_or_refused() -> None:
    assert run(ROOT, "-c", IMPORT, PUFFERLIB_NATIVE="0") == "False: PUFFERLIB_NATIVE=0 leaves it out\n"
    without = "import sys; sys.modules['pufferlib._native.pack'] = None\n"
    said = run(ROOT, "-c", without + IMPORT, PUFFERLIB_NATIVE="")
    assert said.startswith("False: it was not built, or for another Python (")
    insisting = f"try:\n    {IMPORT}\nexcept ImportError as error:\n    print(error)"
    said = run(ROOT, "-c", without + insisting, PUFFERLIB_NATIVE="1")
    assert said.startswith("PUFFERLIB_NATIVE=1, but the compiled path cannot be used: it was not built")


@pytest.mark.parametrize("error", [ImportError, ValueError, TypeError, RuntimeWarning])
def test_modules_of_different_builds_are_not_used(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cython raises the first three, but only warns where a class of the other module has grown."""

    def load(name: str) -> Any:
        if issubclass(error, Warning):
            warnings.warn("Packer size changed", error, stacklevel=2)
            return None
        raise error("Packer size changed")

    monkeypatch.delenv("PUFFERLIB_NATIVE", raising=False)
    monkeypatch.setattr(_native, "importlib", SimpleNamespace(import_module=load))
    assert _native._load().startswith("it was not built, or for another Python (Packer size changed); pip install")
