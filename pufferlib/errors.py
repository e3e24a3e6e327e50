"""The exceptions that pufferlib raises on purpose.

PufferError
├── SpaceError (TypeError)          a space cannot be flattened, or a sample does not fit its space
├── PlanError (ValueError)          impossible counts or arguments of make
├── ActionError (ValueError)        actions of a wrong shape, dtype, number of rows, or value
├── CallError (RuntimeError)        a call out of order; nothing has changed
│   └── ClosedError                 the object has been closed
├── RecvTimeout (TimeoutError)      no batch within recv(timeout=…); calling recv again is safe
├── PopulationError (RuntimeError)  more agents than rows, or an unknown or returning agent
├── RegistryError (LookupError)     no environment, kernel or game of that name
├── RecordingError (ValueError)     a file is not a recording, or cannot be read here
├── CheckpointError (ValueError)    a file holds no policy, or one that cannot be loaded
├── KernelError (RuntimeError)      a kernel does not compile, or does not fit its schema or its reference
├── MissingExtra (ImportError)      an optional package is not installed
├── PlatformError (OSError)         the platform cannot provide what pufferlib needs
└── WorkerError (RuntimeError)      an environment raised, or a worker process died

Each message states what happened, the values involved, and a remedy. Each class is also a subclass of the builtin
exception that callers would catch.
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
    """The base class of all errors that pufferlib raises on purpose."""

    _for_make = ""

    def speak_of_make(self) -> None:
        """Rewrite the arguments of ``wrap`` that the message names, if any, as arguments of ``make``."""
        if self._for_make:
            self.args = (self._for_make,)


class SpaceError(PufferError, TypeError):
    """Raised if a space cannot be flattened, or a sample does not fit its space."""


class PlanError(PufferError, ValueError):
    """Raised if counts or arguments, such as those of ``make``, are impossible or cannot work together."""


class ActionError(PufferError, ValueError):
    """Raised if actions have a wrong shape, dtype, number of rows or value. Nothing was sent."""


class CallError(PufferError, RuntimeError):
    """Raised if a call is out of order, such as ``recv`` before ``async_reset``. Nothing has changed."""


class ClosedError(CallError):
    """Raised if the object has been closed."""


class RecvTimeout(PufferError, TimeoutError):
    """Raised if no batch arrives within ``recv(timeout=…)``. Nothing is lost, and ``recv`` may be called again."""


class PopulationError(PufferError, RuntimeError):
    """Raised if more agents are alive than there are rows, or if an agent is unknown or comes back after its end."""


class RegistryError(PufferError, LookupError):
    """Raised if a name or object does not lead to an environment, a kernel or a game."""


class RecordingError(PufferError, ValueError):
    """Raised if a file is not a recording, cannot be read by this version, or lacks data that a replay needs."""


class CheckpointError(PufferError, ValueError):
    """Raised if a file holds no complete policy of a pufferlib trainer, or one that cannot be loaded here."""


class KernelError(PufferError, RuntimeError):
    """Raised if a kernel does not compile, or does not match its schema or its reference."""


class MissingExtra(PufferError, ImportError):
    """Raised if an optional package is not installed; the message gives the command that installs it."""


class PlatformError(PufferError, OSError):
    """Raised if the platform cannot provide what pufferlib needs; the message suggests a remedy where one is known.

    Examples are an unsupported system, a refused system call, and a Ray cluster or actor that does not answer.
    """


Kind = TypeVar("Kind", bound=PufferError)


def argument_error(kind: Callable[[str], Kind], text: Callable[[Callable[..., str], str], str]) -> Kind:
    """Return an error about arguments of ``wrap`` whose message can be rewritten for callers of ``make``.

    kind: the error class. text(written, within): a function that returns the message. ``written(max_length="…")``
    formats an argument as the caller writes it; ``within`` is the text to put after an argument's bare name.
    """

    def to_wrap(**values: str) -> str:
        return " and ".join(f"{name}={value}" for name, value in values.items())

    def to_make(**values: str) -> str:
        return f"wrap_kwargs={{{', '.join(f'{name!r}: {value or chr(0x2026)}' for name, value in values.items())}}}"

    error = kind(text(to_wrap, ""))
    error._for_make = text(to_make, " in wrap_kwargs")
    return error


class WorkerError(PufferError, RuntimeError):
    """Raised if an environment raises an exception, or the worker process that runs it dies.

    env_id: the environment's index; for a dead worker, that of the environment it was stepping or resetting, or None if
    none is known. worker: the worker's index. exitcode: the exit code of a dead worker, negative for a signal; None if
    the environment raised. remote_traceback: the traceback as printed in the worker; "" for a dead worker.
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
