"""Backend: the interface between a VecEnv and whatever runs its workers: this process, other processes, or actors.

docs/design.md, "How to write a backend", shows one in a single file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from pufferlib import _native
from pufferlib.vectorization.core.messages import Call, EnvSpec, Message, Request, Reset, Sealed

__all__ = ["CLOSE_S", "SLICE_S", "Backend", "InPlace", "Remote", "Seals"]

CLOSE_S = 5.0  # a worker gets this long to close its environments
SLICE_S = 0.1  # a wait ends after this long, to check for signals, deaths and a close by another thread


class Backend(ABC):
    """A set of workers, each with a share of the environments.

    A worker executes its requests in the order in which they were submitted. ``poll`` returns each worker's messages in
    the order in which they were sent; an environment's rows are written before its Done is returned.

    shares: the environments of each worker. shared_memory: whether the workers need the slab in shared memory.
    in_process: whether the workers run in this process. watched: whether a worker whose step exceeds its time limit is
    killed by the VecEnv; False if the backend sees to that. spin: how many times a wait for rows yields the core before
    it sleeps. interruptible: True during a wait in ``poll`` or ``submit`` in which an exception, such as Ctrl-C, loses
    nothing; the VecEnv resets it.
    """

    shares: tuple[range, ...]
    shared_memory = False
    in_process = False
    watched = True
    spin = 0
    interruptible = False

    @property
    def compiled(self) -> bool:
        """Whether workers use the compiled path to write their rows to the slab."""
        return _native.available

    @abstractmethod
    def start(self, worker: int, env_spec: EnvSpec | None = None) -> int:
        """Start a worker, or replace one that has died, without waiting; return its process id, or 0 if it has none.

        env_spec: None lets the worker make its environments now and send Ready, or Failed. Otherwise it is the EnvSpec
            of the other workers: each environment is made by its first reset, and no Ready is expected.

        Raises PlatformError if the system refuses a resource, PlanError if the worker's task cannot be sent to it.
        """

    @abstractmethod
    def submit(self, requests: Mapping[int, Request]) -> None:
        """Send several workers a request each. requests: by worker; a worker's first is an Attach.

        Raises CallError if a request cannot be serialized; then none is sent.
        """

    @abstractmethod
    def poll(self, timeout: float | None) -> list[Message]:
        """Return the messages that have arrived, waiting up to timeout seconds (None: forever) for the first."""

    @abstractmethod
    def kill(self, worker: int, cause: str) -> None:
        """Kill a worker; ``poll`` later returns its Died message, with this cause. Does nothing if it is dead.

        Raises PlanError if the backend cannot kill a single worker.
        """

    @abstractmethod
    def close(self, grace_s: float = CLOSE_S) -> list[Message]:
        """Close all environments and end the workers, by force after grace_s; return the last messages.

        It is safe to call this again, even after Ctrl-C has interrupted it. No other method is called afterwards.
        """


# Capabilities: what only some backends can do. A backend has one if it has its methods.


@runtime_checkable
class InPlace(Protocol):
    """A backend whose only worker executes each request during ``submit``, so that no message comes later."""

    def player(self) -> Callable[[int], None]:
        """Return the function that steps all environments, on the compiled path, into a block of the slab."""


@runtime_checkable
class Seals(Protocol):
    """A backend that serializes requests, and can do so before they are submitted."""

    def seal(self, request: Reset | Call) -> Sealed:
        """Serialize a request for ``submit``. Raises CallError if that fails."""


@runtime_checkable
class Remote(Protocol):
    """A backend whose workers do not share the slab, and may be on other machines."""

    def fetch_times(self) -> None:
        """Copy the workers' timing counters into the slab."""

    def cores(self) -> int:
        """Return the number of CPU cores that the workers may keep busy."""
