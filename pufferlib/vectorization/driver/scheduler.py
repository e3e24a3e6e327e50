"""Track the state of each environment between send and recv, and choose the finished ones that form the next batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from pufferlib.util.annotations import Info
from pufferlib.vectorization.core.batch import Batch, Batches
from pufferlib.vectorization.core.call_errors import FAILED, FLYING, NEW, READY, WAITING
from pufferlib.vectorization.core.infos import Infos
from pufferlib.vectorization.core.slab import NUM_BUFFERS, Slab

__all__ = ["FAILED", "FLYING", "NEW", "READY", "WAITING", "Gather", "PortableScheduler"]

Gather = Callable[[Sequence[int]], list[Info]]  # returns the infos received from these environments


class States:
    """The state of every environment: the base class of both schedulers.

    states: for each environment NEW, WAITING (its rows were received), FLYING (an action or reset was sent), READY (its
    rows are written) or FAILED (it raised or its worker died; only a reset helps). overs: 1 if its episode was over on
    arrival. batch: the last one. last_ids: its environments, None before the first.
    """

    states: bytearray
    overs: bytearray
    batch: Batch | None
    last_ids: list[int] | None

    def of_state(self, *states: int) -> list[int]:
        """Return the ids of the environments in any of these states."""
        return [env_id for env_id, state in enumerate(self.states) if state in states]


class PortableScheduler(States):
    """The scheduler of the portable path, where workers announce finished environments by messages.

    An environment writes its n-th rows to its slot of buffer n % 3.
    """

    def __init__(self, slab: Slab, batches: Batches, batch_size: int, *, first_finished: bool) -> None:
        num_envs = slab.shape.num_envs
        self.states = bytearray(num_envs)
        self.overs = bytearray(num_envs)
        self.batch = None
        self.last_ids = None
        self.num_flying = 0
        self.num_ready = 0
        slab.name_rows()
        self._slab = slab
        self._batches = batches
        self._num_envs = num_envs
        self._batch_size = batch_size
        self.synchronous = batch_size == num_envs
        self._first_finished = first_finished
        self._buffer_indices = [0] * num_envs  # of each environment's next rows
        self._lost: set[int] = set()  # READY environments whose worker has died since: they fail once received
        self._order: deque[int] = deque()  # of departure, or of arrival; unused if batches hold all environments
        self._in_order = list(range(num_envs))
        self._all_wait = bytes([WAITING]) * num_envs

    @property
    def last_slots(self) -> Sequence[int]:
        """The slots of the last batch."""
        indices, num_envs = self._buffer_indices, self._num_envs
        return [(indices[env_id] - 1) % NUM_BUFFERS * num_envs + env_id for env_id in self.last_ids or ()]

    @property
    def num_coming(self) -> int:
        """The number of environments that were sent an action or reset and whose rows have not been received."""
        return self.num_flying + self.num_ready

    def is_settled(self) -> bool:
        """Return whether no environment is in flight."""
        return self.num_flying == 0

    def coming_slots(self, env_ids: Iterable[int]) -> list[int]:
        """Return the slots of these environments' next rows."""
        return [self._buffer_indices[env_id] * self._num_envs + env_id for env_id in env_ids]

    def depart(self, env_ids: Iterable[int]) -> list[int]:
        """Mark environments as in flight; return the slots for their rows."""
        env_ids = list(env_ids)
        for env_id in env_ids:
            self.states[env_id] = FLYING
            self.num_flying += 1
            if not (self.synchronous or self._first_finished):
                self._order.append(env_id)
        return self.coming_slots(env_ids)

    def arrive(self, env_ids: Iterable[int], overs: Iterable[bool]) -> None:
        """Mark environments as finished: their rows are written."""
        for env_id, over in zip(env_ids, overs, strict=True):
            self.states[env_id] = READY
            self.overs[env_id] = over
            self.num_flying -= 1
            self.num_ready += 1
            if self._first_finished and not self.synchronous:
                self._order.append(env_id)

    def fail(self, env_id: int, *, died: bool = False) -> None:
        """Mark an environment as failed: it raised, or its worker died. Rows that it wrote earlier remain valid."""
        if self.states[env_id] == READY:
            self._lost.add(env_id)
            return
        if self.states[env_id] == FLYING:
            self.num_flying -= 1
            if not (self.synchronous or self._first_finished):
                self._order.remove(env_id)
        self.states[env_id] = FAILED

    def crash(self, env_id: int) -> None:
        """Write crash rows as the environment's answer, on behalf of its worker."""
        (slot,) = self.coming_slots([env_id])
        write_crash(self._slab, slot)
        self.arrive([env_id], [False])

    def asked(self, worker: int, share: range) -> object:
        """Return a value that identifies a worker's unfinished requests, or None if there are none."""
        return [(env_id, self._buffer_indices[env_id]) for env_id in share if self.states[env_id] == FLYING] or None

    def hold(self, hold: bool) -> None:
        """Do nothing: there is no fast path to disable."""

    def mark_dirty(self) -> None:
        """Do nothing: the portable path has no counts that a dead worker could leave wrong."""

    def has_news(self) -> bool:
        """Return whether messages have arrived that must be handled before the rows are received."""
        return False

    stuck_reason = ""  # why only a reset of all environments helps
    fast_path = None  # every call takes the general path

    def wants_a_look(self) -> bool:
        """Return whether it is time to check for dead workers, although rows keep arriving."""
        return False

    def obstacle(self) -> str:
        """Return why the next batch can never be full and what the user can do; "" if it can."""
        return ""

    def await_block(self, timeout_s: float) -> None:
        """Do nothing: on the portable path no rows arrive without a message."""

    def await_settling(self, timeout_s: float) -> None:
        """Do nothing, for the same reason as ``await_block``."""

    def fill(self, env_id: int) -> None:
        """Repeat a waiting environment's rows from the last batch in the next one."""
        buffer_index = self._buffer_indices[env_id]
        slots = self._num_envs
        repeat_rows(self._slab, ((buffer_index - 1) % NUM_BUFFERS) * slots + env_id, buffer_index * slots + env_id)
        self.states[env_id] = READY
        self.num_ready += 1

    def batch_is_ready(self) -> bool:
        """Return whether all environments of the next batch have arrived."""
        if self.num_ready < self._batch_size:
            return False
        if self.synchronous or self._first_finished:
            return True
        return all(self.states[self._order[index]] == READY for index in range(self._batch_size))

    def land(self, gather: Gather) -> Batch:
        """Return the next batch and mark its environments as waiting, or as failed if their workers have died."""
        if self.synchronous:
            env_ids, buffer_index = self._in_order, self._buffer_indices[0]
            self._buffer_indices = [(buffer_index + 1) % NUM_BUFFERS] * self._num_envs
            self.states[:] = self._all_wait
            arrays = self._batches.lend(("buffer", buffer_index), self._batches.blocks[buffer_index])
        else:
            env_ids, slots = [self._order.popleft() for _ in range(self._batch_size)], []
            for env_id in env_ids:
                slots.append(self._buffer_indices[env_id] * self._num_envs + env_id)
                self._buffer_indices[env_id] = (self._buffer_indices[env_id] + 1) % NUM_BUFFERS
                self.states[env_id] = WAITING
            arrays = self._batches.lend(*self._batches.gather(slots))
        if self._lost:
            for env_id in self._lost.intersection(env_ids):
                self.states[env_id] = FAILED
            self._lost.difference_update(env_ids)
        self.num_ready -= len(env_ids)
        self.last_ids = env_ids
        self.batch = Batch.of(arrays, Infos(gather(env_ids), env_ids, self._slab.shape.agents_per_env))
        return self.batch

    def drop(self) -> None:
        """Discard the rows that have arrived, before their environments are reset."""
        self._order.clear()
        self._lost.clear()
        self.num_ready = 0


def write_crash(slab: Slab, slot: int) -> None:
    """Write rows that end a lost environment's episode: truncated, with mask False."""
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
