"""RayBackend: workers in actors on the machines of a cluster.

One call carries actions to many environments of an actor, and its answer carries the rows of many environments. Small
answers of actors with worker processes come over a socket (sockets.py). All other answers come through Ray, with large
observations as arrays in the object store. This file makes calls and reads answers. calls.py sends calls and receives
answers, actor.py is the code in an actor, and supervisor.py starts and ends actors.
"""

from __future__ import annotations

import math
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from pufferlib.errors import CallError, PlanError, PlatformError
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.arguments import checked_seconds
from pufferlib.vectorization.core.backend import CLOSE_S, SLICE_S, Backend
from pufferlib.vectorization.core.frames import complete_frames, messages_of, sealed_frame
from pufferlib.vectorization.core.messages import (
    Attach,
    Call,
    Died,
    Done,
    EnvSpec,
    Failed,
    Request,
    Reset,
    Sealed,
    Step,
)
from pufferlib.vectorization.core.plan import Plan, checked_count
from pufferlib.vectorization.core.slab import Slab
from pufferlib.vectorization.core.step_watchdog import Limits
from pufferlib.vectorization.driver.factory import BackendKind
from pufferlib.vectorization.processes.backend import checked_settings
from pufferlib.vectorization.processes.start import pickle_task, start_method
from pufferlib.vectorization.ray.actor import (
    REQUEST,
    REVIVE,
    SMALL_NBYTES,
    STEPS,
    ActorTask,
    Answer,
    Format,
    WorkersActor,
    outcomes_of,
    unpacked_answer,
)
from pufferlib.vectorization.ray.calls import ActorHandle, Calls
from pufferlib.vectorization.ray.connection import Connection, reason
from pufferlib.vectorization.ray.supervisor import Supervisor
from pufferlib.vectorization.worker.worker import WorkerTask

__all__ = ["Ray", "RayBackend"]

START_S = 60.0
NODE_DIED = "its node has died"  # part of the text of Ray's errors
MOST_CALLS = 8  # in an actor at once: usually there are two, and calls that arrive out of order wait inside


class RayBackend(Backend):
    """A backend whose workers are in Ray actors. The slab is private to the driver; rows are copied into it."""

    watched = False  # actors run the watchdogs of their workers

    def __init__(
        self,
        plan: Plan,
        task: Callable[[int, range], WorkerTask],
        *,
        context: str | None,
        entropy: Any,
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
        placement: Any = "SPREAD",
        local_workers: int = 0,
        worker_threads: int | None = 1,
        spin: int | None = None,
        start_timeout: float | None = START_S,
    ) -> None:
        most = max(map(len, plan.shares))
        local_workers = checked_count("local_workers", local_workers, 0, "; 0 is the actor itself")
        if local_workers > most:
            raise PlanError(f"local_workers={local_workers} is more than an actor has environments; use 0 to {most}")
        start_s = checked_seconds("start_timeout", start_timeout)
        worker_threads, spin = checked_settings(worker_threads, spin)
        if context is not None:
            start_method(context)  # raises the same error as in the actors
        self._plan = plan
        self._start_s = math.inf if start_s is None else start_s
        self._in_place = local_workers == 0 and task(0, range(1)).limits == Limits()
        self._task = ActorTask([], None, self._in_place, plan.synchronous, context, entropy, 0, worker_threads, spin)
        self._actors: list[ActorHandle] = []
        tasks: list[WorkerTask] = []
        for index, share in enumerate(plan.shares):
            parts = Plan.of(len(share), min(max(local_workers, 1), len(share)), None, share.start).shares
            self._actors.append(
                ActorHandle(index, [task(len(tasks) + number, part) for number, part in enumerate(parts)])
            )
            tasks += self._actors[-1].tasks
        self.shares = tuple(worker_task.env_ids for worker_task in tasks)
        self._actor_of = [actor for actor in self._actors for _ in actor.tasks]  # of each worker
        self._ended: set[int] = set()  # dead workers in living actors
        self._deferred: list[Any] = []
        self._slots = np.zeros(plan.num_envs, np.int64)  # the slot of each environment's next rows
        self._counting = np.arange(plan.num_envs)
        self._slab: Slab | None = None
        self._format: Format | None = None
        self._closed = False
        self._supervisor = Supervisor(
            Connection(address),
            WorkersActor,
            self._actors,
            resources=resources,
            placement=placement,
            max_concurrency=1 if self._in_place else MOST_CALLS,  # in place all happens in the actor's main thread
        )
        self._connection, self._ray = self._supervisor.connection, self._supervisor.ray
        self._calls = Calls(self._ray, self._actors)

    # ------------------------------------------------------------------------------------------- beginning

    def start(self, worker: int, env_spec: EnvSpec | None = None) -> int:
        actor = self._actor_of[worker]
        if actor.handle is None:
            actor.more, actor.begun_s, actor.location, actor.env_spec = False, time.monotonic(), "", env_spec
            actor.held.clear()  # requests that were meant for its predecessor
            self._request_actor(actor)
        elif worker in self._ended:
            self._call(actor, [(REVIVE, worker - actor.workers.start)])
        self._ended.discard(worker)
        return 0  # its process may be on another machine

    def _request_actor(self, actor: ActorHandle) -> None:
        """Ask Ray for an actor, its location and the start of its workers. Requests held for it remain held."""
        task = self._task._replace(tasks=actor.tasks, env_spec=actor.env_spec, generation=actor.generation)
        pickled_task = pickle_task(task, "actors need")
        self._supervisor.start(actor)
        actor.calls.clear()
        actor.calls.append(("where", actor.handle.where.remote()))
        actor.calls.append(("start", actor.handle.start.remote(pickled_task, self._format, sys.path)))
        actor.number = 0
        if self._format is not None:
            self._ask_for_client(actor)

    def _ask_for_client(self, actor: ActorHandle) -> None:
        """Request a direct connection to an actor.

        Do nothing if the actor's worker runs in the actor's own process, or if answers may be large.
        """
        rows = self._columns[0][: len(actor.env_ids)]
        if rows.nbytes <= SMALL_NBYTES and not self._in_place:  # in place all happens in the actor's main thread
            self._calls.ask_for_client(actor)

    def _attach(self, slab: Slab) -> None:
        """Make a slab the target of all rows, and wait until the actors are ready to fill it."""
        self._slab, shape = slab, slab.shape
        self._format = format = Format(shape.reward_dtype, shape.telemetry)
        self._columns = [
            column.reshape(shape.num_slots, shape.agents_per_env, *column.shape[2:])
            for column in (slab.observations, slab.rewards, slab.terminations, slab.truncations, slab.masks)
        ]
        self._actions = slab.actions_by_env
        self._times_before = [self._times_of(actor) for actor in self._actors]
        for actor in self._actors:
            actor.calls.append(("attach", actor.handle.attach.remote(format)))
            self._ask_for_client(actor)
        self._await_attached(time.monotonic() + self._start_s)

    def _await_attached(self, deadline_s: float) -> None:
        """Wait until all actors are ready. Raises WorkerError if an actor dies, PlatformError if one takes too long."""
        while late := [actor for actor in self._actors if actor.calls]:
            self._connection.check()
            for actor in self._calls.wait(SLICE_S):
                for message in self._hear(actor):
                    raise message.error()
            if time.monotonic() > deadline_s:
                raise PlatformError(
                    f"{late[0].name} has made its environments, and then did not answer within {self._start_s:g} s; "
                    "is its process stopped, or its machine overloaded?"
                )

    # ---------------------------------------------------------------------------------------- step by step

    def seal(self, request: Reset | Call) -> Sealed:
        try:
            return Sealed(request, sealed_frame(request, by_value=True))
        except Exception as error:  # any error of the user's object
            raise CallError(f"the request to the workers cannot be pickled: {error}") from error

    def submit(self, requests: Mapping[int, Request]) -> None:
        by_actor: dict[int, list[Any]] = {}
        for worker, request in requests.items():
            if isinstance(request, Attach):
                if self._slab is None:  # otherwise a replaced actor was told the format when it was started
                    self._attach(request.slab)
                continue
            actor = self._actor_of[worker]
            sent = by_actor.setdefault(actor.index, [])
            if isinstance(request, Step):
                self._slots[list(request.env_ids)] = request.slots
                if sent and sent[-1][0] == STEPS:
                    sent[-1][1].extend(request.env_ids)
                else:
                    sent.append((STEPS, [*request.env_ids]))
                continue
            sealed = request if isinstance(request, Sealed) else self.seal(request)
            if isinstance(sealed.request, Reset):
                for order in sealed.request.orders:
                    self._slots[order.env_id] = order.slot
            sent.append((REQUEST, worker - actor.workers.start, sealed.frame))
        for index, sent in by_actor.items():
            self._call(self._actors[index], [self._with_actions(request) for request in sent])

    def _with_actions(self, request: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a request to an actor, with the environments' actions added if it is for steps."""
        if request[0] != STEPS:
            return request
        _, ids = request
        return STEPS, ids, [array[ids].tobytes() for array in self._actions]

    def _call(self, actor: ActorHandle, requests: list[Any]) -> None:
        """Send requests to an actor in one call, or hold them until the actor is placed.

        The answer to the call holds the results that are ready by then. Does nothing if the actor has died.
        """
        if actor.handle is None:  # it has died meanwhile, which ``poll`` reports
            return
        if actor.begun_s is not None:
            actor.held.append(requests)
            return
        self._connection.require()
        share, plan = len(actor.env_ids), self._plan
        num_back = share if plan.synchronous else min(share, plan.batch_size)
        actor.number += 1
        call = pickle.dumps((actor.number, requests, num_back), pickle.HIGHEST_PROTOCOL)
        self._calls.send(actor, call)

    def poll(self, timeout: float | None) -> list[Any]:
        deadline = None if timeout is None else time.monotonic() + timeout
        messages, self._deferred = self._deferred, []
        while not self._closed and not messages:
            self._connection.check()
            left_s = SLICE_S if deadline is None else min(SLICE_S, max(0.0, deadline - time.monotonic()))
            for actor in self._actors:
                if actor.more and not actor.calls:
                    self._call(actor, [])
            self.interruptible = True  # answers that have arrived are not lost
            ready = self._calls.wait(left_s)
            self.interruptible = False
            for actor in ready:
                messages += self._hear(actor)
            messages += self._late()
            if deadline is not None and time.monotonic() >= deadline:
                break
        return messages

    def _hear(self, actor: ActorHandle) -> list[Any]:
        """Take the answer to an actor's oldest call, and return the messages that result from it.

        An actor that reports its location is sent the requests held for it. If the call failed, or the direct
        connection to the actor ended, the actor is killed, and the result is a Died message for each of its workers.
        If the call failed because the node died before the actor was placed, Ray is asked for the actor again instead.
        """
        try:
            kind, answer = self._calls.take(actor)
        except self._ray.exceptions.RayError as error:
            if actor.begun_s is not None and NODE_DIED in str(error):  # placed before Ray knew of that: nothing is lost
                self._request_actor(actor)
                return []
            return self._bury(actor, f"was lost with its actor ({reason(error)})")
        if kind == "where":
            actor.location, actor.begun_s = answer, None
            held, actor.held = actor.held, []
            for requests in held:
                self._call(actor, requests)
        elif kind == "serve":  # it lives, but its answers are lost
            return self._bury(actor, "was lost with the connection to its actor")
        elif kind == "start":
            return self._messages(actor, answer)
        elif kind == "exchange":
            return self._take(actor, unpacked_answer(answer))
        return []

    def _take(self, actor: ActorHandle, answer: Answer) -> list[Any]:
        """Copy an answer's rows into their slots, and return the answer's messages."""
        actor.more = answer.more
        ids = actor.env_ids if answer.env_ids is None else answer.env_ids
        if len(ids):
            assert self._slab is not None and answer.observations is not None
            slots = self._slots[ids.start : ids.stop] if isinstance(ids, range) else self._slots[ids]
            first = int(slots[0])
            index: Any = slots
            if np.array_equal(slots, self._counting[: len(slots)] + first):
                index = slice(first, first + len(slots))
            num_rows = len(ids) * self._slab.shape.agents_per_env
            rewards_and_flags = outcomes_of(answer.outcome_bytes, num_rows, self._slab.shape.reward_dtype)
            for column, rows in zip(self._columns, (answer.observations, *rewards_and_flags), strict=True):
                column[index] = rows.reshape(len(ids), *column.shape[1:])
        quiet = [Done(list(actor.env_ids), [False] * len(actor.env_ids), [])] if answer.quiet else []
        return [*quiet, *self._messages(actor, answer.frames)]

    def _messages(self, actor: ActorHandle, frames: bytes) -> list[Any]:
        first = actor.workers.start
        messages = [message for frame in complete_frames(bytearray(frames)) for message in messages_of(frame, first)]
        self._ended.update(message.worker for message in messages if isinstance(message, Died))
        return messages

    def _late(self) -> list[Any]:
        """Give up on actors that were not placed in time; return their workers' Died messages.

        Raises PlatformError instead for an actor that replaces no other.
        """
        messages: list[Any] = []
        now_s = time.monotonic()
        for actor in self._actors:
            if actor.handle is not None and actor.begun_s is not None and now_s - actor.begun_s > self._start_s:
                how = f"was not placed within {self._start_s:g} s: {self._supervisor.placement.want()}"
                if actor.env_spec is None:
                    raise PlatformError(f"actor {actor.index} {how}")
                messages += self._bury(actor, how)
        return messages

    def _bury(self, actor: ActorHandle, how: str) -> list[Any]:
        """Kill an actor, if it still runs, and discard its calls; return its workers' Died messages."""
        self._supervisor.kill(actor)
        self._calls.discard(actor)
        self._ended.difference_update(actor.workers)
        if self._slab is not None:  # the replacement's times start at zero
            self._times_before[actor.index] = self._times_of(actor)
        return [Died(task.worker, None, task.env_ids, location=actor.location, how=how) for task in actor.tasks]

    def kill(self, worker: int, cause: str) -> None:
        actor = self._actor_of[worker]
        if actor.handle is not None:  # otherwise it has already died
            self._deferred += self._bury(actor, f"was killed, as {cause}")

    # ----------------------------------------------------------------------------------------------- times

    def _times_of(self, actor: ActorHandle) -> tuple[Array, ...]:
        assert self._slab is not None
        slab, envs, workers = self._slab, slice(actor.env_ids.start, actor.env_ids.stop), actor.workers
        arrays = (slab.times[envs], slab.histogram[envs], slab.worker_times[workers.start : workers.stop])
        return tuple(array.copy() for array in arrays)

    def fetch_times(self) -> None:
        assert self._slab is not None
        self._connection.require()
        slab, placed = self._slab, [actor for actor in self._actors if actor.handle and actor.begun_s is None]
        calls = {actor.handle.times.remote(): actor for actor in placed}
        for actor, (times, histogram, worker_times) in self._supervisor.answers(calls, CLOSE_S)[0]:
            before = self._times_before[actor.index]
            envs = slice(actor.env_ids.start, actor.env_ids.stop)
            slab.times[envs] = before[0] + times
            slab.times[envs, :, -1] = np.maximum(before[0][..., -1], times[..., -1])  # the longest time
            slab.histogram[envs] = before[1] + histogram
            slab.worker_times[actor.workers.start : actor.workers.stop] = before[2] + worker_times

    def cores(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    # ---------------------------------------------------------------------------------------------- ending

    def close(self, grace_s: float = CLOSE_S) -> list[Any]:
        with closing(self._supervisor), closing(self._calls):
            messages = self._close_environments(grace_s) if grace_s > 0 else []
        self._closed = True
        return messages

    def _close_environments(self, grace_s: float) -> list[Any]:
        """Ask actors to close their environments; return the failures that they report, and warn of late actors."""
        making = ("start", "attach")  # the calls of actors that are still making environments
        placed = [actor for actor in self._actors if actor.begun_s is None]
        asked = [actor for actor in placed if not any(kind in making for kind, _ in actor.calls)]
        answers, late = self._supervisor.ask_to_close(asked, grace_s, grace_s)
        for actor in late:
            warnings.warn(
                f"{actor.name} did not close its environments in {grace_s:.0f} s and was killed",
                RuntimeWarning,
                stacklevel=2,
            )
        messages = [message for actor, frames in answers for message in self._messages(actor, frames)]
        return [message for message in messages if isinstance(message, Failed)]


Ray = BackendKind(
    "ray",
    "Ray",
    RayBackend,
    ("address", "resources", "placement", "local_workers", "worker_threads", "spin", "start_timeout"),
    first_finished=True,
    doc="""A VecEnv whose workers are in Ray actors on a cluster; a batch holds the first environments to finish.

num_workers: the number of actors, each with a contiguous share of the environments. backend_kwargs:

address: the cluster's address, as for ``ray.init`` ("auto", "ray://host:10001"); by default the Ray that this
    process is connected to, else the one that RAY_ADDRESS names, else a new local one, which ends with its last
    VecEnv.
resources: the resources that each actor reserves: ``num_cpus``, ``num_gpus``, ``memory``, and custom ones by name.
    By default one CPU; in a new local Ray nothing, unless there is a placement group.
placement: "SPREAD" (over nodes, the default), "DEFAULT" (Ray decides), "PACK", "STRICT_PACK", "STRICT_SPREAD" (by
    a placement group), or one of Ray's scheduling strategies.
local_workers: the number of processes on each actor's node that step its environments; 0 (the default): the actor
    itself steps them. With a timeout there is at least one process, because a process can be killed.
worker_threads, spin: see Multiprocessing, but spin is 0 by default. start_timeout: the seconds within which an actor
    must be placed, and then be ready to step, 60 by default; None for no limit.
""",
)
