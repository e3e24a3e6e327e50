"""PufferLib's exceptions, which are also errors of ``pufferlib.errors``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pufferlib.errors import PufferError, WorkerError

__all__ = ["APIUsageError", "EnvironmentSetupError", "InvalidAgentError", "raises_usage_errors"]

Function = TypeVar("Function", bound=Callable[..., Any])


class APIUsageError(PufferError, RuntimeError):
    """Raised if PufferLib's interface is used in a wrong way. message: the text of the error."""

    def __init__(self, message: str = "API usage error.") -> None:
        super().__init__(message)
        self.message = message


class InvalidAgentError(PufferError, ValueError):
    """Raised for an agent that an environment does not have. agents: the agents that it has."""

    def __init__(self, agent_id: object, agents: Iterable[object]) -> None:
        self.agent_id, self.agents = agent_id, list(agents)
        super().__init__(f"there is no agent {agent_id!r}; the agents are {self.agents}")

    def __reduce__(self) -> Any:
        return type(self), (self.agent_id, self.agents)


class EnvironmentSetupError(PufferError, RuntimeError):
    """Raised if an environment's package cannot be set up. e: the cause. package: the package's name."""

    def __init__(self, e: object, package: str) -> None:
        self.reason, self.package = str(e), package
        super().__init__(f"{package} could not be set up ({e}); install what it requires")

    def __reduce__(self) -> Any:
        return type(self), (self.reason, self.package)


@functools.cache
def _usage_error(kind: Any) -> type[Exception]:
    """Return a subclass of APIUsageError that is also a subclass of an error class of pufferlib."""
    members = {"__module__": __name__, "__reduce__": lambda error: (_remade, (kind, str(error)))}
    return type(kind.__name__, (APIUsageError, kind), members)


def _remade(kind: Any, message: str) -> Exception:
    return _usage_error(kind)(message)


def raises_usage_errors(function: Function) -> Function:
    """Return the function with pufferlib's errors turned into APIUsageErrors, which keep their class as well.

    APIUsageErrors and WorkerErrors pass unchanged. The cause of a WorkerError is raised in its place if it is an
    APIUsageError, or if the function is a method of an object with a true attribute ``raises_causes``.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (APIUsageError, EnvironmentSetupError, InvalidAgentError):
            raise
        except WorkerError as error:
            cause = error.__cause__
            in_process = bool(args) and getattr(args[0], "raises_causes", False)
            if cause is not None and (in_process or isinstance(cause, APIUsageError)):
                raise cause from None
            raise
        except PufferError as error:
            kind: Any = type(error)
            raise _usage_error(kind)(str(error)) from error

    return call  # type: ignore[return-value]
