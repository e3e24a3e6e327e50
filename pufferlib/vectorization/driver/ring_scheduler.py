"""RingScheduler: the scheduler of the compiled path, where rows arrive in shared memory without a message.

The plain case is ``send`` and ``recv`` of the compiled ``FastPath``. This file has the rest, resets and failures, over
the same shared words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pufferlib import _native
from pufferlib.layout.action_values import ActionValues
from pufferlib.vectorization.core.batch import Batch, Batches
from pufferlib.vectorization.core.infos import Infos
from pufferlib.vectorization.core.slab import Slab
from pufferlib.vectorization.driver.scheduler import FAILED, FLYING, READY, Gather, States, repeat_rows, write_crash

__all__ = ["RingScheduler"]

SYNCHRONOUS, ORDERED, FIRST_FINISHED = range(3)


class RingScheduler(States):
    """As PortableScheduler, for workers that commit rows to the ring.

    Where batches come in the order of sending, or hold everything, an environment that fails keeps its slot: the batch
    waits for its reset. In a pool the others go on without it.
    """

    def __init__(
        self,
        slab: Slab,
        batches: Batches,
        ring: Any,
        shares: Sequence[range],
        action_values: Sequence[ActionValues],
        collect: Callable[[list[Any]], bool],
        gather: Gather,
        dead: set[int],
        *,
        first_finished: bool,
        disabled: bool,
        spin: int,
        play: Callable[[int], None] | None,
        step: Callable[[Sequence[int], Sequence[int]], None],
        parent_times: Any,
    ) -> None:
        shape = slab.shape
        self._num_envs, self._block_size = shape.num_envs, shape.block_size
        self._slab, self._batches, self._ring, self._dead = slab, batches, ring, dead
        self.states = bytearray(shape.num_envs)
        self.overs = bytearray(shape.num_envs)
        self._lost: set[int] = set()  # of those that have landed, whose worker has died since
        self._reserved: dict[int, int] = {}  # slots that environments which failed have kept
        self._short: set[int] = set()  # blocks whose counts a death may have left short; one goes by the words, then
        self._held = False  # whether the plain case has to wait
        self.stuck_reason = ""  # why nothing but a reset of all environments helps
        synchronous = shape.block_size == shape.num_envs
        self._mode = SYNCHRONOUS if synchronous else FIRST_FINISHED if first_finished else ORDERED
        if synchronous:
            slab.name_rows()
        ring.rewind(0)
        self.fast_path = _native.fast_path.FastPath(
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
        batch: Batch | None = self.fast_path.batch
        return batch

    @property
    def last_ids(self) -> list[int] | None:  # type: ignore[override]
        ids: list[int] | None = self.fast_path.last_ids
        return ids

    @property
    def last_slots(self) -> Sequence[int]:
        """Where the rows of the last batch lie."""
        first = (self.fast_path.head - 1) % self._slab.shape.num_blocks * self._block_size
        return range(first, first + self._block_size)

    @property
    def num_coming(self) -> int:
        """How many environments were sent something and have not been received."""
        coming: int = self.fast_path.coming
        return coming

    @property
    def num_ready(self) -> int:
        """How many of them have finished."""
        return len(self.fast_path.landed())

    def is_settled(self) -> bool:
        """Whether all that was sent has been done, and no worker has rows that it has written but not counted yet."""
        if not self._short:
            return self.num_coming == int(self.fast_path.counted())
        live = set(range(self._slab.shape.num_workers)) - self._dead
        return self.num_coming == self.num_ready and all(self.fast_path.is_asleep(worker) for worker in live)

    def of_state(self, *states: int) -> list[int]:
        self._refresh()
        return super().of_state(*states)

    def _refresh(self) -> None:
        """Tell those that have finished from those that have not, which nobody needs to know from step to step."""
        for env_id in self.fast_path.landed():
            self.states[env_id] = READY

    def coming_slots(self, env_ids: Sequence[int]) -> list[int]:
        """Return the slots that the next rows of these environments go to."""
        fresh = iter(self.fast_path.coming_slots([env_id for env_id in env_ids if env_id not in self._reserved]))
        return [self._reserved[env_id] if env_id in self._reserved else next(fresh) for env_id in env_ids]

    def depart(self, env_ids: Iterable[int]) -> list[int]:
        """These environments are sent something to do; return the slots that their rows go to."""
        slots = []
        for env_id in env_ids:
            kept = self._reserved.pop(env_id, None)
            if kept is None:
                slots += self.fast_path.depart([env_id])
            else:
                self.states[env_id] = FLYING
                self.fast_path.coming += 1
                slots.append(kept)
        return slots

    def fail(self, env_id: int, *, died: bool = False) -> None:
        """This environment raised, or lost its worker (died). Rows that it wrote before it did still count."""
        self._refresh()
        state = self.states[env_id]
        if state == READY and (died or self._mode == FIRST_FINISHED):
            self._lost.add(env_id)
            self._clear_if_sound()
            return
        if state in (FLYING, READY):
            if state == READY:  # its infos cannot be read, and without them its rows do not count
                self._ring.revoke(self.fast_path.slot_of(env_id))
            self.fast_path.coming -= 1
            if self._mode == ORDERED:
                self._reserved[env_id] = self.fast_path.slot_of(env_id)
            if self._mode == FIRST_FINISHED and self.fast_path.claimed_slot(env_id) is not None:
                self.stuck_reason = "a worker died while it wrote rows of a batch; call reset"
        self.states[env_id] = FAILED

    def crash(self, env_id: int) -> None:
        """Answer what this environment was sent by crash rows, in place of its worker, which is dead or gave it up."""
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

    def asked(self, worker: int, share: range) -> Any:
        """Return what this worker was asked for and has not taken up, another value each time; None for nothing."""
        return self.fast_path.asked(worker)

    def hold(self, held: bool) -> None:
        """Say whether the plain case is to wait, as there are environments that a plain step must not be sent to."""
        self._held = held
        self._clear_if_sound()

    def mark_dirty(self) -> None:
        """A worker has died, perhaps between writing rows and counting them."""
        self._short = set(range(self._slab.shape.num_blocks))
        self._clear_if_sound()

    def _repair_counts(self, head: int) -> None:
        """Set right the count of the block that was received last, if nobody can be about to add to it."""
        if self._ring.repair_count(head):
            self._short.discard(head % self._slab.shape.num_blocks)
            self._clear_if_sound()

    def _clear_if_sound(self) -> None:
        self.fast_path.clear = not (self._lost or self._short or self._held)

    def has_news(self) -> bool:
        """Whether something has come beside rows that is to be seen to before they are received."""
        news: bool = self.fast_path.has_news()
        return news

    def wants_a_look(self) -> bool:
        """Whether it is time to look for dead workers, though rows keep coming."""
        wants: bool = self.fast_path.wants_a_look()
        return wants

    def look(self) -> None:
        """Note what has come so far; what comes after this ends a wait."""
        self.fast_path.look()

    def await_block(self, timeout_s: float) -> None:
        """Wait a little for the next block to be full or for urgent news."""
        if self._short:
            if not self.fast_path.is_full(True):  # what came before ``look`` would not end the wait
                self.fast_path.await_row(timeout_s)
        else:
            self.fast_path.await_block(timeout_s)

    def await_settling(self, timeout_s: float) -> None:
        """Wait a little for what keeps things from being settled."""
        if not self.is_settled():
            self.fast_path.await_row(timeout_s)

    def await_row(self, timeout_s: float) -> None:
        """Wait a little for any row or for urgent news."""
        self.fast_path.await_row(timeout_s)

    def arrive(self, env_ids: Iterable[int], overs: Iterable[bool]) -> None:
        """Rows come without a message here."""
        raise AssertionError(f"a worker announced the rows of environments {list(env_ids)}")

    def obstacle(self) -> str:
        """Return what keeps the next batch from ever being full, and the way out; "" if nothing does."""
        if self.stuck_reason:
            return self.stuck_reason
        block = self.fast_path.head % self._slab.shape.num_blocks
        missing = [env_id for env_id, slot in self._reserved.items() if slot // self._block_size == block]
        if missing:
            return f"the next batch waits for environments {missing}, which failed; call async_reset(env_ids={missing})"
        return ""

    def fill(self, env_id: int) -> None:
        """This waiting environment takes part in the next batch with the rows that it had in the last one."""
        (slot,) = self.fast_path.depart([env_id])
        repeat_rows(self._slab, (slot - self._block_size) % self._slab.shape.num_slots, slot)
        self._ring.commit(slot, bool(self.overs[env_id]))

    def batch_is_ready(self) -> bool:
        """Whether the environments of the next batch have all arrived."""
        full: bool = self.fast_path.is_full(bool(self._short))
        return full

    def land(self, gather: Gather) -> Batch:
        """Return the next batch, whose environments now wait (unless they lost their workers meanwhile)."""
        self.fast_path.land()
        if self._lost:
            lost = self._lost.intersection(self.fast_path.last_ids)
            for env_id in lost:
                self.states[env_id] = FAILED
            self._lost -= lost
            self._clear_if_sound()
        if self._short:
            self._repair_counts(self.fast_path.head - 1)
        batch: Batch = self.fast_path.batch
        return batch

    def drop(self) -> None:
        """Forget the rows that have arrived; their environments are about to be reset. Only when all is settled."""
        self._lost.clear()
        self._reserved.clear()
        self._short.clear()
        self.stuck_reason = ""
        self._ring.rewind(self.fast_path.head)
        self.fast_path.skip(self.fast_path.head)
        self._clear_if_sound()

    def let_go(self) -> None:
        """It is closed; nothing holds this in turn."""

    def begin_anew(self) -> None:
        """Forget everything; all environments are about to be made anew."""
        self.drop()
        self.states[:] = bytes(self._num_envs)
        self.fast_path.forget()
