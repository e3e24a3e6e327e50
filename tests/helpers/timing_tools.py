"""Step times as telemetry notes them, and stats as if they had been played; environments that sleep."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from pufferlib.telemetry.stats import Stats
from pufferlib.telemetry.timeline import (
    BUSY,
    FILL_MAX,
    FILL_NUM,
    FILL_SUM,
    NUM_RECV,
    PORTABLE_COST_S,
    RECV,
    SEND,
    THOUGHT,
    WAITED,
    Stopwatch,
    Timeline,
    shared_arrays,
)


def arrays(num_envs: int, num_workers: int = 1) -> dict[str, Any]:
    return {name: np.zeros(*what) for name, what in shared_arrays(num_envs, num_workers).items()}


def timed(durations: Any, cost_s: float = PORTABLE_COST_S) -> tuple[dict[str, Any], int]:
    """What a stopwatch notes of these steps, (num_envs, num_steps) seconds, and how many it has timed."""
    noted, samples = arrays(len(durations)), 0
    stopwatch = Stopwatch(noted["times"], noted["histogram"], cost_s)
    for env_id, row in enumerate(durations.tolist()):
        for seconds in row:
            if stopwatch.left_out[env_id]:
                stopwatch.left_out[env_id] -= 1
            else:
                stopwatch.record(env_id, seconds)
                samples += 1
    return noted, samples


def stats_of(
    durations: Any,
    *,
    steps_per_s: float,
    cpu: float = 0.0,
    thinks: float = 0.0,
    queued: float = 0.0,
    plan: tuple[str, int, int, int] | None = None,
    cores: int = 2,
    resets: tuple[float, ...] = (),
) -> Stats:
    """Stats as if these steps, (num_envs, num_steps) seconds, had been played at this speed."""
    noted, _ = timed(np.asarray(durations), cost_s=1e-12)
    num_envs = len(durations)
    backend, num_envs, num_workers, batch_size = plan or ("multiprocessing", num_envs, num_envs, num_envs)
    noted["worker_times"] = np.zeros((num_workers, 8))
    timeline = Timeline(noted | {key: np.zeros_like(value) for key, value in noted.items()}, [0] * num_workers)
    timeline.arrays = noted
    stopwatch = Stopwatch(noted["times"], noted["histogram"])
    for seconds in resets:
        stopwatch.record_reset(0, seconds)
    taken = timeline.take()
    num_batches = np.size(durations) // batch_size
    period = num_batches * batch_size / steps_per_s
    busy = np.sum(durations) / num_workers
    taken.worker_times[:, BUSY], taken.worker_times[:, WAITED] = busy, max(0.0, period - busy)
    taken.parent_times[[NUM_RECV, RECV, SEND, THOUGHT]] = (
        num_batches,
        (0.9 - 0.9 * thinks) * period,
        (0.1 - 0.1 * thinks) * period,
        thinks * period,
    )
    taken.parent_times[[FILL_NUM, FILL_SUM, FILL_MAX]] = num_batches, num_batches * 0.25, 0.5
    taken = taken._replace(
        worker_cpu_s=np.full(num_workers, cpu * busy + 30e-6 * num_batches),
        worker_queued_s=np.full(num_workers, queued * busy),
        parent_cpu_s=thinks * period + (cpu * busy if backend == "serial" else 0.0),
        parent_queued_s=queued * period,
    )
    return Stats.of(
        taken, backend=backend, num_envs=num_envs, num_workers=num_workers, batch_size=batch_size, cores=cores
    )


class Sleeper(gymnasium.Env[Any, Any]):
    """Steps that sleep, exponentially distributed."""

    observation_space = Box(-1, 1, (8,), np.float32)
    action_space = Discrete(2)

    def __init__(self, mean_s: float = 0.01, env_index: int = 0) -> None:
        self.generator = np.random.default_rng(env_index)
        self.mean_s = mean_s
        self.observation = np.zeros(8, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        return self.observation, {}

    def step(self, action: Any) -> Any:
        time.sleep(self.generator.exponential(self.mean_s))
        self.tick += 1
        return self.observation, 0.0, False, self.tick == 50, {}
