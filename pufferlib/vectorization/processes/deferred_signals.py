"""Deferred signals: without them, Ctrl-C during the start or end of a process could leave a process behind."""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["as_before", "deferred_signals"]

_deferred: dict[int, Callable[[int, FrameType | None], object]] = {}  # the handlers of the signals delayed now


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Delay all Python signal handlers until the end of this context, where any of them may raise.

    The context should last only milliseconds. Blocking the signals would not suffice: another thread, such as one of
    NumPy's BLAS, would receive them, and the handler would run in the main thread. This does nothing inside another
    such context. It also does nothing outside the main thread, because handlers run only in the main thread.
    """
    if _deferred or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    python = {number: handler for number in signal.valid_signals() if callable(handler := signal.getsignal(number))}
    try:
        for signal_number, handler in python.items():
            _deferred[signal_number] = handler
            signal.signal(signal_number, lambda number, frame: came.append(number))
        yield
    finally:
        try:
            as_before()
        finally:
            for number in dict.fromkeys(came):
                _thread.interrupt_main(number)  # type: ignore[arg-type]  # as if it arrived now


def as_before() -> None:
    """Restore the delayed handlers. A process that is forked inside ``deferred_signals`` must call this itself."""
    try:
        while _deferred:
            number, handler = next(iter(_deferred.items()))
            signal.signal(number, handler)
            _deferred.pop(number, None)
    finally:
        if _deferred:  # a restored handler has raised
            as_before()
