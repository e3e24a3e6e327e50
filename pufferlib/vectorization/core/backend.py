"""Backend: the interface between a VecEnv and whatever runs its workers: this process, other processes, or actors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pufferlib import _native
from pufferlib.util.annotations import Guard
from pufferlib.vectorization.core.messages import Call, Died, EnvSpec, Failed, Message, Reset
from pufferlib.vectorization.core.plan import available_cpus
from pufferlib.vectorization.core.sharing import HeldEnv
from pufferlib.vectorization.core.slab import Slab, SlabShape

if TYPE_CHECKING:
    from pufferlib._native.ring import Ring

__all__ = ["CLOSE_S", "SLICE_S", "Backend", "Sealed"]

CLOSE_S = 5.0  # a worker gets this long to close its environments
SLICE_S = 0.1  # a wait ends after this long, to check for signals, deaths and a close by another thread

Sealed = object  # a request as a backend sends it


class Backend(ABC):
    """A set of workers, each with a share of the environments.

    A worker executes its requests in the order in which they were made. ``poll`` returns each worker's answers in the
    order in which they were sent; an environment's rows are written before its Done is returned.

    shares: the environments of each worker. dead: the workers that have died and have not been revived. watched:
    whether a wait looks for steps that take too long.
    """

    shares: tuple[range, ...]
    dead: set[int]
    watched = True
    play: Callable[[int], None] | None = None  # in this process, on the compiled path: step all into a block
    spin: int  # how many times to yield the core before sleeping
    interruptible = False  # True in a wait: nothing is half done, so Ctrl-C interrupts no change of state
    call_guard: Guard  # the VecEnv's CallGuard; a private one until there is a VecEnv
    closing = False  # tells a thread in a wait to leave it
    left_open = False  # ``close`` gave up waiting for a thread in a step; another close continues

    near = False  # whether the environments are in this process
    held_envs: Mapping[int, HeldEnv]  # after ``start``, by env id: environments that their creators hold
    refusal: Failed | Died | None = None  # the message of the WorkerError that ``start`` raised

    @property
    def compiled(self) -> bool:
        """Whether workers use the compiled path to write their rows to the slab."""
        return _native.available

    @abstractmethod
    def start(self) -> EnvSpec:
        """Make all environments and return their EnvSpec.

        If the tasks already have an EnvSpec, each environment is made at its first reset instead.
        Raises WorkerError if an environment cannot be made; the backend is then closed.
        """

    @abstractmethod
    def attach(self, shape: SlabShape) -> tuple[Slab, Ring | None]:
        """Make the slab and pass it to the workers. Return it and its ring, which is None on the portable path."""

    @abstractmethod
    def step(self, env_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Start a step of these environments; each writes its rows to its slot."""

    @abstractmethod
    def seal(self, request: Reset | Call) -> Sealed:
        """Serialize a request for ``send``. Raises CallError if that fails, before anything is sent."""

    @abstractmethod
    def send(self, worker: int, sealed: Sealed) -> None:
        """Send one worker a request to reset or call environments of its share."""

    def send_each(self, sealed: Mapping[int, Sealed]) -> None:
        """Send several workers their requests. sealed: the requests, keyed by worker."""
        for worker, request in sealed.items():
            self.send(worker, request)

    @abstractmethod
    def pids(self) -> list[int]:
        """Return the process id of each worker, or 0 for a worker that shares another process."""

    @abstractmethod
    def poll(self, timeout: float | None) -> list[Message]:
        """Return the messages that have arrived, waiting up to timeout seconds (None: forever) for the first."""

    def fetch_times(self) -> None:
        """Copy the workers' timing counters into the slab."""
        return  # workers that share the slab write there

    def cores(self) -> int:
        """Return the number of CPU cores that the workers may keep busy."""
        return available_cpus()

    @abstractmethod
    def restart(self, worker: int) -> None:
        """Restart a dead worker without waiting for it; a Reset makes each of its environments again.

        Raises PlatformError if the system refuses to start a process, PlanError if the task cannot be sent to it. In
        both cases the worker stays dead.
        """

    def revive(self) -> None:
        """Restart all dead workers; see ``restart``."""
        for worker in sorted(self.dead):
            self.restart(worker)

    @abstractmethod
    def kill(self, worker: int, cause: str) -> None:
        """Kill a worker; ``poll`` later returns its Died message, with this cause."""

    @abstractmethod
    def close(self, grace_s: float = CLOSE_S) -> list[Message]:
        """Close all environments and end the workers, by force after grace_s; return the last messages.

        A call in progress in another thread first raises ClosedError there. It is safe to call this again, even after
        Ctrl-C has interrupted it.
        """
