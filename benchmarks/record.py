"""Record the results of real environments, to replay them without the environments' cost.

    python -m benchmarks.record [NAME …]        by default all that workloads replay and that have no recording

Each environment is played for 1,000 steps, with fixed seeds and actions drawn from its space, and stored in
benchmarks/.recordings, which git ignores. Environments of families are played in the virtual environments that
``make test-envs`` makes, if they exist, all others in "ours". The output names the objects that an environment returns
again: a replay returns different ones. ``benchmarks/peers.py`` makes the recordings that it needs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from benchmarks.recordings import FOLDER, path_of
from benchmarks.venvs import NotInstalled, python_of
from benchmarks.workloads import FAMILIES, REPLAYED

__all__ = ["NotRecorded", "ensure", "is_there"]

ROOT = Path(__file__).parent.parent
RECORDER = Path(__file__).parent / "vectorizers" / "recorder.py"
TIMEOUT_S = 300


class NotRecorded(Exception):
    """Raised when an environment could not be recorded, with the reason."""


def make(name: str, python: Path) -> str:
    """Record an environment with a Python that has it; return the recorder's summary. Raises NotRecorded."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python, RECORDER, FAMILIES[name].name if name in FAMILIES else name, path_of(name)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=FOLDER, env=variables)
    except subprocess.TimeoutExpired:
        raise NotRecorded(f"{name}: not done within {TIMEOUT_S} s") from None
    if done.returncode:
        raise NotRecorded(f"{name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return done.stdout.strip().splitlines()[-1]


def _python(name: str) -> Path:
    """Return a Python that has an environment. Raises NotRecorded or NotInstalled."""
    if name not in FAMILIES:
        return python_of("ours")
    stem = FAMILIES[name].stem
    python = ROOT / ".venv-envs" / stem / "bin" / "python"
    if not python.exists():
        raise NotRecorded(f'{name}: make test-envs FAMILIES="{stem}" installs it')
    return python


def is_there(name: str) -> bool:
    """Return whether an environment is recorded."""
    return path_of(name).exists()


def ensure(names: Iterable[str]) -> None:
    """Record the environments that have no recording yet, and print those that could not be recorded."""
    for name in names:
        if is_there(name):
            continue
        try:
            print(make(name, _python(name)), flush=True)
        except (NotInstalled, NotRecorded) as error:
            print(f"not recorded: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*REPLAYED, *FAMILIES)))
    names = parser.parse_args().names
    for name in names:
        path_of(name).unlink(missing_ok=True)
    ensure(names or (*REPLAYED, *FAMILIES))


if __name__ == "__main__":
    main()
