"""PortableScheduler: the scheduler of the portable path, where workers announce finished environments in messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from pufferlib.vectorization.core.backend import SLICE_S, Backend
from pufferlib.vectorization.core.batch import Batch, Batches
from pufferlib.vectorization.core.infos import Infos
from pufferlib.vectorization.core.messages import Message
from pufferlib.vectorization.core.slab import NUM_BUFFERS, Slab
from pufferlib.vectorization.driver.pending_infos import PendingInfos
from pufferlib.vectorization.driver.scheduler import FAILED, FLYING, READY, WAITING, Scheduler, crash_rows

__all__ = ["PortableScheduler"]


class PortableScheduler(Scheduler):
    """The scheduler of the portable path.

    An environment writes its n-th rows to its slot of buffer n % 3.
    """

    held = False
    overdue = False  # each wait for rows also finds dead workers
    stuck_reason = ""
    fast_path = None

    def __init__(
        self, slab: Slab, batches: Batches, infos: PendingInfos, batch_size: int, *, first_finished: bool
    ) -> None:
        shape = slab.shape
        self.states = bytearray(shape.num_ids)
        self.overs = bytearray(shape.num_ids)
        self.batch = None
        self.last_ids = None
        self.num_ready = 0
        slab.name_rows()
        self._slab, self._batches, self._infos = slab, batches, infos
        self._num_flying = 0
        self._num_envs = shape.num_envs
        self._num_slots = shape.num_slots
        self._batch_size = batch_size
        self._synchronous = batch_size == shape.num_envs
        self._first_finished = first_finished
        self._in_order = list(shape.env_ids)
        self._slots_in = [  # by buffer: the slot of each environment
            dict(zip(shape.env_ids, range(buffer * shape.num_envs, (buffer + 1) * shape.num_envs), strict=True))
            for buffer in range(NUM_BUFFERS)
        ]
        self._buffer = 0  # the next to be received, if batches hold all environments
        self._slots = self._slots_in[0]  # of each environment's next rows
        self._lost: set[int] = set()  # READY environments whose worker has died since: they fail once received
        self._order: deque[int] = deque()  # of departure, or of arrival; unused if batches hold all environments
        self._no_infos = Infos([], self._in_order[:batch_size], shape.agents_per_env)
        self._all_wait = bytes([WAITING]) * shape.num_envs

    @property
    def last_slots(self) -> Sequence[int]:  # type: ignore[override]
        return [(self._slots[env_id] - self._num_envs) % self._num_slots for env_id in self.last_ids or ()]

    @property
    def num_coming(self) -> int:  # type: ignore[override]
        return self._num_flying + self.num_ready

    @property
    def in_flight(self) -> list[int]:  # type: ignore[override]
        return [env_id for env_id, state in enumerate(self.states) if state == FLYING]

    @property
    def settled(self) -> bool:  # type: ignore[override]
        return self._num_flying == 0

    def next_slots(self, env_ids: Sequence[int]) -> list[int]:
        return [self._slots[env_id] for env_id in env_ids]

    def mark_sent(self, env_ids: Sequence[int]) -> list[int]:
        for env_id in env_ids:
            self.states[env_id] = FLYING
            self._num_flying += 1
            if not (self._synchronous or self._first_finished):
                self._order.append(env_id)
        return self.next_slots(env_ids)

    def arrive(self, env_ids: Sequence[int], overs: Iterable[bool]) -> None:
        for env_id, over in zip(env_ids, overs, strict=True):
            self.states[env_id] = READY
            self.overs[env_id] = over
            self._num_flying -= 1
            self.num_ready += 1
            if self._first_finished and not self._synchronous:
                self._order.append(env_id)

    def crash(self, env_ids: Iterable[int], *, died: bool = False, over: bool = False) -> list[int]:
        flying = [env_id for env_id in env_ids if self.states[env_id] == FLYING]
        for slot in self.next_slots(flying):
            crash_rows(self._slab, slot)
        self.arrive(flying, [over] * len(flying))
        return flying

    def fail(self, env_ids: Iterable[int], *, died: bool = False) -> list[int]:
        failed = []
        for env_id in env_ids:
            if self.states[env_id] == READY:
                self._lost.add(env_id)
                continue
            if self.states[env_id] == FLYING:
                self._num_flying -= 1
                if not (self._synchronous or self._first_finished):
                    self._order.remove(env_id)
            self.states[env_id] = FAILED
            failed.append(env_id)
        return failed

    def unbegun(self, worker: int, share: range) -> object:
        begun = [env_id for env_id in share if self.states[env_id] == FLYING and env_id not in self.withheld]
        return self.next_slots(begun) or None

    def wait(self, backend: Backend, timeout_s: float, *, batch: bool) -> list[Message]:
        return backend.poll(min(timeout_s, SLICE_S))

    def batch_ready(self) -> bool:
        if self.num_ready < self._batch_size:
            return False
        if self._synchronous or self._first_finished:
            return True
        return all(self.states[self._order[index]] == READY for index in range(self._batch_size))

    def take_batch(self) -> Batch:
        if self._synchronous:
            env_ids = self._in_order
            buffer, self._buffer = self._buffer, (self._buffer + 1) % NUM_BUFFERS
            self._slots = self._slots_in[self._buffer]
            self.states[env_ids[0] :] = self._all_wait
            arrays = self._batches.lend(("buffer", buffer), self._batches.blocks[buffer])
        else:
            env_ids, slots = [self._order.popleft() for _ in range(self._batch_size)], []
            for env_id in env_ids:
                slots.append(self._slots[env_id])
                self._slots[env_id] = (slots[-1] + self._num_envs) % self._num_slots
                self.states[env_id] = WAITING
            arrays = self._batches.lend(*self._batches.gather(slots))
        if self._lost:
            for env_id in self._lost.intersection(env_ids):
                self.states[env_id] = FAILED
            self._lost.difference_update(env_ids)
        self.num_ready -= len(env_ids)
        self.last_ids = env_ids
        infos = self._no_infos
        if self._infos.by_env:
            infos = Infos(self._infos.take(env_ids), env_ids, self._slab.shape.agents_per_env)
        self.batch = Batch.of(arrays, infos)
        return self.batch

    def reset(self) -> None:
        self._order.clear()
        self._lost.clear()
        self.num_ready = 0
