"""Turns: one thread at a time uses a VecEnv, and no process but the one that made it.

Whoever enters a call leaves its number as the ``owner``, and whoever finds another's there goes no further. The
compiled and the portable lane are turns as well, so that the plain case of ``send`` and ``recv`` pays no more than a
comparison.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pufferlib.errors import CallError, PufferError

__all__ = ["LEAVE_S", "NOBODY", "CallGuard", "exclusive", "refuse", "shut"]

Method = TypeVar("Method", bound=Callable[..., Any])

LEAVE_S = 1.0  # whoever waits for rows leaves within a tenth of this when asked to
NOBODY = 1  # the owner for good: it is closed, or this process was forked from its own; no thread has this number


class CallGuard:
    """owner: the id of the thread that is inside a call, 0 if none is. ``exclusive`` sets and clears it."""

    __slots__ = ("owner",)

    def __init__(self) -> None:
        self.owner = 0


def exclusive(method: Method) -> Method:
    """Have one thread at a time in a method of a WorkerVecEnv, and note where Ctrl-C ends it in the middle.

    That is anywhere but in a wait, and only a full reset mends it.
    """

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        backend, call_guard, me = self._backend, self._call_guard, threading.get_ident()
        if not call_guard.owner:
            call_guard.owner = me  # nothing is called since the comparison, so no other thread comes between
        else:
            refuse(call_guard, type(self).__name__)
        try:
            backend.interruptible = False
            return method(self, *args, **kwargs)
        except PufferError:
            raise
        except BaseException as error:  # Ctrl-C, or what a signal handler raises
            self._raise_if_closed(error)
            if not backend.interruptible:
                self._interrupted, self._fast_path = True, None
            raise
        finally:
            call_guard.owner = 0

    return guarded  # type: ignore[return-value]


def refuse(call_guard: Any, name: str) -> None:
    """Raise CallError: this VecEnv, a ``name``, cannot be called just now, or not from here."""
    owner = call_guard.owner
    if owner == NOBODY:
        raise CallError(
            f"this {name} belongs to the process that made it, and this one (process {os.getpid()}) was forked from "
            "it; make another in here"
        )
    if owner == threading.get_ident():
        raise CallError(
            f"this {name} is in the middle of another call, and an environment or a signal handler called it in "
            "between; call it from outside, or close it"
        )
    names = [repr(thread.name) for thread in threading.enumerate() if thread.ident == owner]
    raise CallError(
        f"thread {names[0] if names else owner} is in a call of this {name}, and one thread at a time may be; "
        "share a threading.Lock among the threads that use it, or make one in each of them"
    )


def shut(call_guard: Any, timeout_s: float) -> bool:
    """Wait until no other thread is in a call, and let none in any more; False if one still is after timeout_s."""
    deadline, me = time.monotonic() + timeout_s, threading.get_ident()
    while call_guard.owner not in (0, me, NOBODY):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    call_guard.owner = NOBODY
    return True
