"""Make a virtual environment with pinned versions for each library that is compared.

    python -m benchmarks.venvs [NAME …]          make those that are missing, by default all

The environment ``ours@COMMIT`` has that commit of this project in place of the working tree. They lie in
benchmarks/.venvs. If one cannot be installed, the reason is stored there; naming it tries again.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "VENVS",
    "NotInstalled",
    "Venv",
    "copy_tree",
    "ignored_folder",
    "pufferlib_release",
    "python311",
    "python_of",
    "tree_digest",
]

ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / ".venvs"
TIMEOUT_S = 1200

GYMNASIUM = ("gymnasium==1.4.0", "numpy==2.4.6", "cloudpickle==3.1.2")
ATARI = ("ale-py==0.12.1", "opencv-python-headless==5.0.0.93")
GAMES = (*GYMNASIUM, *ATARI, "minigrid==3.2.0")
SIMULATORS = (  # for LunarLander, HalfCheetah and Reacher
    *("box2d==2.3.10", "mujoco==3.3.7", "imageio==2.38.1", "packaging==25.0"),
)
AGENTS = ("pettingzoo[butterfly]==1.27.0", "mpe2==1.1.1")
TORCH = ("torch==2.13.0",)  # first and alone: a CPU build may come from another index
TRAINER = ("tensorboard==2.21.0", "rich==15.0.0", "tyro==1.0.17")  # other packages that cleanrl_demo needs
OLD_GAMES = (  # the last versions that work with Gymnasium 0.29
    *("gymnasium==0.29.1", "ale-py==0.12.1", "pettingzoo[butterfly,mpe]==1.24.3", "psutil==7.2.2"),
    *("cloudpickle==3.1.2",),
)
OLD_NUMPY = ("numpy==1.26.4", "opencv-python-headless==4.11.0.86")
OLD_MINIGRID = ("--no-deps", "minigrid==2.5.0")  # it asks for a newer pygame than pettingzoo's, but only to render


class NotInstalled(Exception):
    """Raised when a virtual environment could not be made, with the reason."""


@dataclass(frozen=True)
class Venv:
    """A virtual environment.

    installs: the arguments of each ``pip install``, in order. finish: called with its Python at the end. commit: of
    this project, if that is not the working tree.
    """

    installs: Sequence[Sequence[str]]
    finish: Callable[[Path], None] | None = None
    commit: str = ""

    def described(self) -> dict[str, str]:
        """Return the description of its content, to compare with that of an existing environment."""
        text = json.dumps([list(arguments) for arguments in self.installs])
        return {"installs": text, "tree": tree_digest() if self.finish is _install_ours else self.commit}


def python_of(name: str, again: bool = False) -> Path:
    """Return the Python of a virtual environment; make it if none matches its current description.

    again: try again if it could not be made before. Raises NotInstalled.
    """
    venv, folder = _venv(name), ignored_folder() / name
    python, note = folder / "bin" / "python", folder / "made.json"
    description = venv.described()
    record = json.loads(note.read_text()) if note.exists() else {"wanted": {}, "installed": "", "failed": ""}
    if record["wanted"] == description and not (record["failed"] and again):
        if record["failed"]:
            raise NotInstalled(record["failed"])
        return python
    print(f"making {folder}", flush=True)
    installed, failed = record["installed"], ""
    try:
        if installed != description["installs"]:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            installed = ""
            _run([python311(), "-m", "venv", folder])
            for arguments in venv.installs:
                _run([python, "-m", "pip", "install", "--quiet", *arguments])
            installed = description["installs"]
        if venv.finish is not None:
            venv.finish(python)
    except NotInstalled as error:
        failed = str(error)
    note.write_text(json.dumps({"wanted": description, "installed": installed, "failed": failed}))
    if failed:
        raise NotInstalled(failed)
    return python


def _venv(name: str) -> Venv:
    library, _, commit = name.partition("@")
    if not commit:
        return VENVS[name]
    return Venv(VENVS[library].installs, functools.partial(_install_commit, commit), commit)


def ignored_folder() -> Path:
    """Return the folder of virtual environments and logs, which git ignores."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    return FOLDER


def _run(command: Sequence[str | Path], folder: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{' '.join(map(str, command[1:]))[:200]}: not done within {TIMEOUT_S} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line or "error:" in line]
        reason = " ".join((lines or done.stderr.splitlines())[-2:]).strip()
        raise NotInstalled(f"pip {' '.join(map(str, command[3:]))[:200]}: {reason[:400]}")


def python311() -> str:
    """Return the Python of all virtual environments. Raises NotInstalled."""
    python = shutil.which("python3.11")
    if python is None:
        raise NotInstalled("there is no python3.11 on the PATH")
    return python


# ------------------------------------------------------------------------------------- installations beyond pip


def tree_digest() -> str:
    """Return a hash of the sources of our wheel."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.as_posix().encode() + (ROOT / path).read_bytes())
    return digest.hexdigest()


def _sources() -> list[Path]:
    paths = [Path(name) for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE")]
    for package in ("pufferlib", "ocean", "cuda_ext", "cleanrl_demo"):
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and path.suffix not in (".so", ".pyc"):
                paths.append(path.relative_to(ROOT))
    return paths


def copy_tree(source: Path) -> None:
    """Copy the sources of our wheel: setuptools writes its build next to them."""
    for path in _sources():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, source / path)


def _install_ours(python: Path) -> None:
    """Build this tree's wheel from a copy, and install it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        copy_tree(source)
        _build(python, source)


def _install_commit(commit: str, python: Path) -> None:
    """Build the wheel of a commit of this project from git's archive, and install it."""
    with tempfile.TemporaryDirectory() as folder:
        archive, source = Path(folder) / "source.tar", Path(folder) / "source"
        command = ["git", "-C", str(ROOT), "archive", "--format=tar", f"--output={archive}", commit]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise NotInstalled(f"git archive {commit}: {done.stderr.strip()[:400]}")
        shutil.unpack_archive(archive, source)
        _build(python, source)


def _build(python: Path, source: Path) -> None:
    options = ["--quiet", "--no-build-isolation", "--no-deps", "--force-reinstall"]
    _run([python, "-m", "pip", "install", *options, source])


def pufferlib_release(version: str) -> Path:
    """Return the folder of a release of PufferLib, unpacked from its source distribution; download it if it is missing.

    Raises NotInstalled. PufferLib's setup.py downloads C libraries before it names its requirements, so pip fails where
    that download does; by then pip has unpacked the files.
    """
    release = ignored_folder() / "releases" / f"pufferlib-{version}"
    if release.exists():
        return release
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quiet", "--no-deps", "--no-clean", "--no-build-isolation", "--no-binary", ":all:"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", folder, f"pufferlib=={version}"]
        subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, env={**os.environ, "TMPDIR": folder})
        sources = [path.parent.parent for path in Path(folder).rglob("pufferlib/vector.py")]
        if not sources:
            raise NotInstalled(f"pip could not fetch the source distribution of pufferlib {version}")
        release.parent.mkdir(exist_ok=True)
        shutil.move(sources[0], release)
    return release


def _copy_pufferlib_30(python: Path) -> None:
    """Copy the Python files of PufferLib 3.0.0 into site-packages."""
    (site,) = (python.parent.parent / "lib").glob("python*/site-packages")
    ignored = shutil.ignore_patterns("ocean", "resources", "extensions")
    shutil.copytree(pufferlib_release("3.0.0") / "pufferlib", site / "pufferlib", ignore=ignored, dirs_exist_ok=True)


def _build_pufferlib_30_trainer(python: Path) -> None:
    """Copy the Python files of PufferLib 3.0.0, and compile what its trainer needs: the advantages, on the CPU."""
    _copy_pufferlib_30(python)
    (site,) = (python.parent.parent / "lib").glob("python*/site-packages")
    source = pufferlib_release("3.0.0") / "pufferlib" / "extensions" / "pufferlib.cpp"
    with tempfile.TemporaryDirectory() as folder:
        setup = Path(folder) / "setup.py"
        setup.write_text(SETUP.format(source=source.name))
        shutil.copyfile(source, setup.with_name(source.name))
        _run([python, setup, "--quiet", "build_ext", "--build-lib", site, "--build-temp", folder], Path(folder))


SETUP = """from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
build = BuildExtension.with_options(use_ninja=False)
setup(ext_modules=[CppExtension("pufferlib._C", ["{source}"])], cmdclass={{"build_ext": build}}, packages=[])
"""
PROGRAMS = (  # what programs for PufferLib import
    *("rich==15.0.0", "rich-argparse==1.7.1", "tyro==1.0.17", "tensorboard==2.21.0", "ray==2.60.0", "pytest==9.2.0"),
    *("tqdm==4.70.1", "psutil==7.2.2"),
)
OLD_GYM = ("--no-build-isolation", "gym==0.23.1")  # whose setup.py an older setuptools must run
OURS = (
    "setuptools==84.2.1",
    "wheel==0.48.0",
    "Cython==3.3.1",
    "threadpoolctl==3.8.0",
    "tomli-w==1.2.0",
)  # its build requirements and dependencies

VENVS = {
    "ours": Venv(((*GAMES, *SIMULATORS, *AGENTS), OURS), _install_ours),
    "ours-old": Venv(((*OLD_NUMPY, *OLD_GAMES, *SIMULATORS), OLD_MINIGRID, OURS), _install_ours),
    "gymnasium": Venv(((*GAMES, *SIMULATORS),)),
    "sb3": Venv((TORCH, ("stable-baselines3==2.9.2", *SIMULATORS, *GAMES))),
    "tianshou": Venv((TORCH, ("tianshou==2.0.1", *GAMES))),
    "torchrl": Venv((TORCH, ("torchrl==0.14.1", *GAMES))),
    "pufferlib-0.7": Venv(
        (
            ("numpy==1.23.3", "setuptools==65.5.0", "wheel==0.48.0", "Cython==3.3.1"),
            ("--no-build-isolation", "gym==0.23.1", "pufferlib==0.7.3"),
            ("numpy==1.23.3", "opencv-python==3.4.17.63", "filelock==3.20.0", *OLD_GAMES),
            OLD_MINIGRID,
        )
    ),
    "pufferlib-3.0": Venv(
        (
            ("numpy==1.26.4", "setuptools==65.5.0", "wheel==0.48.0"),
            ("--no-build-isolation", "gym==0.23.1"),
            (*OLD_NUMPY, *OLD_GAMES, *SIMULATORS),
            OLD_MINIGRID,
        ),
        _copy_pufferlib_30,
    ),
    "envpool": Venv((("envpool==1.2.5",),)),
    "supersuit": Venv((("supersuit==3.11.0", *GYMNASIUM, *AGENTS),)),
    # For train.py and reference.py, which also use "sb3".
    "train-ours": Venv((TORCH, TRAINER, (*GAMES, *AGENTS), OURS), _install_ours),
    "train-gymnasium": Venv((TORCH, GAMES)),
    # For puffer_programs.py, next to "programs-old".
    "pufferlib-3.0-train": Venv(
        (
            *(TORCH, ("numpy==1.26.4", "setuptools==65.5.0", "wheel==0.48.0"), OLD_GYM, (*OLD_NUMPY, *OLD_GAMES)),
            ("rich==15.0.0", "rich-argparse==1.7.1", "psutil==7.2.2", "pyro-ppl==1.9.1", "numpy==1.26.4"),
        ),
        _build_pufferlib_30_trainer,
    ),
    # For multi_agent.py; of BenchMARL's requirements, torchvision and av are for loggers alone.
    "benchmarl": Venv(
        (
            *(TORCH, ("torchrl==0.11.1", "hydra-core==1.3.2", "tqdm==4.70.1")),
            *(("pettingzoo==1.27.0", "mpe2==1.1.1", *GYMNASIUM), ("--no-deps", "benchmarl==1.5.2")),
        )
    ),
    # For public_cases.py and puffer_programs.py: this project with what programs for PufferLib need, on the versions of
    # then and of now.
    "programs-old": Venv(
        (
            *(TORCH, ("setuptools==65.5.0", "wheel==0.48.0"), (*OLD_NUMPY, *OLD_GAMES, *SIMULATORS), OLD_MINIGRID),
            *(OLD_GYM, (*OLD_NUMPY, "gymnasium==0.29.1", "stable-baselines3==2.3.2", "shimmy==1.3.0", *PROGRAMS)),
            ("ale-py==0.9.0", *OLD_NUMPY, "gymnasium==0.29.1"),  # it has BreakoutNoFrameskip-v4, and ROMs
            OURS,
        ),
        _install_ours,
    ),
    "programs": Venv(
        (
            *(TORCH, ("setuptools==65.5.0", "wheel==0.48.0"), (*GAMES, *SIMULATORS, *AGENTS)),
            *(OLD_GYM, ("stable-baselines3==2.9.2", "shimmy==2.0.0", *GYMNASIUM, *PROGRAMS), OURS),
        ),
        _install_ours,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(VENVS))
    names = parser.parse_args().names
    for name in names or VENVS:
        try:
            print(f"{name}: {python_of(name, again=name in names)}", flush=True)
        except NotInstalled as error:
            print(f"{name}: {error}", flush=True)


if __name__ == "__main__":
    main()
