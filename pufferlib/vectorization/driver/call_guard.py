"""CallGuard: only one thread at a time may use a VecEnv, and only in the process that made it.

A thread that enters a call stores its id in ``owner``. A call that finds ``owner`` set raises CallError. The compiled
path uses a compiled guard, so that the plain case of ``send`` and ``recv`` costs only a comparison.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pufferlib import _native
from pufferlib.errors import CallError, PufferError
from pufferlib.util.annotations import Guard
from pufferlib.vectorization.core.backend import Backend

__all__ = ["LEAVE_S", "NOBODY", "CallGuard", "exclusive", "new_guard", "refuse", "shut"]

LEAVE_S = 1.0  # a thread that waits for rows leaves within a tenth of this
NOBODY = 1  # ``owner`` once the VecEnv is closed, or in a forked process; no thread has this id


class GuardedWorkers(Protocol):
    """The parts of ``Workers`` that ``exclusive`` needs."""

    title: str
    call_guard: Guard

    @property
    def backend(self) -> Backend: ...


class Guarded(Protocol):
    """The parts of a WorkerVecEnv that ``exclusive`` needs."""

    @property
    def _workers(self) -> GuardedWorkers: ...

    def _interrupted(self, error: BaseException, *, half_done: bool) -> None: ...


Vec = TypeVar("Vec", bound=Guarded)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class CallGuard:
    """A guard against concurrent calls of one VecEnv.

    owner: the id of the thread inside a call, or 0; ``exclusive`` sets and clears it.
    """

    __slots__ = ("owner",)

    def __init__(self) -> None:
        self.owner = 0


def new_guard() -> Guard:
    """Return a new guard: the compiled one if the compiled path is available, otherwise a CallGuard."""
    return _native.fast_path.CallGuard() if _native.available else CallGuard()


def exclusive(
    method: Callable[Concatenate[Vec, Parameters], Result],
) -> Callable[Concatenate[Vec, Parameters], Result]:
    """Wrap a WorkerVecEnv's method so that it raises CallError while any thread is in a call of the same VecEnv.

    If the method raises an exception other than PufferError, such as KeyboardInterrupt, the VecEnv is closed, unless
    the backend was ``interruptible`` at that time.
    """

    @functools.wraps(method)
    def guarded(self: Vec, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        workers, me = self._workers, threading.get_ident()
        backend, call_guard = workers.backend, workers.call_guard
        if not call_guard.owner:
            call_guard.owner = me  # no call since the comparison, so no other thread runs in between
        else:
            refuse(call_guard, workers.title)
        try:
            try:
                backend.interruptible = False
                return method(self, *args, **kwargs)
            finally:
                call_guard.owner = 0
        except PufferError:
            raise
        except BaseException as error:  # Ctrl-C, or an exception from a signal handler
            self._interrupted(error, half_done=not backend.interruptible)
            raise

    return guarded


def refuse(call_guard: Guard, name: str) -> None:
    """Raise CallError with the reason why a VecEnv cannot be used now, or in this process.

    name: the VecEnv's name in errors.
    """
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
        f"thread {names[0] if names else owner} is in a call of this {name}, and only one thread at a time may be; "
        "share a threading.Lock among the threads that use it, or make one in each of them"
    )


def shut(call_guard: Guard, timeout_s: float) -> bool:
    """Wait until no other thread is in a call, then refuse all calls.

    Return False, and refuse nothing, if another thread is still in a call after timeout_s seconds.
    """
    deadline, me = time.monotonic() + timeout_s, threading.get_ident()
    while call_guard.owner not in (0, me, NOBODY):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    call_guard.owner = NOBODY
    return True
