"""Signals that have to wait: Ctrl-C in the middle of starting or ending a process would leave one that nobody ends."""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["as_before", "deferred_signals"]

_held: dict[int, Any] = {}  # the handlers of signals that wait just now


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Have all handlers of signals in Python run only afterwards; any of them may raise. For milliseconds.

    Blocking the signals would not do: another thread, of NumPy's BLAS say, takes them, and the handler runs here. In
    other threads than the main one nothing has to be done, as no handler runs there.
    """
    if _held or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    python = {each: handler for each in signal.valid_signals() if callable(handler := signal.getsignal(each))}
    try:
        for each, handler in python.items():
            _held[each] = handler
            signal.signal(each, lambda number, frame: came.append(number))
        yield
    finally:
        try:
            as_before()
        finally:
            for number in dict.fromkeys(came):
                _thread.interrupt_main(number)  # type: ignore[arg-type]  # as if it came now


def as_before() -> None:
    """Put the handlers back, also in a process that was forked meanwhile."""
    try:
        while _held:
            number, handler = next(iter(_held.items()))
            signal.signal(number, handler)
            _held.pop(number, None)
    finally:
        if _held:  # one that was back already has raised
            as_before()
