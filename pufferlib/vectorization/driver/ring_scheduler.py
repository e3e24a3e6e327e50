"""RingScheduler: the scheduler of the compiled path, where rows arrive in shared memory without a message.

The compiled ``FastPath`` handles the plain case of ``send`` and ``recv``. This file handles resets and failures, on the
same shared words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pufferlib import _native
from pufferlib.layout.action_values import ActionValues
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.batch import Batch, Batches
from pufferlib.vectorization.core.infos import Infos
from pufferlib.vectorization.core.slab import Slab
from pufferlib.vectorization.driver.scheduler import FAILED, FLYING, READY, Gather, States, repeat_rows, write_crash

if TYPE_CHECKING:
    from pufferlib._native.fast_path import FastPath
    from pufferlib._native.ring import Ring

__all__ = ["RingScheduler"]

SYNCHRONOUS, ORDERED, FIRST_FINISHED = range(3)


class RingScheduler(States):
    """The counterpart of PortableScheduler for workers that commit rows to the ring.

    If batches are in the order of sending, or hold all environments, a failed environment keeps its slot, and the batch
    waits for its reset. In a pool, the other environments continue without it.
    """

    def __init__(
        self,
        slab: Slab,
        batches: Batches,
        ring: Ring,
        shares: Sequence[range],
        action_values: Sequence[ActionValues],
        collect: Callable[[list[tuple[int, int, bytes]]], bool],
        gather: Gather,
        dead: set[int],
        *,
        first_finished: bool,
        disabled: bool,
        spin: int,
        play: Callable[[int], None] | None,
        step: Callable[[Sequence[int], Sequence[int]], None],
        parent_times: Array,
    ) -> None:
        shape = slab.shape
        self._num_envs, self._block_size = shape.num_envs, shape.block_size
        self._slab, self._batches, self._ring, self._dead = slab, batches, ring, dead
        self.states = bytearray(shape.num_envs)
        self.overs = bytearray(shape.num_envs)
        self._lost: set[int] = set()  # READY environments whose worker has died since
        self._reserved: dict[int, int] = {}  # by env id: the slot that a failed environment keeps
        self._short: set[int] = set()  # blocks whose count a death may have left too low; their words are read instead
        self._held = False  # whether the fast path is disabled
        self.stuck_reason = ""  # why only a reset of all environments helps
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
            [worker for worker, share in enumerate(shares) for _ in share],
            slab,
            batches.lent,
            Batch,
            Infos,
            [values.check for values in action_values],
            collect,
            gather,
            None if batches.plain else batches.lend,
            play,
            step,
            spin,
            disabled,
            batches.copier,
            parent_times,
        )

    @property
    def batch(self) -> Batch | None:  # type: ignore[override]
        return self.fast_path.batch

    @property
    def last_ids(self) -> list[int] | None:  # type: ignore[override]
        return self.fast_path.last_ids

    @property
    def last_slots(self) -> Sequence[int]:
        """The slots of the last batch."""
        first = (self.fast_path.head - 1) % self._slab.shape.num_blocks * self._block_size
        return range(first, first + self._block_size)

    @property
    def num_coming(self) -> int:
        """The number of environments that were sent an action or reset and whose rows have not been received."""
        return self.fast_path.coming

    @property
    def num_ready(self) -> int:
        """The number of environments in ``num_coming`` that have finished."""
        return len(self.fast_path.landed())

    def is_settled(self) -> bool:
        """Return whether no environment is in flight and no worker has written rows that it has not counted yet."""
        if not self._short:
            return self.num_coming == int(self.fast_path.counted())
        live = set(range(self._slab.shape.num_workers)) - self._dead
        return self.num_coming == self.num_ready and all(self.fast_path.is_asleep(worker) for worker in live)

    def of_state(self, *states: int) -> list[int]:
        self._refresh()
        return super().of_state(*states)

    def _refresh(self) -> None:
        """Mark finished environments as READY, a state that the fast path does not maintain."""
        for env_id in self.fast_path.landed():
            self.states[env_id] = READY

    def coming_slots(self, env_ids: Sequence[int]) -> list[int]:
        """Return the slots of these environments' next rows."""
        fresh = iter(self.fast_path.coming_slots([env_id for env_id in env_ids if env_id not in self._reserved]))
        return [self._reserved[env_id] if env_id in self._reserved else next(fresh) for env_id in env_ids]

    def depart(self, env_ids: Iterable[int]) -> list[int]:
        """Mark environments as in flight; return the slots for their rows."""
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

    def fail(self, env_id: int, *, died: bool = False) -> None:
        """Mark an environment as failed: it raised, or its worker died. Rows that it wrote earlier remain valid."""
        self._refresh()
        state = self.states[env_id]
        if state == READY and (died or self._mode == FIRST_FINISHED):
            self._lost.add(env_id)
            self._clear_if_sound()
            return
        if state in (FLYING, READY):
            if state == READY:  # its infos cannot be read; without them its rows are invalid
                self._ring.revoke(self.fast_path.slot_of(env_id))
            self.fast_path.coming -= 1
            if self._mode == ORDERED:
                self._reserved[env_id] = self.fast_path.slot_of(env_id)
            if self._mode == FIRST_FINISHED and self.fast_path.claimed_slot(env_id) is not None:
                self.stuck_reason = "a worker died while it wrote rows of a batch; call reset"
        self.states[env_id] = FAILED

    def crash(self, env_id: int) -> None:
        """Write crash rows as the environment's answer, on behalf of its worker, which is dead or gave it up."""
        slot = self.fast_path.claimed_slot(env_id) if self._mode == FIRST_FINISHED else self.fast_path.slot_of(env_id)
        if slot is None:
            slot = self._ring.claim(env_id)
        write_crash(self._slab, slot)
        slab, agents_per_env = self._slab, self._slab.shape.agents_per_env
        slab.env_ids.reshape(-1)[slot] = env_id
        agents = slab.agent_ids.reshape(-1, agents_per_env)[slot]
        agents[...] = range(env_id * agents_per_env, (env_id + 1) * agents_per_env)
        self._ring.commit(slot, False, True)
        self.states[env_id] = READY

    def asked(self, worker: int, share: range) -> object:
        """Return a value that identifies a request which a worker has not begun, or None if there is none."""
        return self.fast_path.asked(worker)

    def hold(self, hold: bool) -> None:
        """Disable the fast path while some environments must not receive a plain step, or enable it again."""
        self._held = hold
        self._clear_if_sound()

    def mark_dirty(self) -> None:
        """Stop trusting the blocks' counts: a worker has died, perhaps between writing rows and counting them."""
        self._short = set(range(self._slab.shape.num_blocks))
        self._clear_if_sound()

    def _repair_counts(self, head: int) -> None:
        """Repair the count of the block that was received last, if no worker can still add to it."""
        if self._ring.repair_count(head):
            self._short.discard(head % self._slab.shape.num_blocks)
            self._clear_if_sound()

    def _clear_if_sound(self) -> None:
        self.fast_path.clear = not (self._lost or self._short or self._held)

    def has_news(self) -> bool:
        """Return whether messages have arrived that must be handled before the rows are received."""
        return self.fast_path.has_news()

    def wants_a_look(self) -> bool:
        """Return whether it is time to check for dead workers, although rows keep arriving."""
        return self.fast_path.wants_a_look()

    def look(self) -> None:
        """Record which messages have arrived; only newer ones end a wait."""
        self.fast_path.look()

    def await_block(self, timeout_s: float) -> None:
        """Wait a bounded time for the next block to be full, or for an urgent message."""
        if self._short:
            if not self.fast_path.is_full(True):  # rows from before ``look`` would not end the wait
                self.fast_path.await_row(timeout_s)
        else:
            self.fast_path.await_block(timeout_s)

    def await_settling(self, timeout_s: float) -> None:
        """Wait a bounded time for a row, unless everything is settled."""
        if not self.is_settled():
            self.fast_path.await_row(timeout_s)

    def await_row(self, timeout_s: float) -> None:
        """Wait a bounded time for any row, or for an urgent message."""
        self.fast_path.await_row(timeout_s)

    def arrive(self, env_ids: Iterable[int], overs: Iterable[bool]) -> None:
        """Raise AssertionError, because on the compiled path rows arrive without a message."""
        raise AssertionError(f"a worker announced the rows of environments {list(env_ids)}")

    def obstacle(self) -> str:
        """Return why the next batch can never be full and what the user can do; "" if it can."""
        if self.stuck_reason:
            return self.stuck_reason
        block = self.fast_path.head % self._slab.shape.num_blocks
        missing = [env_id for env_id, slot in self._reserved.items() if slot // self._block_size == block]
        if missing:
            return f"the next batch waits for environments {missing}, which failed; call async_reset(env_ids={missing})"
        return ""

    def fill(self, env_id: int) -> None:
        """Repeat a waiting environment's rows from the last batch in the next one."""
        (slot,) = self.fast_path.depart([env_id])
        repeat_rows(self._slab, (slot - self._block_size) % self._slab.shape.num_slots, slot)
        self._ring.commit(slot, bool(self.overs[env_id]))

    def batch_is_ready(self) -> bool:
        """Return whether all environments of the next batch have arrived."""
        return self.fast_path.is_full(bool(self._short))

    def land(self, gather: Gather) -> Batch:
        """Return the next batch and mark its environments as waiting, or as failed if their workers have died."""
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

    def drop(self) -> None:
        """Discard the rows that have arrived, before their environments are reset. Requires ``is_settled``."""
        self._lost.clear()
        self._reserved.clear()
        self._short.clear()
        self.stuck_reason = ""
        self._ring.rewind(self.fast_path.head)
        self.fast_path.skip(self.fast_path.head)
        self._clear_if_sound()
