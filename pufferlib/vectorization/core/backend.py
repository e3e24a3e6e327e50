"""The seam between a VecEnv and whatever runs its workers: this process, other processes, actors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pufferlib import _native
from pufferlib.vectorization.core.messages import Call, EnvSpec, Reset
from pufferlib.vectorization.core.plan import available_cpus
from pufferlib.vectorization.core.sharing import Found
from pufferlib.vectorization.core.slab import Slab, SlabShape

__all__ = ["CLOSE_S", "SLICE_S", "Backend"]

CLOSE_S = 5.0  # a worker gets this long to close its environments
SLICE_S = 0.1  # waits are no longer at a time, so that signals, deaths and a close by another thread are seen


class Backend(ABC):
    """Workers, each with a share of the environments.

    Requests of one worker are done in the order in which they were made. Answers come from ``poll`` in the order in
    which each worker gave them, an environment's rows being written before its Done is seen.

    shares: the environments of each worker. dead: the workers that have died and not been revived. watched: whether
    whoever waits is to look for steps that take too long.
    """

    shares: tuple[range, ...]
    dead: set[int]
    watched = True
    play: Callable[[int], None] | None = None  # on the compiled path, in this process: step all into a block
    spin: int  # how often to yield the core before sleeping
    interruptible = False  # True while nothing is half done, so that Ctrl-C tears nothing: in a wait
    call_guard: Any  # whose it is to use the VecEnv; a CallGuard of its own until there is one
    closing = False  # whoever is in a wait is to leave it
    left_open = False  # ``close`` has given up waiting for a thread that is in a step; another close goes on

    near = False  # environments are in this process
    found: Mapping[int, Found]  # after ``start``: environments that their creators hold, and where
    refusal: Any = None  # the message behind the WorkerError that ``start`` has raised

    @property
    def compiled(self) -> bool:
        """Whether workers write their rows to the slab on the compiled path."""
        return _native.available

    @abstractmethod
    def start(self) -> EnvSpec:
        """Make all environments, unless their tasks have a face: then each is made when it is reset.

        Raises WorkerError where one can't be made; then the backend is closed.
        """

    @abstractmethod
    def attach(self, shape: SlabShape) -> tuple[Slab, Any]:
        """Make the slab, give it to the workers, and return it, with its ring on the compiled path (else None)."""

    @abstractmethod
    def step(self, env_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Have these environments play their actions; the rows of each go to its slot."""

    @abstractmethod
    def step_all(self, buffer_index: int) -> None:
        """On the portable path: have all environments play their actions; their rows go to a lap of the slab."""

    @abstractmethod
    def all_played(self, timeout_s: float) -> bool:
        """Wait a little for all workers to answer ``step_all`` with Played.

        False if they do not in time, or if anything else has come; then ``poll`` returns all that has.
        """

    @abstractmethod
    def seal(self, request: Reset | Call) -> Any:
        """Return a request as ``send`` takes it. Raises CallError if it cannot be sent, before anything is."""

    @abstractmethod
    def send(self, worker: int, sealed: Any) -> None:
        """Have one worker reset or call environments of its share."""

    def send_each(self, sealed: Mapping[int, Any]) -> None:
        """``send`` to several workers what each is to do."""
        for worker, request in sealed.items():
            self.send(worker, request)

    @abstractmethod
    def pids(self) -> list[int]:
        """Return the process of each worker, 0 for one that has none of its own."""

    @abstractmethod
    def poll(self, timeout: float | None) -> list[Any]:
        """Return messages, waiting up to timeout seconds (None: for ever) for the first."""

    def fetch_times(self) -> None:
        """Have the slab hold what workers have noted of times."""
        return  # it does by itself, where they share it

    def cores(self) -> int:
        """Return how many cores workers may keep busy."""
        return available_cpus()

    @abstractmethod
    def restart(self, worker: int) -> None:
        """Start a worker that died again, without waiting for it; a Reset makes each of its environments anew.

        Raises PlatformError where the system has no room for a process, PlanError where it cannot be told what to make;
        then the worker stays dead.
        """

    def revive(self) -> None:
        """Start again all workers that died, as ``restart``."""
        for worker in sorted(self.dead):
            self.restart(worker)

    @abstractmethod
    def kill(self, worker: int, cause: str) -> None:
        """Kill a worker; its Died message comes in time, and tells the cause."""

    @abstractmethod
    def recover(self) -> list[int]:
        """Forget all that is under way, which Ctrl-C may have torn; return the environments that had to be new."""

    @abstractmethod
    def close(self, grace_s: float = CLOSE_S) -> list[Any]:
        """Close all environments and end the workers, by force after grace_s; return the last messages.

        A call that another thread is in raises ClosedError there first. Safe to call again, and after Ctrl-C has ended
        it in the middle.
        """
