"""Record what real environments return, to be replayed without their own cost.

    python -m benchmarks.record [NAME …]        by default all that are replayed and not recorded yet

Each is played for 1,000 steps in the virtual environment "ours", with fixed seeds and actions of its own space, and
stored in benchmarks/.recordings, which git ignores. The output names the objects that an environment returns again:
a replay returns different ones. ``benchmarks/peers.py`` makes those recordings that it needs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from benchmarks.recordings import FOLDER, path_of
from benchmarks.venvs import NotInstalled, python_of
from benchmarks.workloads import REPLAYED

__all__ = ["NotRecorded", "ensure"]

RECORDER = Path(__file__).parent / "players" / "recorder.py"
TIMEOUT_S = 300


class NotRecorded(Exception):
    """An environment could not be recorded; says why."""


def make(name: str, python: Path) -> str:
    """Record an environment with a Python that has it, and return what is to be said of it. Raises NotRecorded."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python, RECORDER, name, path_of(name)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=FOLDER, env=variables)
    except subprocess.TimeoutExpired:
        raise NotRecorded(f"{name}: not done within {TIMEOUT_S} s") from None
    if done.returncode:
        raise NotRecorded(f"{name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return done.stdout.strip().splitlines()[-1]


def ensure(names: Iterable[str]) -> None:
    """Record those of the names that have no recording yet, and print what could not be recorded."""
    for name in names:
        if path_of(name).exists():
            continue
        try:
            print(make(name, python_of("ours")), flush=True)
        except (NotInstalled, NotRecorded) as error:
            print(f"not recorded: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(REPLAYED))
    names = parser.parse_args().names
    for name in names:
        path_of(name).unlink(missing_ok=True)
    ensure(names or REPLAYED)


if __name__ == "__main__":
    main()
