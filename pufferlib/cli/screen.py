"""The commands' console, and its progress line on a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pufferlib.cli.parsing import require

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["SHOWN_S", "cleared", "counting", "new_console", "passing"]

SHOWN_S = 0.2  # between two updates of the progress line


def new_console() -> Console:
    """Create a console. Raises MissingExtra if rich is not installed."""
    require("rich")
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False, emoji=False)


def passing(console: Console, text: str) -> None:
    """Show a progress line in place of the previous one, if the console is a terminal.

    An empty text clears the line, which must be done before other output. The line is drawn without a thread, because a
    process with threads cannot fork workers safely.
    """
    if console.is_terminal:
        console.file.write(f"\r\x1b[K{text}")
        console.file.flush()


@contextlib.contextmanager
def cleared(console: Console) -> Iterator[None]:
    """Clear the progress line at the end of the block."""
    try:
        yield
    finally:
        passing(console, "")


def counting(console: Console) -> Callable[[int, int], None]:
    """Return a function ``after(finished, total)`` that shows the finished and the total number of steps.

    The function updates the progress line at most once every SHOWN_S seconds.
    """
    next_s = time.monotonic() + SHOWN_S

    def after(done: int, of: int) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            passing(console, f"{done:,} of {of:,} steps …")
            next_s = time.monotonic() + SHOWN_S

    return after
