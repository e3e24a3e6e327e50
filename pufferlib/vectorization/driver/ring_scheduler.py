"""RingScheduler: the scheduler of the compiled path, where rows arrive in shared memory without a message.

The compiled ``FastPath`` handles the plain case of ``send`` and ``recv``. This file handles resets and failures, in the
same shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pufferlib import _native
from pufferlib.errors import CallError
from pufferlib.layout.action_values import ActionValues
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.backend import Backend
from pufferlib.vectorization.core.batch import Batch, Batches
from pufferlib.vectorization.core.infos import Infos
from pufferlib.vectorization.core.messages import Message
from pufferlib.vectorization.core.slab import Slab
from pufferlib.vectorization.driver.pending_infos import PendingInfos
from pufferlib.vectorization.driver.scheduler import FAILED, FLYING, READY, Scheduler, crash_rows
from pufferlib.vectorization.driver.workers import Workers

if TYPE_CHECKING:
    from pufferlib._native.fast_path import FastPath
    from pufferlib._native.ring import Ring

__all__ = ["RingScheduler"]

SYNCHRONOUS, ORDERED, FIRST_FINISHED = range(3)


class RingScheduler(Scheduler):
    """The scheduler of the compiled path, where workers commit rows to the ring.

    If batches are in the order of sending, or hold all environments, a failed environment keeps its slot, and the batch
    waits until that environment is reset. If batches hold the first environments to finish, the batches that follow are
    formed without the failed environment.

    play: the result of ``InPlace.player``; None for any other backend.
    """

    def __init__(
        self,
        slab: Slab,
        batches: Batches,
        infos: PendingInfos,
        ring: Ring,
        workers: Workers,
        action_values: Sequence[ActionValues],
        *,
        first_finished: bool,
        disabled: bool,
        spin: int,
        play: Callable[[int], None] | None,
        parent_times: Array,
    ) -> None:
        shape = slab.shape
        self._block_size = shape.block_size
        self._slab, self._ring, self._dead = slab, ring, workers.dead
        self.states = bytearray(shape.num_ids)
        self.overs = bytearray(shape.num_ids)
        self._lost: set[int] = set()  # READY environments whose worker has died since
        self._reserved: dict[int, int] = {}  # by env id: the slot that a failed environment keeps
        self._short: set[int] = set()  # blocks whose count a death may have left too low; their words are read instead
        self._num_seen = 0  # rows that have arrived and are not received, when the caller last read which
        self._held = False
        self.stuck_reason = ""
        synchronous = shape.block_size == shape.num_envs
        self._mode = SYNCHRONOUS if synchronous else FIRST_FINISHED if first_finished else ORDERED
        if synchronous:
            slab.name_rows()
        ring.rewind(0)
        self.fast_path: FastPath = _native.fast_path.FastPath(
            ring,
            self._mode,
            self.states,
            self.overs,
            workers.worker_of,
            slab,
            batches.lent,
            Batch,
            Infos,
            [values.check for values in action_values],
            infos.collect,
            infos.take,
            None if batches.plain else batches.lend,
            play,
            workers.step,
            spin,
            disabled,
            batches.copier,
            parent_times,
            workers.call_guard,
        )

    @property
    def batch(self) -> Batch | None:  # type: ignore[override]
        return self.fast_path.batch

    @property
    def last_ids(self) -> list[int] | None:  # type: ignore[override]
        return self.fast_path.last_ids

    @property
    def last_slots(self) -> Sequence[int]:  # type: ignore[override]
        first = (self.fast_path.head - 1) % self._slab.shape.num_blocks * self._block_size
        return range(first, first + self._block_size)

    @property
    def num_coming(self) -> int:  # type: ignore[override]
        return self.fast_path.coming

    @property
    def num_ready(self) -> int:  # type: ignore[override]
        return len(self.fast_path.landed())

    @property
    def in_flight(self) -> list[int]:  # type: ignore[override]
        self._refresh()
        return [env_id for env_id, state in enumerate(self.states) if state == FLYING]

    @property
    def settled(self) -> bool:  # type: ignore[override]
        return self._is_quiet() and not self.fast_path.has_news()

    def _is_quiet(self) -> bool:
        """Return whether no environment is in flight and no worker has written rows that it has not counted yet."""
        self._num_seen = self.fast_path.counted()
        if not self._short:
            return self.num_coming == self._num_seen
        live = set(range(self._slab.shape.num_workers)) - self._dead
        return self.num_coming == self.num_ready and all(self.fast_path.is_asleep(worker) for worker in live)

    @property
    def overdue(self) -> bool:  # type: ignore[override]
        return self.fast_path.wants_a_look()

    @property
    def held(self) -> bool:
        return self._held

    @held.setter
    def held(self, held: bool) -> None:
        self._held = held
        self._clear_if_sound()

    def next_slots(self, env_ids: Sequence[int]) -> list[int]:
        fresh = iter(self.fast_path.coming_slots([env_id for env_id in env_ids if env_id not in self._reserved]))
        return [self._reserved[env_id] if env_id in self._reserved else next(fresh) for env_id in env_ids]

    def mark_sent(self, env_ids: Sequence[int]) -> list[int]:
        slots = []
        for env_id in env_ids:
            slot = self._reserved.pop(env_id, None)
            if slot is None:
                slots += self.fast_path.depart([env_id])
            else:
                self.states[env_id] = FLYING
                self.fast_path.coming += 1
                slots.append(slot)
        return slots

    def arrive(self, env_ids: Sequence[int], overs: Iterable[bool]) -> None:
        for env_id, over in zip(env_ids, overs, strict=True):
            self._ring.commit(self.fast_path.slot_of(env_id), over)

    def crash(self, env_ids: Iterable[int], *, died: bool = False, over: bool = False) -> list[int]:
        if died:
            self._mark_dirty()
        flying = sorted(set(env_ids).intersection(self.in_flight))
        for env_id in flying:
            self._crash(env_id, over)
        return flying

    def _crash(self, env_id: int, over: bool) -> None:
        """Write and commit crash rows for an environment whose worker is dead or has given the environment up."""
        slot = self.fast_path.claimed_slot(env_id) if self._mode == FIRST_FINISHED else self.fast_path.slot_of(env_id)
        if slot is None:
            slot = self._ring.claim(env_id)
        crash_rows(self._slab, slot)
        slab, agents_per_env = self._slab, self._slab.shape.agents_per_env
        slab.env_ids.reshape(-1)[slot] = env_id
        agents = slab.agent_ids.reshape(-1, agents_per_env)[slot]
        agents[...] = range(env_id * agents_per_env, (env_id + 1) * agents_per_env)
        self._ring.commit(slot, over, True)
        self.states[env_id] = READY

    def fail(self, env_ids: Iterable[int], *, died: bool = False) -> list[int]:
        if died:
            self._mark_dirty()
        self._refresh()
        return [env_id for env_id in env_ids if self._fail(env_id, died)]

    def _fail(self, env_id: int, died: bool) -> bool:
        state = self.states[env_id]
        if state == READY and (died or self._mode == FIRST_FINISHED):
            self._lost.add(env_id)
            self._clear_if_sound()
            return False
        if state in (FLYING, READY):
            if state == READY:  # its infos cannot be read; without them its rows are invalid
                self._ring.revoke(self.fast_path.slot_of(env_id))
            self.fast_path.coming -= 1
            if self._mode == ORDERED:
                self._reserved[env_id] = self.fast_path.slot_of(env_id)
            if self._mode == FIRST_FINISHED and self.fast_path.claimed_slot(env_id) is not None:
                self.stuck_reason = "a worker died while it wrote rows of a batch; call reset"
        self.states[env_id] = FAILED
        return True

    def unbegun(self, worker: int, share: range) -> object:
        return self.fast_path.asked(worker)

    def _mark_dirty(self) -> None:
        """Stop trusting the blocks' counts: a worker has died, perhaps between writing rows and counting them."""
        self._short = set(range(self._slab.shape.num_blocks))
        self._clear_if_sound()

    def _refresh(self) -> None:
        """Mark the environments that have finished as READY."""
        self._num_seen = self.fast_path.counted()
        for env_id in self.fast_path.landed():  # the fast path does not maintain this state
            self.states[env_id] = READY

    def _repair_counts(self, head: int) -> None:
        """Repair the count of the block that was received last, if no worker can still add to it."""
        if self._ring.repair_count(head):
            self._short.discard(head % self._slab.shape.num_blocks)
            self._clear_if_sound()

    def _clear_if_sound(self) -> None:
        self.fast_path.clear = not (self._lost or self._short or self._held)

    def wait(self, backend: Backend, timeout_s: float, *, batch: bool) -> list[Message]:
        fast_path = self.fast_path
        fast_path.look()  # only what arrives from now on ends the wait
        messages = backend.poll(0)
        if messages or timeout_s <= 0:
            return messages
        backend.interruptible = True
        if not batch:
            num_seen, self._num_seen = self._num_seen, fast_path.counted()
            if num_seen == self._num_seen:  # otherwise rows came between the caller's reading and the look
                fast_path.await_row(timeout_s)
        elif not self._short:
            fast_path.await_block(timeout_s)
        elif not fast_path.is_full(True):  # rows from before the look would not end the wait
            fast_path.await_row(timeout_s)
        backend.interruptible = False
        return backend.poll(0)

    def batch_ready(self) -> bool:
        fast_path = self.fast_path
        if fast_path.is_full(bool(self._short)):
            return not fast_path.has_news()
        obstacle = self._obstacle()
        if obstacle:
            raise CallError(f"recv could never return: {obstacle}")
        return False

    def _obstacle(self) -> str:
        """Return why the next batch can never be full and what the user can do; "" if it can."""
        if self.stuck_reason:
            return self.stuck_reason
        block = self.fast_path.head % self._slab.shape.num_blocks
        missing = [env_id for env_id, slot in self._reserved.items() if slot // self._block_size == block]
        if missing:
            return f"the next batch waits for environments {missing}, which failed; call async_reset(env_ids={missing})"
        return ""

    def take_batch(self) -> Batch:
        self.fast_path.land()
        if self._lost:
            lost = self._lost.intersection(self.fast_path.last_ids or ())
            for env_id in lost:
                self.states[env_id] = FAILED
            self._lost -= lost
            self._clear_if_sound()
        if self._short:
            self._repair_counts(self.fast_path.head - 1)
        batch = self.fast_path.batch
        assert batch is not None
        return batch

    def reset(self) -> None:
        self._lost.clear()
        self._reserved.clear()
        self._short.clear()
        self.stuck_reason = ""
        self._ring.rewind(self.fast_path.head)
        self.fast_path.skip(self.fast_path.head)
        self._clear_if_sound()
