"""Simulate a plan with measured step times, to estimate its throughput.

The model. A worker steps its environments one at a time, in the order in which their actions arrive. A step first needs
a core for its CPU time, and waits for one if all are busy (first come, first served); for the rest of its time it
sleeps, without a core. The learner takes a batch as soon as it is full, thinks, and sends actions for the whole batch.
Step times are drawn from each environment's histogram if it holds enough samples, else from the pooled one, so that an
environment that is always slow stays slow; successive steps are independent. The overhead of a batch, on top of steps
and thinking, is one number, spent on the learner's side.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from pufferlib.telemetry.timeline import NUM_BUCKETS, bucket_edges
from pufferlib.util.annotations import Array

__all__ = ["Arrangement", "Load", "steps_per_s"]


_ROWS = 4000  # steps of a simulation, but at least three batches; each step takes 1 to 2 us
_MOST_BATCHES = 2000
_ENOUGH = 50  # the samples that a histogram needs for draws from it
_SLACK = 4  # draws of an environment, in multiples of its even share; then they repeat


EDGES = bucket_edges()


@dataclass(frozen=True)
class Load:
    """The step and reset times of environments.

    histogram: (num_envs, NUM_BUCKETS), step times as in ``timeline``; a plan with more environments repeats its rows.
    means_s, stds_s: (num_envs,), the means and standard deviations of these times; draws are scaled to them, because a
    bucket locates its samples only roughly. cpu: the share of a step that needs a core, 0 to 1. net_share: the share of
    the measured time that workers did not spend waiting for one another's cores. reset_share: the share of rows that
    are resets. reset_s: the mean time of a reset, in seconds.
    """

    histogram: Array
    means_s: Array
    stds_s: Array
    cpu: float = 1.0
    net_share: float = 1.0
    reset_share: float = 0.0
    reset_s: float = 0.0

    @property
    def row_s(self) -> float:
        """The mean time of a row (a step or a reset) in seconds, without workers' waits for one another's cores."""
        mean_s, _ = self._pooled
        return self.net_share * ((1 - self.reset_share) * mean_s + self.reset_share * self.reset_s)

    @property
    def _pooled(self) -> tuple[float, float]:
        weights = np.asarray(self.histogram, np.float64).sum(1)
        known = weights > 0
        if not known.any():
            return 0.0, 0.0
        weights, means = weights[known] / weights.sum(), self.means_s[known]
        mean = float((weights * means).sum())
        return mean, float(np.sqrt((weights * (self.stds_s[known] ** 2 + (means - mean) ** 2)).sum()))

    def draws(self, num_envs: int, num_draws: int, seed: int = 0) -> list[list[float]]:
        """Draw ``num_draws`` durations of steps and resets, in seconds, for each of ``num_envs`` environments."""
        generator = np.random.default_rng(seed)
        counts = np.asarray(self.histogram, np.float64)
        pooled = counts.sum(0), *self._pooled
        drawn = np.zeros((num_envs, num_draws))
        for env_id in range(num_envs if pooled[0].any() else 0):
            row = env_id % len(counts)
            single = counts[row], float(self.means_s[row]), float(self.stds_s[row])
            drawn[env_id] = _fitting(generator, num_draws, *(single if counts[row].sum() >= _ENOUGH else pooled))
        drawn *= self.net_share
        if self.reset_share > 0:
            resets = generator.random(drawn.shape) < self.reset_share
            drawn[resets] = self.net_share * self.reset_s
        rows: list[list[float]] = drawn.tolist()
        return rows


def _fitting(generator: np.random.Generator, num: int, counts: Array, mean_s: float, std_s: float) -> Array:
    """Draw durations from a histogram, scaled to this mean and to at most this standard deviation."""
    weights, low, width = counts / counts.sum(), EDGES[:-1], np.diff(EDGES)
    middles = low + width / 2
    mean = float((weights * middles).sum())
    std = float(np.sqrt((weights * (middles**2 + width**2 / 12)).sum() - mean**2))
    buckets = np.searchsorted(np.cumsum(weights), generator.random(num), side="right").clip(max=NUM_BUCKETS - 1)
    drawn = low[buckets] + width[buckets] * generator.random(num)
    return np.asarray(np.maximum(0.0, mean_s + min(1.0, std_s / std) * (drawn - mean)))


@dataclass(frozen=True)
class Arrangement:
    """The plan and the learner to simulate.

    think_s: the time that the learner thinks about a batch, in seconds. overhead_s: the time that a batch costs on top
    of steps and thinking. first_finished: whether a batch holds the environments that finish first, rather than those
    that were sent their actions first.
    """

    num_envs: int
    num_workers: int
    batch_size: int
    cores: int
    think_s: float = 0.0
    think_cpu: bool = True  # whether the learner needs a core to think
    overhead_s: float = 0.0
    first_finished: bool = True


def steps_per_s(load: Load, plan: Arrangement) -> float:
    """Simulate a plan and return its environment steps per second."""
    batch_size, num_envs = plan.batch_size, plan.num_envs
    warm_up = -(-num_envs // batch_size) + 1
    num_batches = warm_up + max(3, min(_MOST_BATCHES, _ROWS // batch_size))
    num_draws = max(8, _SLACK * num_batches * batch_size // num_envs)
    times = _play(load, plan, num_batches, load.draws(num_envs, min(num_draws, 1000)))
    return batch_size * (num_batches - warm_up) / max(times[-1] - times[warm_up - 1], 1e-12)


def _play(load: Load, plan: Arrangement, num_batches: int, draws: list[list[float]]) -> list[float]:
    """Simulate num_batches batches, and return the times at which the learner took them, in seconds."""
    num_envs, num_workers, batch_size = plan.num_envs, plan.num_workers, plan.batch_size
    worker_of = [env_id * num_workers // num_envs for env_id in range(num_envs)]
    queues: list[deque[int]] = [deque() for _ in range(num_workers)]
    idle = [True] * num_workers
    cores = [0.0] * plan.cores  # the time at which each is free again
    num_steps = [0] * num_envs
    num_draws, cpu = len(draws[0]), load.cpu
    events: list[tuple[float, int]] = []  # (time, the environment that finishes, or -1: the learner sends)

    def begin(worker: int, now: float) -> None:
        env_id = queues[worker].popleft()
        duration = draws[env_id][num_steps[env_id] % num_draws]
        num_steps[env_id] += 1
        start = now
        if cpu > 0:
            start = max(now, cores[0])
            heapq.heapreplace(cores, start + cpu * duration)
        heapq.heappush(events, (start + duration, env_id))

    def depart(env_ids: list[int], now: float) -> None:
        for env_id in env_ids:
            queues[worker_of[env_id]].append(env_id)
        for worker in {worker_of[env_id] for env_id in env_ids}:
            if idle[worker]:
                idle[worker] = False
                begin(worker, now)

    in_order = not plan.first_finished and batch_size < num_envs
    order: deque[int] = deque(range(num_envs))  # of departure, if batches keep this order
    finished: deque[int] = deque()  # in order of arrival
    arrived: set[int] = set()
    batch: list[int] = []
    times: list[float] = []
    waiting = True
    depart(list(range(num_envs)), 0.0)
    while True:
        now, env_id = heapq.heappop(events)
        if env_id < 0:
            depart(batch, now)
            order.extend(batch)
            waiting = True
        else:
            finished.append(env_id)
            worker = worker_of[env_id]
            if queues[worker]:
                begin(worker, now)
            else:
                idle[worker] = True
        if not waiting or len(finished) < batch_size:
            continue
        if in_order:
            arrived.update(finished)
            if not all(order[index] in arrived for index in range(batch_size)):
                continue
            batch = [order.popleft() for _ in range(batch_size)]
            arrived.difference_update(batch)
            finished = deque(item for item in finished if item in arrived)
        else:
            batch = [finished.popleft() for _ in range(batch_size)]
        times.append(now)
        if len(times) == num_batches:
            return times
        waiting = False
        start = now
        if plan.think_cpu and plan.think_s > 0:
            start = max(now, cores[0])
            heapq.heapreplace(cores, start + plan.think_s)
        heapq.heappush(events, (start + plan.think_s + plan.overhead_s, -1))
