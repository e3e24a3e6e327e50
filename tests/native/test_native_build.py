"""Building the compiled path, and doing without it: installing always works, and what is missing is said in words."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import setuptools
from compilers import quick_compilers

from cuda_ext import sources
from pufferlib import _native

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
MAKE = "import pufferlib; [pufferlib.make('ocean/squared').close() for _ in range(2)]"
NOT_BUILT = "False: it was not built, or for another Python (No module named 'pufferlib._native.pack')"
LEFT_OUT = ("agents.pyx", "fast_path.pyx", "ring.pyx", "staging.pyx", "step_loop.pyx")  # where two others are enough
# In place of these two: translated and compiled in a fraction of the time. The checkout has been built of all sources.
MODULE = """
cdef extern from "numpy/arrayobject.h":
    int _import_array() except -1

_import_array()
"""
EXT_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")  # of this Python's extension modules
IMPORT = "from pufferlib import _native; print(_native.available, _native.reason, sep=': ')"


def copied(folder: Path) -> Path:
    """Copy what setup.py reads, but nothing that has been built."""
    tree = folder / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("pufferlib", "ocean", "cuda_ext", "cleanrl_demo"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return tree


def written(tree: Path) -> set[str]:
    """Return the names of the files of the compiled path that somebody wrote."""
    files = (tree / "pufferlib/_native").iterdir()
    return {path.name for path in files if path.suffix in {".h", ".pxd", ".pyi", ".pyx"}}


def lightened(tree: Path) -> None:
    """Leave out most modules of the compiled path, shorten the others, and leave out all kernels but one."""
    folder = tree / "pufferlib/_native"
    for name in LEFT_OUT:
        (folder / name).unlink()
    for source in folder.glob("*.pyx"):
        source.write_text(MODULE)
        source.with_suffix(".pxd").write_text("")
    for stem in sources.stems()[:-1]:
        (tree / f"cuda_ext/{stem}.cuh").unlink()


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, lightened, in which nothing has been built."""
    tree = copied(tmp_path_factory.mktemp("light"))
    lightened(tree)
    return tree


@pytest.fixture(scope="module")
def built(light: Path) -> Path:
    """The same copy, built in place."""
    run(light, "setup.py", "build_ext", "--inplace", "-j2", **quick_compilers(light.parent))
    return light


def run(tree: Path, *arguments: Any, **environment: str) -> str:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=tree, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["that works", pytest.param("", marks=pytest.mark.long)])
def test_builds_and_runs_without_a_compiler(compiler: str, light: Path, tmp_path: Path) -> None:
    command = "/bin/false" if compiler else str(tmp_path / "nothing")
    said = run(light, "setup.py", "build", "--build-base", tmp_path / "build", "--build-lib", tmp_path / "lib",
               CC=command, CXX=command)  # fmt: skip
    for name in ("pufferlib._native.pack", "cuda_ext._host"):
        assert f'building extension "{name}" failed' in said
    assert libraries(tmp_path / "lib") == []
    printed = run(tmp_path / "lib", "-c", IMPORT if compiler else f"{IMPORT}\n{MAKE}")
    assert printed.count("pufferlib uses its portable path") == (not compiler)  # said once, by make
    assert printed.startswith(NOT_BUILT)


@pytest.mark.slow
@pytest.mark.long
def test_builds_and_runs_without_cython(tmp_path: Path) -> None:
    tree = copied(tmp_path)
    for stem in sources.stems()[:-1]:
        (tree / f"cuda_ext/{stem}.cuh").unlink()
    (tmp_path / "Cython").mkdir()
    (tmp_path / "Cython/__init__.py").write_text("raise ImportError")
    environment = {**quick_compilers(tmp_path), "PYTHONPATH": str(tmp_path)}
    run(tree, "setup.py", "build", "--build-lib", tmp_path / "lib", **environment)
    assert libraries(tmp_path / "lib") == ["_host"]  # kernels are C++, and need none
    assert run(tmp_path / "lib", "-c", IMPORT).startswith(NOT_BUILT)


def libraries(folder: Path) -> list[str]:
    """Return the names of the extension modules in a folder."""
    return [path.name.partition(".")[0] for path in folder.rglob("*.so")]


@pytest.mark.slow
@pytest.mark.long
def test_builds_every_source_in_place(built: Path) -> None:
    check_built(built)


@pytest.mark.skipif(not _native.available, reason="it was not built here, or is left out")
def test_every_source_is_built_in_the_checkout_with_the_flags_of_users() -> None:
    """As ``pip install --editable`` has built it, which made the environment of this test: nothing is compiled here."""
    check_built(ROOT)


def check_built(tree: Path) -> None:
    """Assert that a tree has all that builds in place there, for this Python, and that it can be imported."""
    kernels = [path.stem for path in (tree / "cuda_ext").glob("*.cuh") if path.stem in sources.stems()]
    symbols = (tree / "cuda_ext/_host.abi3.so").read_bytes()
    assert kernels and all(f"kernel_{name}_digest".encode() in symbols for name in kernels)
    built = {path.name.partition(".")[0] for path in (tree / "pufferlib/_native").glob(f"*{EXT_SUFFIX}")}
    assert built == {Path(name).stem for name in written(tree) if name.endswith(".pyx")}
    assert not list((tree / "pufferlib").rglob("*.c"))
    (oldest,) = re.findall(r'"numpy>=(.+)"', (ROOT / "pyproject.toml").read_text().partition("[project]")[2])
    pack = (tree / f"pufferlib/_native/pack{EXT_SUFFIX}").read_bytes()
    assert f"against NumPy C-API version 0x%x (NumPy {oldest}) but".encode() in pack  # NumPy's own words
    modules = ", ".join(sorted(built))
    assert "_native" in run(tree, "-c", f"from pufferlib._native import {modules}; print({modules})")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("newer", "stale"),
    [
        ("", set()),
        ("setup.py", {"pufferlib._native.infos", "pufferlib._native.pack", "cuda_ext._host"}),
        ("pufferlib/_native/pack.pyx", {"pufferlib._native.pack"}),
        ("cuda_ext/host.h", {"cuda_ext._host"}),
    ],
)
def test_an_editable_installation_compiles_only_what_is_older_than_its_sources(
    newer: str, stale: set[str], built: Path, tmp_path: Path
) -> None:
    compiled = [*(built / "pufferlib/_native").glob("*.so"), built / "cuda_ext/_host.abi3.so"]
    times = [path.stat().st_mtime_ns for path in (*compiled, built / (newer or "setup.py"))]
    latest = max(times) + 10**9
    if newer:
        os.utime(built / newer, ns=(latest, latest))
    said = run(built, "setup.py", "editable_wheel", "--dist-dir", tmp_path, CC="/bin/false", CXX="/bin/false")
    failed = {line.split('"')[1] for line in said.splitlines() if "building extension" in line}
    if newer:
        os.utime(built / newer, ns=(times[-1], times[-1]))
    assert failed == stale
    assert [path.stat().st_mtime_ns for path in compiled] == times[:-1]


@pytest.mark.slow
@pytest.mark.long
def test_sources_travel_in_the_sdist_and_nothing_generated_does(built: Path, tmp_path: Path) -> None:
    assert list((built / "pufferlib/_native").glob("*.so")) and list((built / "build").rglob("*.c"))
    run(built, "setup.py", "sdist", "--dist-dir", tmp_path / "dist")
    (archive,) = (tmp_path / "dist").iterdir()
    with tarfile.open(archive) as file:
        names = [Path(name) for name in file.getnames()]
    assert {path.name for path in names if path.parent.name == "_native"} == {
        *written(ROOT) - {*LEFT_OUT},
        "__init__.py",
    }
    assert not [path for path in names if path.suffix in {".c", ".so"}]


@pytest.mark.parametrize(("what", "value"), [("platform", "darwin"), ("implementation", SimpleNamespace(name="pypy"))])
def test_nothing_is_compiled_elsewhere(what: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: arguments.update(options))
    monkeypatch.setattr(sys, what, value)
    runpy.run_path(str(ROOT / "setup.py"))
    assert arguments["ext_modules"] == []


def test_without_cython_kernels_alone_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)  # which gets the kernels' programs
    monkeypatch.setattr(setuptools, "setup", lambda **options: arguments.update(options))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "Cython.Build", None)
    runpy.run_path(str(ROOT / "setup.py"))
    assert [extension.name for extension in arguments["ext_modules"]] == ["cuda_ext._host"]


def test_wishes_are_granted_or_refused() -> None:
    assert run(ROOT, "-c", IMPORT, PUFFERLIB_NATIVE="0") == "False: PUFFERLIB_NATIVE=0 leaves it out\n"
    without = "import sys; sys.modules['pufferlib._native.pack'] = None\n"
    said = run(ROOT, "-c", without + IMPORT, PUFFERLIB_NATIVE="")
    assert said.startswith("False: it was not built, or for another Python (")
    insisting = f"try:\n    {IMPORT}\nexcept ImportError as error:\n    print(error)"
    said = run(ROOT, "-c", without + insisting, PUFFERLIB_NATIVE="1")
    assert said.startswith("PUFFERLIB_NATIVE=1, but the compiled path cannot be used: it was not built")


def test_a_checkout_that_hides_what_is_installed_is_named(tmp_path: Path) -> None:
    """As after ``pip install .``, where Python is started in the checkout: installing again would change nothing."""
    tree, site = copied(tmp_path), tmp_path / "site"
    (site / "pufferlib").mkdir(parents=True)
    (site / "pufferlib-0.1.dist-info").mkdir()
    (site / "pufferlib-0.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: pufferlib\nVersion: 0.1\n")
    said = run(tree, "-c", IMPORT, PUFFERLIB_NATIVE="", PYTHONPATH=str(site))
    way_out = f"{tree}/pufferlib hides the pufferlib that is installed in {site}; start Python in another folder"
    assert said == f"{NOT_BUILT[:-1]}); {way_out}\n"


@pytest.mark.parametrize("error", [ImportError, ValueError, TypeError, RuntimeError, RuntimeWarning])
def test_modules_of_different_builds_are_not_used(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cython raises the first three, and NumPy the next; Cython only warns where a class of the other has grown."""

    def load(name: str) -> Any:
        if issubclass(error, Warning):
            warnings.warn("Packer size changed", error, stacklevel=2)
            return None
        raise error("Packer size changed")

    monkeypatch.delenv("PUFFERLIB_NATIVE", raising=False)
    monkeypatch.setattr(_native, "importlib", SimpleNamespace(import_module=load))
    assert _native._load().startswith("it was not built, or for another Python (Packer size changed); pip install")
