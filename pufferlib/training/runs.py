"""The folder of a run: its configuration, and the information needed to repeat it."""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pufferlib
from pufferlib.tuning.bench import machine
from pufferlib.util.files import written_whole

CONFIG, RUN = "config.json", "run.json"
AUTO = "auto"  # the number of environments of a run with as many as fit in memory (planner.py)
PACKAGES = ("torch", "numpy", "gymnasium")


def new_run_folder(config: Any, env_name: str, algorithm: str) -> Path:
    """Create a folder for this run below ``config.runs``, and return it.

    ``config.json`` in it has the fields of ``config``, a dataclass. ``run.json`` records the run's origin: environment
    and algorithm, the number of processes, the command, its working directory and git revision, versions, the machine,
    and the time. Raises PlanError if a file is in the way.
    """
    name = f"{re.sub(r'[^-.A-Za-z0-9]+', '-', env_name)}__{algorithm}__{config.seed}__{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        folder = Path(config.runs) / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if Path(config.runs).is_dir():
                continue
            raise pufferlib.PlanError(f"runs={config.runs} is a file; name a folder for the folders of runs") from None
        except NotADirectoryError as error:
            raise pufferlib.PlanError(f"runs={config.runs} lies in a file; name a folder for those of runs") from error
        _write(folder / CONFIG, vars(config))
        _write(folder / RUN, {"env": env_name, "algorithm": algorithm, "processes": num_processes(), **provenance()})
        return folder
    raise AssertionError("unreachable")


def num_processes() -> int:
    """Return the number of processes that torchrun started, including this one; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", 1))


def command_to_resume(folder: Path, processes: int, env: str = "") -> str:
    """Return the command that resumes a run of ``processes`` processes.

    env: the command's argument for the environment, if the run was passed a creator instead of a name.
    """
    puffer = "puffer" if processes == 1 else f"torchrun --nproc-per-node {processes} -m pufferlib.cli"
    return f"{puffer} train {env}{' ' * bool(env)}--resume {folder}"


def note_resumed(folder: Path, config: Any, num_steps: int) -> None:
    """Record in a run's folder the step from which it was resumed, its new settings, and the new ``provenance``."""
    run = read_run(folder)
    entry = {"num_steps": num_steps, **provenance()}
    _write(folder / RUN, {**run, "resumed": [*run.get("resumed", []), entry]})
    _write(folder / CONFIG, vars(config))


def read_config(folder: Path) -> dict[str, Any]:
    """Return a run's configuration, as parsed from JSON. Raises PlanError if the folder is not a run's."""
    return _read(folder, CONFIG)


def read_run(folder: Path) -> dict[str, Any]:
    """Return a run's origin (see ``new_run_folder``). Raises PlanError if the folder is not a run's."""
    return _read(folder, RUN)


@contextmanager
def saying_where(folder: Path) -> Iterator[None]:
    """Add the directory in which a run began to the message of a RegistryError from the block.

    The name that was not found may be found in that directory. The error is unchanged if the directory is the current
    one, or if ``folder`` is not a run's. folder: the run's folder.
    """
    try:
        yield
    except pufferlib.RegistryError as error:
        try:
            began = read_run(folder).get("cwd")
        except pufferlib.PlanError:  # a policy's file without a run
            began = None
        if began is None or Path(began) == Path.cwd():
            raise
        raise pufferlib.RegistryError(f"{error}; the run was begun in {began}, where it may be found") from error


def provenance() -> dict[str, Any]:
    """Return the origin of a run that begins now.

    Keys: command, cwd (the working directory), git, versions, machine, started.
    """
    return {
        "command": shlex.join(sys.orig_argv),
        "cwd": str(Path.cwd()),
        "git": git_state(Path.cwd()),
        "versions": {
            "python": platform.python_version(),
            "pufferlib": pufferlib.__version__,
            **{package: _version(package) for package in PACKAGES},
        },
        "machine": machine(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def git_state(folder: Path) -> Mapping[str, Any] | None:
    """Return a folder's git ``revision``, and whether tracked files have uncommitted changes (``dirty``).

    Returns None if the folder is in no repository, if the repository has no commit, or if git is not available.
    """
    revision = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if revision is None or changes is None:
        return None
    return {"revision": revision, "dirty": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with written_whole(path) as part:
        part.write_text(json.dumps(content, indent=2, default=str) + "\n")


def _read(folder: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads((folder / name).read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        within = sorted(folder.glob(f"*/{name}")) if folder.is_dir() else []
        meant = f"; runs are in it, such as {within[0].parent}" if within else ""
        problem = f"it has no {name}" if folder.is_dir() else "there is no such folder"
        raise pufferlib.PlanError(f"{folder} is no run: {problem}{meant}") from error
    except ValueError as error:
        raise pufferlib.PlanError(f"{folder / name} is no JSON ({error}); it was not written by a trainer") from error
    if not isinstance(content, dict):
        raise pufferlib.PlanError(f"{folder / name} is no JSON object; it was not written by a trainer")
    return content
