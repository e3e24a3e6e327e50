"""Scheduler: an interface that tracks each environment's state between send and recv and chooses the next batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from pufferlib.vectorization.core.backend import Backend
from pufferlib.vectorization.core.batch import Batch
from pufferlib.vectorization.core.call_errors import FAILED, FLYING, NEW, READY, WAITING
from pufferlib.vectorization.core.messages import Message
from pufferlib.vectorization.core.slab import Slab

if TYPE_CHECKING:
    from pufferlib._native.fast_path import FastPath

__all__ = ["FAILED", "FLYING", "NEW", "READY", "WAITING", "Scheduler", "crash_rows", "repeat_rows"]


class Scheduler(ABC):
    """An interface that records every environment's state and chooses the finished environments of the next batch.

    states: for each environment NEW (never reset), WAITING (its rows were received), FLYING (an action or reset was
        sent), READY (its rows are written) or FAILED (it raised or its worker died; only a reset helps).
    in_flight: the FLYING environments; on the compiled path, reading this first marks the finished environments as
        READY.
    overs: for each environment, 1 if its last rows to arrive ended an episode.
    batch: the last batch, None before the first.
    last_ids: the environments of the last batch, None before the first.
    last_slots: the slots of the environments in last_ids.
    num_coming: the number of environments that were sent an action or reset and whose rows have not been received.
    num_ready: the number of environments counted in num_coming that have finished.
    settled: whether no environment is in flight, and every message that came with rows has been handled.
    overdue: whether it is time to look for dead workers, even while rows keep arriving.
    held: whether some environments must not receive a plain step; while it is True, the fast path is disabled.
    stuck_reason: why only a reset of all environments helps, or "".
    fast_path: the compiled FastPath; None on the portable path.
    withheld: the environments in flight whose actions no worker has been given yet; a Quota sets it.
    """

    states: bytearray
    in_flight: list[int]
    overs: bytearray
    batch: Batch | None
    last_ids: list[int] | None
    last_slots: Sequence[int]
    num_coming: int
    num_ready: int
    settled: bool
    overdue: bool
    held: bool
    stuck_reason: str
    fast_path: FastPath | None
    withheld: Collection[int] = ()

    @abstractmethod
    def next_slots(self, env_ids: Sequence[int]) -> list[int]:
        """Return the slots of these environments' next rows, without changing anything."""

    @abstractmethod
    def mark_sent(self, env_ids: Sequence[int]) -> list[int]:
        """Mark environments as in flight; return the slots for their rows."""

    @abstractmethod
    def arrive(self, env_ids: Sequence[int], overs: Iterable[bool]) -> None:
        """Mark environments in flight as finished: their rows are written. overs: whether their episodes are over.

        On the compiled path, workers do this themselves, in shared memory, for the rows that they write.
        """

    @abstractmethod
    def crash(self, env_ids: Iterable[int], *, died: bool = False, over: bool = False) -> list[int]:
        """Write crash rows for all of these environments that are in flight, and mark these as finished.

        Return the ids of the environments that were in flight. died: whether their worker has died, perhaps between
        writing rows and announcing them. over: the value of ``overs`` for the rows.
        """

    @abstractmethod
    def fail(self, env_ids: Iterable[int], *, died: bool = False) -> list[int]:
        """Mark environments as failed, and return the ids of those marked at once.

        An environment that has finished may be left out; it is then marked when its rows are received. died: see
        ``crash``.
        """

    @abstractmethod
    def unbegun(self, worker: int, share: range) -> object:
        """Return a value that identifies a request which a worker may not have begun, or None if there is none."""

    @abstractmethod
    def wait(self, backend: Backend, timeout_s: float, *, batch: bool) -> list[Message]:
        """Wait a bounded time for a message, or, on the compiled path, for rows; return the messages that arrived.

        batch: whether rows end the wait only if they complete the next batch. If not, so does any row that has arrived
        since the caller last read ``in_flight`` or ``settled``.
        """

    @abstractmethod
    def batch_ready(self) -> bool:
        """Return whether the next batch is complete, and every message that came with it has been handled.

        Raises CallError if it can never be complete.
        """

    @abstractmethod
    def take_batch(self) -> Batch:
        """Return the next batch, and mark its environments as waiting.

        Environments that ``fail`` left out because they had finished are now marked as failed instead.
        """

    @abstractmethod
    def reset(self) -> None:
        """Discard the rows that have arrived, before all environments are reset. Requires ``settled``."""


def crash_rows(slab: Slab, slot: int) -> None:
    """Write rows that end a lost environment's episode: zeros, truncated, with mask False."""
    rows = slab.rows(slot)
    for array in rows[:5]:
        array[...] = 0
    rows.truncations[...] = True


def repeat_rows(slab: Slab, old: int, new: int) -> None:
    """Copy the rows of one slot to another, with mask False."""
    old_rows, new_rows = slab.rows(old), slab.rows(new)
    for old_array, new_array in zip(old_rows[:4], new_rows[:4], strict=True):
        new_array[...] = old_array
    new_rows.masks[...] = False
