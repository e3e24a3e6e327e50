"""Backend: the interface between a VecEnv and whatever runs its workers: this process, other processes, or actors.

"How to write a backend" in docs/design.md shows one in a single file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from pufferlib.vectorization.core.messages import Call, EnvSpec, Message, Request, Reset, Sealed

__all__ = ["CLOSE_S", "SLICE_S", "Backend", "InPlace", "Remote", "Seals"]

CLOSE_S = 5.0  # by default, a worker gets this long to close its environments
SLICE_S = 0.1  # a wait ends after this long, to check for signals, deaths and a close by another thread


class Backend(ABC):
    """A set of workers, each with a share of the environments.

    A worker executes its requests in the order in which they were submitted. ``poll`` returns each worker's messages in
    the order in which they were sent; an environment's rows are written before its Done is returned.

    shares: the environments of each worker. reads_mailboxes: whether workers take steps from the ring's mailboxes, as
    processes/serve.py does, so that the compiled path may be used; steps on that path do not come through ``submit``.
    shared_memory: whether the workers need the slab in shared memory.
    in_process: whether the workers run in this process. watched: whether the VecEnv kills a worker whose step or reset
    exceeds its time limit; False if the backend enforces the limits itself. spin: how many times a wait for rows yields
    the core before it sleeps. interruptible: whether an exception raised now, such as KeyboardInterrupt, would lose
    nothing; if it is False, such an exception closes the VecEnv. Both the backend and the VecEnv set it.
    """

    shares: tuple[range, ...]
    reads_mailboxes = False
    shared_memory = False
    in_process = False
    watched = True
    spin = 0
    interruptible = False

    @abstractmethod
    def start(self, worker: int, env_spec: EnvSpec | None = None) -> int:
        """Start a worker, or replace one that has died; return its process id, or 0 if it has none on this machine.

        The worker's messages come through ``poll``; this method does not wait for them.

        env_spec: by default, the worker makes its environments at once and sends Ready, or Failed if one cannot be
            made. Given the environments' EnvSpec, it makes each environment at that environment's first reset, and need
            not send Ready.

        Raises PlatformError if the system refuses a resource, PlanError if the worker's task cannot be sent to it.
        """

    @abstractmethod
    def submit(self, requests: Mapping[int, Request]) -> None:
        """Send one request to each of several workers.

        requests: the requests, keyed by worker; the first request that a worker receives is an Attach. Raises CallError
        if any request cannot be serialized; then none is sent.
        """

    @abstractmethod
    def poll(self, timeout: float | None) -> list[Message]:
        """Return the messages that have arrived, after waiting up to timeout seconds (None: no limit) for the first."""

    @abstractmethod
    def kill(self, worker: int, cause: str) -> None:
        """Kill a worker, unless it is dead already; ``poll`` later returns its Died message, which states the cause.

        Workers that share a Ray actor die together. Raises PlanError if the backend cannot kill its workers.
        """

    @abstractmethod
    def close(self, grace_s: float = CLOSE_S) -> list[Message]:
        """Close all environments and end the workers, by force after grace_s seconds; return the last messages.

        It is safe to call this again, even after Ctrl-C has interrupted it. Afterwards only this method, ``kill``, and
        ``poll``, which then returns no messages, may be called.
        """


# Capabilities of some backends. A backend has a capability if it has all methods of the protocol.


@runtime_checkable
class InPlace(Protocol):
    """A backend whose only worker executes each request during ``submit``, so that no message comes later."""

    def player(self) -> Callable[[int], None]:
        """Return a function that steps all environments on the compiled path.

        Its argument is the index of the slab's block to which their rows are written.
        """


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
