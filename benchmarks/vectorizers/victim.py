"""Play one library like a user's program, until one of its environments breaks.

    python victim.py FILE TASK FOLDER PATIENCE_S

FILE: of a library, without .py; TASK: a Task as JSON; PATIENCE_S: how long to wait for a report of the fault. Writes
ready.json into the folder once it plays, and seen.json when an exception arrives, when an info reports the restart of
an environment, or when neither has come after PATIENCE_S. An exception then ends it, uncaught. benchmarks/faults.py
runs it in the library's virtual environment.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from child import versions
from player import NotHandled, Player, Task

WARM_UP_BATCHES = 20
AND_ON_S = 1.0  # of play after a library has recovered


def main() -> None:
    file, task, folder = sys.argv[1], Task(**json.loads(sys.argv[2])), Path(sys.argv[3])
    patience_s, fault_file = float(sys.argv[4]), task.env_kwargs.get("fault_file", "")
    try:
        player = importlib.import_module(file).start(task)
    except NotHandled as error:
        write(folder / "seen.json", {"not_handled": str(error)})
        return
    for _ in range(WARM_UP_BATCHES):
        player.recv()
        player.send()
    write(folder / "ready.json", {"versions": versions()})
    try:
        report = play(player, Path(f"{fault_file}.begun"), patience_s)
    except Exception as error:
        now = time.monotonic()
        kind = type(error)
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        write(folder / "seen.json", {"what": "exception", "type": name, "text": str(error)[:4000], "at": now})
        raise
    write(folder / "seen.json", report)
    player.close()


def play(player: Player, begun: Path, patience_s: float) -> dict[str, Any]:
    """Play until a second after a restart, or until the fault was not reported for patience_s."""
    report: dict[str, Any] = {}
    least, until = sys.maxsize, float("inf")  # rows of a batch since the fault; when to end
    while (now := time.monotonic()) < until:
        rows = player.recv()
        restarted = [info["restarted"] for info in player.infos() if "restarted" in info]
        if restarted and not report:
            now = time.monotonic()
            report, until = {"what": "restart", "text": restarted[0][:4000], "at": now}, now + AND_ON_S
        elif until == float("inf") and begun.exists():
            until = float(begun.read_text()) + patience_s
        if until < float("inf"):
            least = min(least, rows)
        player.send()
    return {"rows": least, **(report or {"what": "nothing", "at": now})}


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a file atomically: readers see all of it or none."""
    with suppress(FileNotFoundError):  # the folder is gone: nothing reads the file any more
        path.with_suffix(".new").write_text(json.dumps(content))
        os.rename(path.with_suffix(".new"), path)


if __name__ == "__main__":
    main()
