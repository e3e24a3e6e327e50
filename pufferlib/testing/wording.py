"""Format errors, spaces and durations for reports."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from gymnasium import spaces

import pufferlib

__all__ = ["duration", "error_text", "first_line", "is_foreign", "shown_space"]


def shown_space(space: Any) -> str:
    if isinstance(space, spaces.Box):
        low, high = (
            f"{bound.flat[0]:g}" if (bound == bound.flat[0]).all() else "…" for bound in (space.low, space.high)
        )
        return f"Box({low}, {high}, {space.shape}, {space.dtype})"
    text = " ".join(str(space).split())
    return text if len(text) <= 60 else text[:57] + "..."


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; for a WorkerError, this leaves out the worker's traceback."""
    return str(error).strip().partition("\n")[0]


def error_text(error: BaseException) -> str:
    """Return an exception as text, with the file and line number of its innermost frame outside pufferlib, if any."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_foreign(frame.filename)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    message = first_line(error)
    return f"{type(error).__name__}{': ' if message else ''}{message}{where}"


def is_foreign(filename: str) -> bool:
    """Return whether a file lies outside pufferlib."""
    return Path(pufferlib.__file__).parent not in Path(filename).parents


def duration(seconds: float) -> str:
    """Return a duration as text, such as 3.2 µs, 15 ms or 2.0 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            value = seconds / scale
            return f"{value:.{0 if value >= 10 else 1}f} {unit}"
    return f"{seconds * 1e9:.0f} ns"
