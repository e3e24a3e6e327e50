"""The Ray actor: the workers of its share, and one call that carries actions to them and rows back.

An actor's workers are processes on its node that share a slab in memory, or the actor itself is the only worker.
Environments have the VecEnv's ids. Workers are numbered from 0 here; ``located`` converts to the VecEnv's numbers.
Failures are reported to the VecEnv, which handles them. Crash rows fill the slot of a failed environment and are
discarded, so that the rows of all other environments arrive as usual.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
import time
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from pufferlib.errors import PufferError, WorkerError
from pufferlib.telemetry.timeline import BUSY, WAITED
from pufferlib.util.annotations import Array
from pufferlib.util.sockets import Address
from pufferlib.vectorization.core import transfer
from pufferlib.vectorization.core.backend import CLOSE_S, SLICE_S, Backend
from pufferlib.vectorization.core.frames import complete_frames, messages_of
from pufferlib.vectorization.core.messages import (
    Call,
    Died,
    Done,
    EnvSpec,
    Failed,
    Message,
    Ready,
    Reply,
    Reset,
    located,
)
from pufferlib.vectorization.core.plan import Plan, Seeds
from pufferlib.vectorization.core.step_watchdog import Limits, StepWatchdog
from pufferlib.vectorization.driver.dispatcher import Dispatcher
from pufferlib.vectorization.driver.factory import attach_slab
from pufferlib.vectorization.driver.pending_infos import PendingInfos
from pufferlib.vectorization.driver.recovery import Recovery
from pufferlib.vectorization.driver.scheduler import READY, Scheduler
from pufferlib.vectorization.driver.workers import Workers
from pufferlib.vectorization.processes.backend import ProcessBackend
from pufferlib.vectorization.processes.serve import frames_of
from pufferlib.vectorization.processes.thread_caps import limit_imported, limit_threads
from pufferlib.vectorization.ray.connection import location, ray_module
from pufferlib.vectorization.ray.sockets import SocketServer
from pufferlib.vectorization.serial import SerialBackend
from pufferlib.vectorization.worker.worker import WorkerTask, seed_globals

__all__ = [
    "REQUEST",
    "REVIVE",
    "SMALL_NBYTES",
    "STEPS",
    "ActorService",
    "ActorTask",
    "Answer",
    "Format",
    "WorkersActor",
    "outcomes_of",
    "packed_answer",
    "unpacked_answer",
]

LINGER_S = 0.004  # the time that rows wait for more of them: about that of two or three Ray calls
LINGER_DIRECT_S = 0.001  # the same for calls over a direct connection
SMALL_NBYTES = 64 << 10  # up to this size, observations are sent in a bytes object
NUM_THREADS = 4  # that answer direct calls: usually two are busy, and one waits for the next call
GLANCE_S = 0.002  # the polling interval for rows on the portable path, where only the next call ends a wait


class Format(NamedTuple):
    """The parts of a slab's shape that the environments do not determine."""

    reward_dtype: str
    telemetry: bool


class ActorTask(NamedTuple):
    """The arguments of an actor.

    tasks: the tasks of the actor's workers, numbered as in the VecEnv. env_spec: as for ``Backend.start``. in_place:
    whether the only worker runs in the actor's process. synchronous: whether the VecEnv's batches hold all
    environments. generation: the number of earlier actors in its place.
    """

    tasks: list[WorkerTask]
    env_spec: EnvSpec | None
    in_place: bool
    synchronous: bool
    context: str | None
    entropy: Any
    generation: int
    worker_threads: int | None
    spin: int | None


# A request is a tuple of values that Ray passes without pickling: (STEPS, env_ids or None for all, the bytes of each
# array of actions), (REQUEST, worker, a sealed frame: a Reset or a Call) or (REVIVE, worker).
STEPS, REQUEST, REVIVE = range(3)


class Answer(NamedTuple):
    """The answer to a call, before ``packed_answer`` serializes it.

    env_ids: the environments of the rows, or None if these are all environments of the actor, in order. observations:
    (rows, …). outcome_bytes: rewards and flags, in the format that ``outcomes_of`` reads. quiet: True if the rows are
    those of all environments in order, without infos or finished episodes; otherwise a message announces the rows.
    frames: messages, as bytes. more: whether work is in progress whose results need another call.
    """

    env_ids: list[int] | None
    observations: Array | None
    outcome_bytes: bytes
    quiet: bool
    frames: bytes
    more: bool


def outcomes_of(data: bytes, num_rows: int, reward_dtype: str) -> tuple[Array, ...]:
    """Return rewards, terminations, truncations and masks, each (num_rows,), as views of their concatenated bytes."""
    rewards = np.frombuffer(data, reward_dtype, num_rows)
    flags = np.frombuffer(data, np.bool_, 3 * num_rows, rewards.nbytes).reshape(3, num_rows)
    return rewards, *flags


def packed_answer(answer: Answer) -> bytes | tuple[Any, ...]:
    """Return an answer in the form in which Ray sends it: pickled to bytes, or a tuple if its observations are large.

    Ray sends a bytes object in 20 % less time than anything else, but copies it. A tuple's arrays stay in Ray's object
    store.
    """
    if answer.observations is None or answer.observations.nbytes <= SMALL_NBYTES:
        return pickle.dumps(tuple(answer), pickle.HIGHEST_PROTOCOL)
    return tuple(answer)


def unpacked_answer(data: bytes | tuple[Any, ...]) -> Answer:
    """Return the Answer from which ``packed_answer`` made ``data``."""
    return Answer(*(pickle.loads(data) if isinstance(data, bytes) else data))


def own_host() -> str:
    """Return the IP address by which Ray knows this machine."""
    return str(ray_module().util.get_node_ip_address())


class ActorDispatcher(Dispatcher):
    """The Dispatcher of an actor. It handles the messages of the actor's workers, and collects messages for the VecEnv.

    outgoing: the messages for the VecEnv. lost: environments whose rows in the slab are invalid. num_asked: the number
    of unanswered calls, by worker.
    """

    def __init__(self, workers: Workers, scheduler: Scheduler, infos: PendingInfos, watchdog: StepWatchdog) -> None:
        recovery = Recovery(0, Seeds(0, 0), on_error="raise", max_restarts=0)
        super().__init__(workers, scheduler, infos, recovery, watchdog)
        self.outgoing: list[Any] = []
        self.lost: set[int] = set()
        self.num_asked: Counter[int] = Counter()

    def _take(self, message: Message) -> None:
        if isinstance(message, Reply):
            self.num_asked[message.worker] -= 1
        elif isinstance(message, Died):
            self._workers.mark_dead(message.worker)
            del self.num_asked[message.worker]
            self.lost.update(self._scheduler.crash(message.env_ids, died=True))
        elif isinstance(message, Failed):
            self.lost.update(self._scheduler.crash([] if message.env_id is None else [message.env_id]))
        else:
            super()._take(message)
            return
        self.outgoing.append(message)


class WorkersActor:
    """The class of the Ray actor. Ray wraps every method of it, so it has only the methods that are called remotely."""

    def __init__(self) -> None:
        self._service = ActorService()

    def where(self) -> str:
        return self._service.where()

    def start(self, pickled_task: bytes, format: Format | None, path: list[str]) -> bytes:
        return self._service.start(pickled_task, format, path)

    def attach(self, format: Format) -> None:
        self._service.attach(format)

    def exchange(self, call: bytes) -> bytes | tuple[Any, ...]:
        return self._service.exchange(call)

    def listen(self, key: bytes) -> Address | None:
        return self._service.listen(key)

    def serve(self) -> None:
        self._service.serve()

    def times(self) -> tuple[Array, ...]:
        return self._service.times()

    def close(self, grace_s: float) -> bytes:
        return self._service.close(grace_s)


class ActorService:
    """The implementation of the actor's methods. Calls of ``exchange`` are numbered from 1."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number = -1  # of the last call that was started
        self._answered = 0  # of the last call that was answered
        self._location = ""

    def where(self) -> str:
        """Return the actor's location, as text for messages."""
        self._location = location()
        return self._location

    def listen(self, key: bytes) -> Address | None:
        """Listen for direct calls from a client that has the key.

        Return the address of the listening socket, or None if this machine cannot listen.
        """
        try:
            self._server = SocketServer(own_host(), key, self._exchange_bytes, NUM_THREADS)
        except OSError:
            return None
        return self._server.address

    def serve(self) -> None:
        """Answer calls over the direct connection until it closes. Raises the exception of a call that fails."""
        self._server.serve()

    def _exchange_bytes(self, call: bytes) -> bytes:
        answer = self.exchange(call, LINGER_DIRECT_S)
        return answer if isinstance(answer, bytes) else pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)

    def start(self, pickled_task: bytes, format: Format | None, path: list[str]) -> bytes:
        """Make the environments and return frames: a Ready for each worker, or a Failed or Died if making them fails.

        pickled_task: the ActorTask, serialized by ``transfer.dumps``.
        format: the argument with which this method calls ``attach``; None if the VecEnv calls ``attach`` later.
        path: the ``sys.path`` of the VecEnv's process. Those of its folders that exist on this machine are added to
            this process's ``sys.path``.
        """
        sys.path += [folder for folder in path if folder not in sys.path and os.path.isdir(folder)]
        task = transfer.loads(pickled_task)
        assert isinstance(task, ActorTask), task
        self._task = task
        tasks = task.tasks
        first_env, self._first_worker = tasks[0].env_ids.start, tasks[0].worker
        self._ids = list(range(first_env, tasks[-1].env_ids.stop))
        synchronous = task.synchronous and task.in_place
        self._plan = plan = Plan.of(len(self._ids), len(tasks), None if synchronous else 1, first_env)
        self._workers = workers = Workers(self._make_backend(plan), "WorkersActor")
        try:
            self._env_spec = workers.start(task.env_spec)
        except WorkerError:
            return self._frames(self._located(workers.refusal))
        except PufferError as error:
            return self._frames(self._located(Failed.of(None, 0, "start", error)))
        self._limit_imported()
        if format is not None:
            self.attach(format)
        readies = [Ready(worker_task.worker, self._env_spec, workers.held_envs) for worker_task in tasks]
        return b"".join(map(self._frames, readies))

    def _make_backend(self, plan: Plan) -> Backend:
        task, first_finished = self._task, not plan.synchronous
        tasks = [
            worker_task._replace(worker=worker, announce_each=first_finished, first_finished=first_finished)
            for worker, worker_task in enumerate(task.tasks)
        ]
        if task.in_place:
            if task.worker_threads is not None:
                limit_threads(task.worker_threads)
            seed_globals(task.entropy, self._first_worker, task.generation)
            return SerialBackend(tasks[0])
        multiprocessing.set_forkserver_preload(["pufferlib.vectorization.processes.serve"])
        own_key = (self._first_worker, task.generation, 2)
        entropy = np.random.SeedSequence(task.entropy, spawn_key=own_key).generate_state(4).tolist()
        context = task.context or "forkserver"  # Ray's threads rule out fork, and spawn imports everything each time
        spin = task.spin or 0  # compared with a call, waking up costs nothing, and cores have other work
        return ProcessBackend(tasks, context=context, entropy=entropy, worker_threads=task.worker_threads, spin=spin)

    def _limit_imported(self) -> None:
        if self._task.in_place:
            limit_imported(self._task.worker_threads)

    def attach(self, format: Format) -> None:
        """Make the slab and everything else needed between send and recv, and start accepting calls."""
        workers, plan, env_spec = self._workers, self._plan, self._env_spec
        parts = attach_slab(
            workers, plan, env_spec, format.reward_dtype, telemetry=format.telemetry, first_finished=True
        )
        self._slab, self._ring, self._scheduler = parts.slab, parts.ring, parts.scheduler
        slab = parts.slab
        self._columns = [
            column.reshape(slab.shape.num_slots, env_spec.num_agents, *column.shape[2:])
            for column in (slab.observations, slab.rewards, slab.terminations, slab.truncations, slab.masks)
        ]
        limits = self._task.tasks[0].limits if workers.backend.watched else Limits()
        watchdog = StepWatchdog(slab.doing[:, 0], slab.shape.num_ids, limits)
        self._dispatcher = ActorDispatcher(workers, parts.scheduler, parts.infos, watchdog)
        self._actions = slab.actions_by_env
        self._unstarted: set[int] = set()  # workers that could not be started again
        self._rows: list[tuple[int, int, bool]] = []  # landed: env id, slot, whether its episode is over
        self._infos: list[dict[str, Any]] = []  # of these rows
        self._clocked_s = time.perf_counter()
        with self._changed:
            self._number = 0
            self._changed.notify_all()

    # ------------------------------------------------------------------------------------------------- calls

    def exchange(self, call: bytes, linger_s: float = LINGER_S) -> bytes | tuple[Any, ...]:
        """Execute requests, wait until ``num_back`` environments have finished, and return their rows and messages.

        call: a pickled tuple of the call's number, its requests and num_back.

        This method returns earlier if there are messages to report, if no more rows can come, or if SLICE_S seconds
        have passed. If batches do not hold all environments, it also returns linger_s seconds after the first rows. It
        also returns when the next call arrives, so that at most one call waits for rows.
        """
        number, requests, num_back = pickle.loads(call)
        with self._changed:
            self._changed.wait_for(lambda: self._number == number - 1)
            self._clock(WAITED)
            self._number = number
            self._changed.notify_all()
            try:
                if self._ring is not None:
                    self._ring.announce(urgent=True)  # makes the previous call return
                for request in requests:
                    self._do(*request)
                self._changed.wait_for(lambda: self._answered == number - 1)  # only one call may wait on the ring
                answer = self._await(number, num_back, linger_s)
            finally:
                self._changed.wait_for(lambda: self._answered == number - 1)  # at once, unless this call has failed
                self._answered = number
                self._changed.notify_all()
            self._clock(BUSY)
            return packed_answer(answer)

    def _clock(self, kind: int) -> None:
        """Add the seconds since this method last ran to ``worker_times[kind]``, if the worker runs in this process.

        kind: BUSY or WAITED, of telemetry/timeline.py.
        """
        if self._task.in_place:
            now_s = time.perf_counter()
            self._slab.worker_times[0, kind] += now_s - self._clocked_s
            self._clocked_s = now_s

    def _do(self, kind: int, *request: Any) -> None:
        workers = self._workers
        workers.require_open()
        if kind == STEPS:
            env_ids, actions = request
            ids = self._ids if env_ids is None else env_ids
            index = slice(self._plan.first_env, None) if env_ids is None else env_ids
            for array, data in zip(self._actions, actions, strict=True):
                array[index] = np.frombuffer(data, array.dtype).reshape(len(ids), *array.shape[1:])
            if workers.dead:  # which the VecEnv did not know when it sent the request
                ids = [env_id for env_id in ids if workers.worker_of[env_id] not in workers.dead]
            self._post(ids, lambda slots: workers.step(ids, slots))
        elif kind == REVIVE:
            (worker,) = request
            try:
                workers.restart(worker)
                self._unstarted.discard(worker)
            except PufferError as error:
                self._unstarted.add(worker)
                failed = Failed.of(None, worker, "start", error)
                self._dispatcher.outgoing += [failed._replace(env_id=env_id) for env_id in workers.shares[worker]]
        else:
            worker, frame = request
            if worker not in workers.dead or worker in self._unstarted:  # otherwise its death is reported instead
                self._obey(worker, bytearray(frame))

    def _obey(self, worker: int, frame: bytearray) -> None:
        """Send a worker the request that a frame holds.

        If the request cannot be unpickled, or resets environments of a worker that could not be started, a failure is
        reported instead. Calls to a worker that could not be started are dropped.
        """
        backend = self._workers.backend
        for message in messages_of(next(iter(complete_frames(frame))), worker):
            if isinstance(message, Reset):
                if worker in self._unstarted:
                    self._dispatcher.outgoing += [
                        Failed(order.env_id, worker, "reset", "its worker could not be started", "", None)
                        for order in message.orders
                    ]
                    continue
                ids = [order.env_id for order in message.orders]

                def reset(slots: list[int], orders: Any = message.orders) -> None:
                    due = [order._replace(slot=slot) for order, slot in zip(orders, slots, strict=True)]
                    backend.submit({worker: Reset(due)})

                self._post(ids, reset)
            elif isinstance(message, (Failed, Reply)):  # it could not be unpickled here
                self._dispatcher.outgoing.append(message)
            elif worker not in self._unstarted:
                assert isinstance(message, Call), message
                self._dispatcher.num_asked[worker] += 1
                backend.submit({worker: message})

    def _post(self, env_ids: list[int], send: Any) -> None:
        """Start work in environments. If their worker runs in this process, also collect the rows.

        If batches are synchronous, all other environments are marked as finished, and their rows as invalid. send: a
        function that starts the work, given the slots for the environments' rows.
        """
        scheduler = self._scheduler
        send(scheduler.mark_sent(env_ids))
        if self._plan.synchronous and len(env_ids) < len(self._ids):  # the others' rows are not of interest
            others = [env_id for env_id in self._ids if env_id not in set(env_ids)]
            scheduler.mark_sent(others)
            scheduler.arrive(others, [bool(scheduler.overs[env_id]) for env_id in others])
            self._dispatcher.lost.update(others)
        if self._task.in_place:
            self._take()

    # ------------------------------------------------------------------------------------------------ answers

    def _await(self, number: int, num_back: int, linger_s: float) -> Answer:
        dispatcher, scheduler = self._dispatcher, self._scheduler
        until_s, lingers = time.monotonic() + SLICE_S, False
        while True:
            if self._workers.closed:
                return Answer([], None, b"", False, b"", False)
            self._take()
            now_s = time.monotonic()
            num_rows = len(self._rows)
            if num_rows and not lingers and not self._task.synchronous:
                lingers, until_s = True, min(until_s, now_s + linger_s)
            more = scheduler.num_coming > 0 or any(dispatcher.num_asked.values())
            if not more or dispatcher.outgoing or num_rows >= num_back or self._number > number or now_s >= until_s:
                return self._answer(more)
            if self._ring is not None:
                self._await_row(until_s - now_s)
            else:
                self._changed.wait(min(GLANCE_S, until_s - now_s))

    def _await_row(self, timeout_s: float) -> None:
        """Wait for a row, on the compiled path, while other calls may begin."""
        assert self._scheduler.fast_path is not None
        self._changed.release()
        try:
            self._scheduler.fast_path.await_row(timeout_s)
        finally:
            self._changed.acquire()

    def _take(self) -> None:
        """Handle all messages and collect all rows that have arrived."""
        dispatcher, came = self._dispatcher, True
        while came:
            came = dispatcher.pump(0.0)
            while dispatcher.may_land():
                self._land()
            came = came or dispatcher.has_messages

    def _land(self) -> None:
        scheduler, lost = self._scheduler, self._dispatcher.lost
        infos = scheduler.take_batch().infos
        ids, slots = scheduler.last_ids, scheduler.last_slots
        assert ids is not None
        if infos:
            self._infos += [info for info in infos if info["env_id"] not in lost]
        for env_id, slot in zip(ids, slots, strict=True):
            if env_id in lost:
                lost.remove(env_id)
            else:
                self._rows.append((env_id, slot, bool(scheduler.overs[env_id])))

    def _answer(self, more: bool) -> Answer:
        states = self._scheduler.states
        for message in self._dispatcher.outgoing:
            if isinstance(message, Died):  # rows behind a slot that another environment still fills would be late
                self._dispatcher.lost.update(env_id for env_id in message.env_ids if states[env_id] == READY)
        rows, infos, messages = self._rows, self._infos, self._dispatcher.outgoing
        self._rows, self._infos, self._dispatcher.outgoing = [], [], []
        frames, quiet, outcome_bytes = b"", False, b""
        env_ids: list[int] | None = []
        observations = None
        if rows:
            if len(rows) == len(self._ids):
                rows.sort()
            ids, slots, overs = map(list, zip(*rows, strict=True))
            index: Any = slots
            # A worker in this process gets no request before this has been sent, but worker processes may continue.
            if self._task.in_place and slots == list(range(slots[0], slots[0] + len(slots))):
                index = slice(slots[0], slots[0] + len(slots))
            observations, *others = (column[index].reshape(-1, *column.shape[2:]) for column in self._columns)
            outcome_bytes = b"".join(column.tobytes() for column in others)
            in_order = ids == self._ids
            env_ids = None if in_order else ids
            quiet = in_order and not infos and not any(overs)
            if not quiet:
                frames = self._frames(Done(ids, overs, infos))
        frames += b"".join(self._frames(self._located(message)) for message in messages)
        return Answer(env_ids, observations, outcome_bytes, quiet, frames, more)

    def _located(self, message: Any) -> Any:
        return located(message, self._first_worker, self._location)

    def _frames(self, message: Any) -> bytes:
        return b"".join(frames_of(message, self._first_worker)[0])

    # ---------------------------------------------------------------------------------------------------- rest

    def times(self) -> tuple[Array, ...]:
        """Return copies of the recorded times: ``times``, ``histogram`` and ``worker_times`` of the actor's slab.

        The first axis of ``times`` and ``histogram`` runs over the actor's environments.
        """
        slab = self._slab
        return slab.times.copy(), slab.histogram.copy(), slab.worker_times.copy()

    def close(self, grace_s: float = CLOSE_S) -> bytes:
        """Close the environments and end the workers; return a frame for each environment that failed to close."""
        with self._changed:
            messages = self._workers.close(grace_s)
        return b"".join(self._frames(self._located(message)) for message in messages if isinstance(message, Failed))
