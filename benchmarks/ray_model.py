"""A model of actors over Ray: the cost of calls, fitted to measured ones, and a simulator that adds them up.

A batch of all environments of N actors consists of N calls. A call has two parts: the driver's work (sending actions,
storing rows), done for one call at a time, and the rest, which runs in parallel: transfers by Ray, and the steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

__all__ = ["Arrangement", "Cost", "Costs", "Forecast", "fitted", "simulate"]


class Cost(NamedTuple):
    """The seconds of a call, of each environment in it, and of each byte of their observations; none is negative."""

    call_s: float
    env_s: float
    byte_s: float

    def of(self, num_envs: float, obs_nbytes: int) -> float:
        """Return the seconds of a call for num_envs environments with observations of obs_nbytes bytes."""
        return self.call_s + num_envs * (self.env_s + obs_nbytes * self.byte_s)


class Costs(NamedTuple):
    """The two costs of a call. driver: in the learner's thread. rest: on its way and in the actor."""

    driver: Cost
    rest: Cost


class Arrangement(NamedTuple):
    """An arrangement of actors to simulate.

    num_actors: one per node, each with envs_per_actor environments, of which ``side_by_side`` step at a time. step_s:
    seconds of an environment's step, during which it needs no core that others use. batch_calls: actors' answers in a
    batch; None: of all. learner_s: the learner's seconds for each environment's step. steps_per_call: 1 if each step is
    a call; more if actors play by themselves and send whole rollouts. cores: shared by everything, on a machine that
    stands for several nodes; None: unlimited.
    """

    num_actors: int
    envs_per_actor: int
    obs_nbytes: int
    step_s: float
    side_by_side: int = 1
    batch_calls: int | None = None
    learner_s: float = 0.0
    steps_per_call: int = 1
    cores: int | None = None


class Forecast(NamedTuple):
    """The predicted speed. steps_per_s: of environments. busy: the share of time in which the driver's thread works."""

    steps_per_s: float
    busy: float


def fitted(points: Sequence[tuple[int, int, float]]) -> Cost:
    """Return the cost that fits the calls best. points: (environments, bytes of an observation, seconds) of each call.

    It minimizes the squares of relative errors over the subsets of terms for which no term is negative.
    """
    rows = np.array([(1.0, envs, envs * nbytes) for envs, nbytes, _ in points])
    seconds = np.array([seconds for *_, seconds in points])
    best, least = np.zeros(3), np.inf
    for count in (1, 2, 3):
        for terms in map(list, combinations(range(3), count)):
            scaled = rows[:, terms] / seconds[:, None]
            size = np.abs(scaled).max(0)  # the seconds of a byte are a millionth of those of a call
            coefficients = np.linalg.lstsq(scaled / size, np.ones(len(rows)), rcond=None)[0] / size
            error = float(np.square(scaled @ coefficients - 1).sum())
            if (coefficients >= 0).all() and error < least:
                best, least = np.zeros(3), error
                best[terms] = coefficients
    return Cost(*best.tolist())


def simulate(costs: Costs, arrangement: Arrangement, num_calls: int = 2_000) -> Forecast:
    """Return the forecast of an arrangement by a model's costs, over at least num_calls calls after a first fifth."""
    carried = arrangement.envs_per_actor * arrangement.steps_per_call
    driver_s, rest_s = (cost.of(carried, arrangement.obs_nbytes) for cost in costs)
    num_rounds = -(-arrangement.envs_per_actor // arrangement.side_by_side) * arrangement.steps_per_call
    cores = [0.0] * (arrangement.cores or 0)  # when each is free

    def work(at_s: float, seconds: float) -> float:
        """Return the time at which work is done that can begin at ``at_s``."""
        if not cores:
            return at_s + seconds
        done_s = max(at_s, heapq.heappop(cores)) + seconds
        heapq.heappush(cores, done_s)
        return done_s

    arrivals: list[float] = []

    def send(at_s: float) -> float:
        sent_s = work(at_s, driver_s / 2)
        heapq.heappush(arrivals, work(sent_s, rest_s) + num_rounds * arrangement.step_s)
        return sent_s

    now_s = 0.0
    for _ in range(arrangement.num_actors):
        now_s = send(now_s)
    batch = arrangement.batch_calls or arrangement.num_actors
    num_batches = max(10, -(-num_calls // batch), 3 * -(-arrangement.num_actors // batch))
    idle_s = began_s = 0.0
    for number in range(-num_batches // 5, num_batches):
        if number == 0:
            idle_s, began_s = 0.0, now_s
        for _ in range(batch):
            arrival_s = heapq.heappop(arrivals)
            idle_s += max(0.0, arrival_s - now_s)
            now_s = work(max(now_s, arrival_s), driver_s / 2)
        now_s = work(now_s, batch * carried * arrangement.learner_s)
        for _ in range(batch):
            now_s = send(now_s)
    took_s = now_s - began_s
    return Forecast(num_batches * batch * carried / took_s, 1 - idle_s / took_s)
