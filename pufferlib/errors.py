"""The errors that pufferlib raises on purpose.

PufferError
├── SpaceError (TypeError)          a space cannot be flattened, or a sample does not fit its space
├── PlanError (ValueError)          impossible counts or arguments of make
├── ActionError (ValueError)        actions of a wrong shape, dtype, number of rows, or value
├── CallError (RuntimeError)        a call out of order; nothing has changed
│   └── ClosedError                 the object has been closed
├── RecvTimeout (TimeoutError)      no batch within recv(timeout=…); calling recv again is fine
├── PopulationError (RuntimeError)  more agents than rows, or an agent that came back
├── RegistryError (LookupError)     no environment of that name
├── RecordingError (ValueError)     a file is not a recording, or cannot be read here
├── CheckpointError (ValueError)    a file holds no policy, or one that cannot be loaded
├── KernelError (RuntimeError)      a kernel does not compile, or does not fit its schema or its reference
├── MissingExtra (ImportError)      an optional package is not installed
├── PlatformError (OSError)         the operating system refuses what is needed
└── WorkerError (RuntimeError)      an environment raised, or a worker process died

Each message states what happened, with which values, and the way out. Each class is also the builtin that callers would
catch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = [
    "ActionError",
    "CallError",
    "CheckpointError",
    "ClosedError",
    "KernelError",
    "MissingExtra",
    "PlanError",
    "PlatformError",
    "PopulationError",
    "PufferError",
    "RecordingError",
    "RecvTimeout",
    "RegistryError",
    "SpaceError",
    "WorkerError",
]


class PufferError(Exception):
    """The root of all errors raised by pufferlib."""

    _for_make = ""

    def speak_of_make(self) -> None:
        """Rewrite arguments of ``wrap`` in the message, if any, as ``make`` takes them."""
        if self._for_make:
            self.args = (self._for_make,)


class SpaceError(PufferError, TypeError):
    """A space cannot be flattened, or a sample does not fit its space."""


class PlanError(PufferError, ValueError):
    """Counts or arguments of ``make`` that cannot work together."""


class ActionError(PufferError, ValueError):
    """Actions of a wrong shape, dtype or number of rows. Nothing was sent."""


class CallError(PufferError, RuntimeError):
    """A call out of order, such as ``recv`` before ``async_reset``. Nothing has changed."""


class ClosedError(CallError):
    """The object has been closed."""


class RecvTimeout(PufferError, TimeoutError):
    """No batch within ``recv(timeout=…)``; nothing is lost, and ``recv`` may be called again."""


class PopulationError(PufferError, RuntimeError):
    """More agents alive than rows for them, or an agent that came back after its end."""


class RegistryError(PufferError, LookupError):
    """No environment of that name is registered."""


class RecordingError(PufferError, ValueError):
    """A file is not a recording, cannot be read by this version, or lacks what a replay needs."""


class CheckpointError(PufferError, ValueError):
    """A file holds no complete policy of a pufferlib trainer, or one that cannot be loaded here."""


class KernelError(PufferError, RuntimeError):
    """A kernel does not compile, or does not fit its schema or its reference."""


class MissingExtra(PufferError, ImportError):
    """An optional package is not installed; the message holds the command that installs it."""


class PlatformError(PufferError, OSError):
    """The operating system refuses a request that pufferlib depends on; the message names the way out."""


Kind = TypeVar("Kind", bound=PufferError)


def argument_error(kind: Callable[[str], Kind], text: Callable[[Callable[..., str], str], str]) -> Kind:
    """Return an error whose message names arguments of ``wrap`` as callers of ``wrap`` or of ``make`` write them.

    kind: the error class. text(written, within): returns the message; written(max_length="…") formats an argument, and
    ``within`` follows the bare name of one.
    """

    def to_wrap(**values: str) -> str:
        return " and ".join(f"{name}={value}" for name, value in values.items())

    def to_make(**values: str) -> str:
        return f"wrap_kwargs={{{', '.join(f'{name!r}: {value or chr(0x2026)}' for name, value in values.items())}}}"

    error = kind(text(to_wrap, ""))
    error._for_make = text(to_make, " in wrap_kwargs")
    return error


class WorkerError(PufferError, RuntimeError):
    """An environment raised, or the worker process that ran it died.

    env_id: the environment's number; for a dead worker, the one that it was stepping or resetting, or None.
    worker: the worker's number. exitcode: of a dead worker, negative for a signal; None for an exception.
    remote_traceback: the traceback as printed in the worker; "" for a dead worker.
    """

    def __init__(
        self,
        message: str,
        *,
        env_id: int | None = None,
        worker: int | None = None,
        exitcode: int | None = None,
        remote_traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.env_id = env_id
        self.worker = worker
        self.exitcode = exitcode
        self.remote_traceback = remote_traceback
