"""Summaries of several failures, with one text for each cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from pufferlib.errors import WorkerError
from pufferlib.vectorization.core.messages import Failed

__all__ = ["MOST_CAUSES", "failure_texts", "summary_of"]

MOST_CAUSES = 8  # lines of a summary
_NUMBER = re.compile(r"\d+")  # numbers, such as env ids, that may differ between faults with the same cause
_FRAME = re.compile(r'File "([^"]*)", line (\d+), in ')
_WHO = re.compile(r"environment \d+ \(worker [^)]*\) ")


def failure_texts(failures: Iterable[Failed]) -> list[str]:
    """Return one text per cause: the first failure, and the ids of other environments that failed for that cause."""
    causes: dict[str, list[Failed]] = {}
    for failure in failures:
        causes.setdefault(f"{failure.phase} {_NUMBER.sub('0', failure.summary)}", []).append(failure)
    texts = []
    for first, *others in causes.values():
        same = f"\nand so did environments {', '.join(str(other.env_id) for other in others)}" if others else ""
        texts.append(f"{first.error()}{same}")
    return texts


def summary_of(errors: Sequence[WorkerError]) -> str:
    """Summarize environments' exceptions and workers' deaths without tracebacks, one line per cause.

    Several causes are preceded by a line that states the number of errors. If there are more than MOST_CAUSES causes,
    the last line states the number of causes left out.
    """
    causes: dict[str, tuple[str, list[int]]] = {}
    for error in errors:
        head, frames = str(error).partition("\n")[0], _FRAME.findall(error.remote_traceback)
        if not frames or error.env_id is None:  # a worker's death
            causes.setdefault(head, (head, []))
            continue
        text = f"{_WHO.sub('', head, count=1)} ({PurePath(frames[-1][0]).name}, line {frames[-1][1]})"
        causes.setdefault(_NUMBER.sub("0", text), (text, []))[1].append(error.env_id)
    lines = []
    for text, env_ids in causes.values():
        who = f"environment{'s' * (len(env_ids) > 1)} {_ranges(env_ids)} " if env_ids else ""
        lines.append(who + text)
    if len(lines) > MOST_CAUSES:
        lines[MOST_CAUSES:] = [f"and {len(lines) - MOST_CAUSES} more"]
    return lines[0] if len(lines) == 1 else "\n  ".join([f"{len(errors)} failures", *lines])


def _ranges(numbers: list[int]) -> str:
    """Return numbers as text in ascending order, with three or more consecutive numbers as a range: "1, 3 to 6"."""
    numbers = sorted(numbers)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = (f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return ", ".join(parts)
