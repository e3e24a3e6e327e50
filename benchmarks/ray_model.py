"""A model of Ray actors with local workers: the costs of calls, fitted to measured ones, and a simulator.

Calls of up to ``SMALL_NBYTES`` of observations go over a socket, larger ones through Ray, and each way has its costs.
A call has two parts: the driver's work (sending actions, storing rows), done for one call at a time, and the rest,
which runs in parallel: the way there and back, and the actor's work. Half of each part belongs to the call, half to its
answer.

The rules are those of pufferlib/vectorization/ray. If batches hold all environments, an actor answers once all of its
environments have finished. Otherwise it answers when it has a batch's rows, when the first row has waited for
``LINGER_DIRECT_S`` or ``LINGER_S``, when no more rows can come, or when the next call arrives; and the driver calls an
actor that has work in progress and no call.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from pufferlib.vectorization.ray.actor import LINGER_DIRECT_S, LINGER_S, SMALL_NBYTES

__all__ = ["Arrangement", "Call", "Cost", "Costs", "Forecast", "Model", "fitted", "simulate"]


class Call(NamedTuple):
    """What a call's cost depends on: its environments, their workers, and the bytes of an observation."""

    num_envs: int
    num_workers: int
    obs_nbytes: int

    @property
    def is_direct(self) -> bool:
        """Whether the call goes over a socket, rather than through Ray."""
        return self.num_envs * self.obs_nbytes <= SMALL_NBYTES


class Cost(NamedTuple):
    """The seconds of a call, of each worker, each environment and each byte of observations in it; all at least 0."""

    call_s: float
    worker_s: float
    env_s: float
    byte_s: float

    def of(self, num_envs: float, num_workers: int, obs_nbytes: int) -> float:
        """Return the seconds of a call. Without environments, no worker has anything to do."""
        workers_s = min(num_workers, num_envs) * self.worker_s
        return self.call_s + workers_s + num_envs * (self.env_s + obs_nbytes * self.byte_s)


class Costs(NamedTuple):
    """The two costs of a call. driver: in the learner's thread. rest: on its way and in the actor."""

    driver: Cost
    rest: Cost


class Model(NamedTuple):
    """The costs of calls over a socket and of calls through Ray."""

    direct: Costs
    through_ray: Costs


class Arrangement(NamedTuple):
    """An arrangement of actors to simulate.

    num_actors: one per node, each with envs_per_actor environments on num_workers local workers. step_s: seconds of an
    environment's step, during which it needs no core that others use. batch_envs: environments in a batch; None: all.
    learner_s: the learner's seconds for each environment's step. steps_per_call: 1 if each step is a call; more if
    actors play by themselves and send whole rollouts. cores: shared by everything, on a machine that stands for several
    nodes; None: unlimited.
    """

    num_actors: int
    envs_per_actor: int
    obs_nbytes: int
    step_s: float
    num_workers: int = 1
    batch_envs: int | None = None
    learner_s: float = 0.0
    steps_per_call: int = 1
    cores: int | None = None


class Forecast(NamedTuple):
    """The predicted speed. steps_per_s: of environments. busy: the share of time in which the driver's thread works."""

    steps_per_s: float
    busy: float


def fitted(points: Sequence[tuple[Call, float]]) -> Cost:
    """Return the cost that fits measured calls best. points: calls, and the seconds of each.

    It minimizes the squares of relative errors over the subsets of terms for which no term is negative. The cost has
    nine digits: the order of events in a simulation depends on the last ones, which differ by the version of NumPy.
    """
    rows = np.array(
        [(1.0, call.num_workers, call.num_envs, call.num_envs * call.obs_nbytes) for call, _ in points], float
    )
    seconds = np.array([seconds for _, seconds in points])
    best, least = np.zeros(rows.shape[1]), np.inf
    for count in range(1, rows.shape[1] + 1):
        for terms in map(list, combinations(range(rows.shape[1]), count)):
            scaled = rows[:, terms] / seconds[:, None]
            size = np.abs(scaled).max(0)  # the seconds of a byte are a millionth of those of a call
            if np.linalg.matrix_rank(scaled / size) < count:  # these points do not tell the terms apart
                continue
            coefficients = np.linalg.lstsq(scaled / size, np.ones(len(rows)), rcond=None)[0] / size
            error = float(np.square(scaled @ coefficients - 1).sum())
            if (coefficients >= 0).all() and error < least * (1 - 1e-9):
                best, least = np.zeros(rows.shape[1]), error
                best[terms] = [float(f"{value:.9g}") for value in coefficients]
    return Cost(*best.tolist())


@dataclass(eq=False)
class _Actor:
    """The state of an actor. num_ready: rows that no answer has carried. num_due: environments that step or wait to.

    free_s: when its workers have done all they were given. waiting: whether a call waits for rows. linger: the number
    of the wait that the last deadline belongs to; later answers have made other deadlines void.
    """

    num_ready: int = 0
    num_due: int = 0
    free_s: float = 0.0
    waiting: bool = False
    lingers: bool = False
    wait_number: int = 0
    num_calls: int = 0  # on their way, or waiting


CALLED, FINISHED, LINGERED = range(3)


class _Cluster:
    """The simulation of a driver and its actors. Times are seconds since the start."""

    def __init__(self, model: Model, arrangement: Arrangement) -> None:
        self.arrangement = at = arrangement
        is_direct = Call(at.envs_per_actor * at.steps_per_call, at.num_workers, at.obs_nbytes).is_direct
        self.costs = model.direct if is_direct else model.through_ray
        self.linger_s = LINGER_DIRECT_S if is_direct else LINGER_S
        self.batch_envs = at.batch_envs or at.num_actors * at.envs_per_actor
        self.synchronous = self.batch_envs == at.num_actors * at.envs_per_actor
        self.num_back = at.envs_per_actor if self.synchronous else min(at.envs_per_actor, self.batch_envs)
        self.actors = [_Actor() for _ in range(at.num_actors)]
        self.events: list[tuple[float, int, int, int, int]] = []  # (time, number, kind, actor, rows or wait)
        self.answers: list[tuple[float, int, int, int, bool]] = []  # (arrival, number, actor, rows, more)
        self.num_events = 0
        self.cores = [0.0] * (at.cores or 0)  # when each is free
        self.now_s = self.idle_s = 0.0  # of the driver

    def half_s(self, cost: Cost, num_envs: int) -> float:
        """Return half a call's seconds, for a call or an answer of num_envs environments."""
        at = self.arrangement
        return cost.of(num_envs * at.steps_per_call, at.num_workers, at.obs_nbytes) / 2

    def work(self, at_s: float, seconds: float) -> float:
        """Return the time at which work is done that can begin at ``at_s``."""
        if not self.cores:
            return at_s + seconds
        done_s = max(at_s, heapq.heappop(self.cores)) + seconds
        heapq.heappush(self.cores, done_s)
        return done_s

    def add(self, at_s: float, kind: int, actor: int, value: int) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (at_s, self.num_events, kind, actor, value))

    def send(self, index: int, num_envs: int) -> None:
        """Call an actor from the driver, with the actions of num_envs environments."""
        self.now_s = self.work(self.now_s, self.half_s(self.costs.driver, num_envs))
        self.actors[index].num_calls += 1
        self.add(self.work(self.now_s, self.half_s(self.costs.rest, num_envs)), CALLED, index, num_envs)

    def run_event(self) -> None:
        at_s, _, kind, index, value = heapq.heappop(self.events)
        actor, at = self.actors[index], self.arrangement
        if kind == CALLED:
            if actor.waiting:  # at most one call waits for rows
                self.answer(at_s, index)
            actor.waiting, actor.wait_number, actor.lingers = True, actor.wait_number + 1, False
            actor.num_due += value
            while value > 0:
                size = min(value, at.num_workers)
                value -= size
                actor.free_s = max(actor.free_s, at_s) + at.step_s * at.steps_per_call
                self.add(actor.free_s, FINISHED, index, size)
        elif kind == FINISHED:
            actor.num_ready += value
            actor.num_due -= value
        elif value != actor.wait_number:  # the call that lingered has been answered
            return
        if not actor.waiting:
            return
        is_full = actor.num_ready >= self.num_back or not actor.num_due
        if is_full or kind == LINGERED:
            self.answer(at_s, index)
        elif actor.num_ready and not actor.lingers and not self.synchronous:
            actor.lingers = True
            self.add(at_s + self.linger_s, LINGERED, index, actor.wait_number)

    def answer(self, at_s: float, index: int) -> None:
        """Answer an actor's waiting call."""
        actor = self.actors[index]
        num_rows, actor.num_ready, actor.waiting = actor.num_ready, 0, False
        self.num_events += 1
        arrival_s = self.work(at_s, self.half_s(self.costs.rest, num_rows))
        heapq.heappush(self.answers, (arrival_s, self.num_events, index, num_rows, actor.num_due > 0))

    def receive(self) -> tuple[int, int]:
        """Wait in the driver for an answer and take it; return the actor and the number of rows."""
        while self.events and (not self.answers or self.events[0][0] < max(self.now_s, self.answers[0][0])):
            self.run_event()
        arrival_s, _, index, num_rows, more = heapq.heappop(self.answers)
        self.idle_s += max(0.0, arrival_s - self.now_s)
        self.now_s = self.work(max(self.now_s, arrival_s), self.half_s(self.costs.driver, num_rows))
        self.actors[index].num_calls -= 1
        if more and not self.actors[index].num_calls:
            self.send(index, 0)
        return index, num_rows


@lru_cache(maxsize=256)
def simulate(model: Model, arrangement: Arrangement, num_calls: int = 2_000) -> Forecast:
    """Return the forecast of an arrangement by a model's costs.

    It is taken over at least num_calls answers and 10 batches, after a first fifth of them.
    """
    at, cluster = arrangement, _Cluster(model, arrangement)
    for index in range(at.num_actors):
        cluster.send(index, at.envs_per_actor)
    waiting: deque[tuple[int, int]] = deque()  # (actor, rows) that no batch has held
    num_waiting = num_answers = num_batches = 0
    began: Any = None
    while True:
        if began is None and num_batches >= 2 and num_answers >= num_calls / 5:
            began = num_batches, cluster.now_s, cluster.idle_s
            num_answers = 0
        elif began is not None and num_batches - began[0] >= 10 and num_answers >= num_calls:
            break
        while num_waiting < cluster.batch_envs:
            index, num_rows = cluster.receive()
            num_answers += 1
            if num_rows:
                waiting.append((index, num_rows))
                num_waiting += num_rows
        by_actor: dict[int, int] = {}
        num_needed = cluster.batch_envs
        while num_needed:
            index, num_rows = waiting.popleft()
            num_taken = min(num_rows, num_needed)
            by_actor[index] = by_actor.get(index, 0) + num_taken
            num_needed -= num_taken
            if num_taken < num_rows:
                waiting.appendleft((index, num_rows - num_taken))
        num_waiting -= cluster.batch_envs
        carried = cluster.batch_envs * at.steps_per_call
        cluster.now_s = cluster.work(cluster.now_s, carried * at.learner_s)
        for index, num_envs in by_actor.items():
            cluster.send(index, num_envs)
        num_batches += 1
    first_batch, began_s, idle_s = began
    took_s = cluster.now_s - began_s
    steps = (num_batches - first_batch) * cluster.batch_envs * at.steps_per_call
    return Forecast(steps / took_s, 1 - (cluster.idle_s - idle_s) / took_s)
