"""The exceptions that pufferlib raises on purpose.

PufferError
├── SpaceError (TypeError)          a space cannot be flattened, or a sample does not fit its space
├── PlanError (ValueError)          invalid or incompatible counts or arguments, such as those of make
├── ActionError (ValueError)        actions of a wrong shape, dtype, number of rows, or value
├── CallError (RuntimeError)        a call out of order
│   └── ClosedError                 the object has been closed
├── RecvTimeout (TimeoutError)      no batch within recv(timeout=…); calling recv again is safe
├── PopulationError (RuntimeError)  more agents than rows, or an agent that reappears or has no known type
├── RegistryError (LookupError)     a name or object from which no environment can be created
├── RecordingError (ValueError)     a file is not a recording, or cannot be read here
├── CheckpointError (ValueError)    a saved policy, training run or league is missing or cannot be loaded
├── KernelError (RuntimeError)      a kernel cannot be compiled, or does not match its schema or its reference
├── MissingExtra (ImportError)      an optional package is not installed
├── PlatformError (OSError)         the platform cannot provide what pufferlib needs
└── WorkerError (RuntimeError)      an environment or a task raised an exception, or its process died

Each message states what happened and the values involved, and suggests a remedy where one is known. Each class is also
a subclass of the builtin exception that callers would catch.
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
        """Reword the message for callers of ``make`` if it is about arguments of ``wrap``."""
        if self._for_make:
            self.args = (self._for_make,)


class SpaceError(PufferError, TypeError):
    """Raised if a space cannot be flattened, or a sample does not fit its space."""


class PlanError(PufferError, ValueError):
    """Raised if counts or arguments, such as those of ``make``, are invalid or incompatible."""


class ActionError(PufferError, ValueError):
    """Raised if actions have a wrong shape, dtype, number of rows, or value; they have not been sent."""


class CallError(PufferError, RuntimeError):
    """Raised if a call is out of order, such as ``recv`` before ``async_reset``; the call has changed nothing."""


class ClosedError(CallError):
    """Raised if the object has been closed."""


class RecvTimeout(PufferError, TimeoutError):
    """Raised if no batch arrives within ``recv(timeout=…)``. No data is lost; ``recv`` may be called again."""


class PopulationError(PufferError, RuntimeError):
    """Raised if more agents are alive than there are rows, a dead agent reappears, or an agent's type is unknown."""


class RegistryError(PufferError, LookupError):
    """Raised if no environment can be created from a name or object, or a "module:attribute" does not exist."""


class RecordingError(PufferError, ValueError):
    """Raised if a file is not a recording, cannot be read by this version, or lacks data that a replay needs."""


class CheckpointError(PufferError, ValueError):
    """Raised if a saved policy, training run or league cannot be loaded.

    The reason may be that it is missing, incomplete, invalid or untrusted, or that it does not fit its environment.
    """


class KernelError(PufferError, RuntimeError):
    """Raised if a kernel cannot be compiled, or does not match its schema or its reference."""


class MissingExtra(PufferError, ImportError):
    """Raised if an optional package is not installed; the message says how to install it where that is known."""


class PlatformError(PufferError, OSError):
    """Raised if the platform cannot provide what pufferlib needs.

    Examples are an unsupported system, a refused system call, and a Ray cluster or actor that does not answer. The
    message suggests a remedy where one is known.
    """


Kind = TypeVar("Kind", bound=PufferError)


def argument_error(kind: Callable[[str], Kind], text: Callable[[Callable[..., str], str], str]) -> Kind:
    """Return an error about arguments of ``wrap``; ``speak_of_make`` can reword its message for callers of ``make``.

    kind: the error class. text: a function of (written, within) that returns the message. ``written(max_length="…")``
    formats an argument as the caller would write it. ``within`` is text to put after an argument's bare name: " in
    wrap_kwargs" for callers of ``make``, else "".
    """

    def to_wrap(**values: str) -> str:
        return " and ".join(f"{name}={value}" for name, value in values.items())

    def to_make(**values: str) -> str:
        return f"wrap_kwargs={{{', '.join(f'{name!r}: {value or chr(0x2026)}' for name, value in values.items())}}}"

    error = kind(text(to_wrap, ""))
    error._for_make = text(to_make, " in wrap_kwargs")
    return error


class WorkerError(PufferError, RuntimeError):
    """Raised if an environment or a task raises an exception, or the process that runs it dies.

    env_id: the index of the environment that raised, or that a dead worker was stepping or resetting; None if unknown.
    worker: the worker's index; None if unknown. exitcode: the exit code of a dead worker, negative for a signal; None
    if it is unknown or the worker is alive. remote_traceback: the traceback as formatted in the worker; "" if the
    worker died.
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
