"""Steps per second of one environment on each backend, measured side by side."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.backends import BACKENDS, make
from pufferlib.errors import PlanError
from pufferlib.vectorization import Batch, VecEnv
from pufferlib.vectorization.plan import Plan, available_cpus
from pufferlib.version import __version__

__all__ = ["Speed", "compare_backends", "machine", "overload", "verdict"]

WARM_UP_S = 0.2
NUM_DRAWS = 16  # batches of actions that are drawn beforehand, so that drawing is not what is measured
CLEARLY = 1.1  # times as fast: below, processes are not worth having


@dataclass
class Speed:
    """What one backend reached. steps_per_s: of environments, not of agents; one an interleaved repeat."""

    backend: str
    num_envs: int
    num_workers: int
    batch_size: int
    agents_per_env: int
    steps_per_s: list[float] = field(default_factory=list)

    def ratios(self, base: Speed) -> list[float]:
        """Return how many times as fast as base it was, repeat by repeat."""
        return [own / other for own, other in zip(self.steps_per_s, base.steps_per_s, strict=True)]


def compare_backends(
    env: Callable[..., Any] | str,
    *,
    backends: Sequence[str] = tuple(BACKENDS),
    num_envs: int | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    seconds: float = 0.5,
    repeats: int = 7,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    wrap_kwargs: Mapping[str, Any] | None = None,
    after: Callable[[int, str], None] | None = None,
) -> list[Speed]:
    """Return the speed of each backend, sending random actions that masks allow, and doing nothing else.

    The backends take turns, ``seconds`` each, ``repeats`` times: what else the machine does meets all of them.

    num_envs: by default four for each CPU, at least 8; num_workers as ``pufferlib.make`` has it; batch_size: of the
        pool, by default half of the environments; the others return all.
    after: called with the number of the repeat and the backend, after each turn.

    Raises what ``pufferlib.make`` and environments raise.
    """
    if not seconds > 0 or repeats < 1:
        raise PlanError(f"seconds={seconds} and repeats={repeats} leave nothing to measure; use more than 0 of both")
    if not backends:
        raise PlanError(f"no backend to measure; name some of {', '.join(BACKENDS)}")
    num_envs = max(8, 4 * available_cpus()) if num_envs is None else num_envs
    plan = Plan.of(num_envs, num_workers, batch_size)
    with contextlib.ExitStack() as stack:
        runs = []
        for backend in backends:
            vec = make(
                env,
                backend=backend,
                num_envs=num_envs,
                num_workers=num_workers,
                batch_size=(batch_size or -(-num_envs // 2)) if backend == "pool" else None,
                seed=seed,
                env_kwargs=env_kwargs,
                wrap_kwargs=wrap_kwargs,
            )
            runs.append(_Run(stack.enter_context(vec), 1 if backend == "serial" else plan.num_workers))
            runs[-1].turn(WARM_UP_S)
        for repeat in range(repeats):
            for shift in range(len(runs)):
                run = runs[(repeat + shift) % len(runs)]
                run.speed.steps_per_s.append(run.turn(seconds))
                if after is not None:
                    after(repeat, run.speed.backend)
    return [run.speed for run in runs]


class _Run:
    """One backend's environments, and what they have reached."""

    def __init__(self, vec: VecEnv, num_workers: int) -> None:
        self._vec, self._actor = vec, _Actor(vec)
        self._batch_size = vec.agents_per_batch // vec.agents_per_env
        self._waiting: list[Batch] = []  # received and not answered
        vec.async_reset()
        self.speed = Speed(vec.backend, vec.num_envs, num_workers, self._batch_size, vec.agents_per_env)

    def turn(self, seconds: float) -> float:
        """Play for about these seconds, then until no batch is under way; return environment steps per second."""
        vec, batch_size = self._vec, self._batch_size
        start_s = perf_counter()
        deadline = start_s + seconds
        for batch in self._waiting:
            vec.send(self._actor.actions(batch.observations), env_ids=batch.env_ids.tolist())
        self._waiting = []
        steps, coming = 0, vec.num_envs
        while coming >= batch_size:  # what went on in the background would slow the others' turns
            batch = vec.recv()
            steps += batch_size
            if perf_counter() < deadline:
                vec.send(self._actor.actions(batch.observations))
            else:
                self._waiting.append(batch._replace(observations=batch.observations.copy()))
                coming -= batch_size
        return steps / (perf_counter() - start_s)


class _Actor:
    """Actions for whole batches: drawn beforehand, or on the spot where there are masks."""

    def __init__(self, vec: VecEnv) -> None:
        vec.action_space.seed(0)
        self._drawn = [vec.action_space.sample() for _ in range(NUM_DRAWS)]
        self._turn = 0
        space = vec.observation_layout.space
        masked = isinstance(space, spaces.Dict) and "action_mask" in space.spaces
        self._masks = vec.observation_layout.unflatten if masked else None
        self._space = vec.single_action_space
        self._generator = np.random.default_rng(0)
        if masked and not isinstance(self._space, (spaces.Discrete, spaces.MultiDiscrete)):
            self._masks = None

    def actions(self, observations: Any) -> Any:
        """Return actions for the rows of a batch."""
        if self._masks is None:
            self._turn = (self._turn + 1) % NUM_DRAWS
            return self._drawn[self._turn]
        mask = self._masks(observations)["action_mask"].reshape(len(observations), -1)
        scores = self._generator.random(mask.shape) * mask
        if isinstance(self._space, spaces.Discrete):
            return scores.argmax(1) + self._space.start
        assert isinstance(self._space, spaces.MultiDiscrete)
        parts = np.split(scores, np.cumsum(self._space.nvec.ravel())[:-1], axis=1)
        return np.stack([part.argmax(1) for part in parts], 1).reshape(len(observations), *self._space.shape)


def verdict(speeds: Sequence[Speed]) -> str:
    """Return in a sentence which backend to take."""
    serial = next((speed for speed in speeds if speed.backend == "serial"), None)
    others = [speed for speed in speeds if speed is not serial]
    if serial is None or not others:
        best = max(speeds, key=lambda speed: median(speed.steps_per_s))
        return f'backend="{best.backend}" is the fastest of these.'
    best = max(others, key=lambda speed: median(speed.ratios(serial)))
    ratio, slowest = median(best.ratios(serial)), min(best.ratios(serial))
    if ratio >= CLEARLY and slowest > 1:
        return f'backend="{best.backend}" is right: {ratio:.1f} times as fast as serial.'
    step = f"a step takes {1e6 / median(serial.steps_per_s):,.0f} µs, and "
    if ratio > 1:
        return f'backend="serial" is right: {step}{best.backend} is not clearly faster ({ratio:.2f} times).'
    return f'backend="serial" is right: {step}{best.backend}, the next, makes {ratio:.2f} times as many.'


def overload() -> str:
    """Return a warning if other programs keep the CPUs busy, "" if they do not. Ask before measuring."""
    cpus = available_cpus()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= cpus / 2:
        return ""
    return f"The machine is busy already (load {load:.1f} on {cpus} CPUs): the figures will be too low, and unsteady."


def machine() -> str:
    """Return what it was measured on: processor, CPUs that we may use, system, versions."""
    system = f"{platform.system()} {platform.release()}"
    python = f"Python {platform.python_version()}"
    versions = f"numpy {np.__version__}, gymnasium {gymnasium.__version__}, pufferlib {__version__}"
    cpus = available_cpus()
    return f"{_processor()}, {cpus} CPU{'s' * (cpus > 1)}; {system}; {python}, {versions}"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or sys.platform
