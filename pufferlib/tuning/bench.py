"""Measure the steps per second of one environment on each backend; the backends take turns."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np

from pufferlib.construct import BACKENDS, known_backends, make
from pufferlib.errors import PlanError
from pufferlib.telemetry.stats import POOL_BACKENDS, Stats
from pufferlib.tuning.random_play import CLEARLY, Player
from pufferlib.vectorization.core.plan import Plan, available_cpus
from pufferlib.vectorization.device.vecenv import KernelStats
from pufferlib.version import __version__

__all__ = ["Speed", "compare_backends", "machine", "overload", "profile_text", "right_one", "verdict"]

WARM_UP_S = 0.2
PROFILE_TURNS = 4


@dataclass
class Speed:
    """The throughput of one backend.

    steps_per_s: environment steps (not agent steps) per second, one value per repeat. stats: the stats of one more
    measurement if ``compare_backends`` was called with ``profile=True``, else None.
    """

    backend: str
    num_envs: int
    num_workers: int
    batch_size: int
    agents_per_env: int
    steps_per_s: list[float] = field(default_factory=list)
    stats: Stats | KernelStats | None = None

    def ratios(self, base: Speed) -> list[float]:
        """Return this throughput divided by that of base, one value per repeat."""
        return [rate / other for rate, other in zip(self.steps_per_s, base.steps_per_s, strict=True)]


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
    device: Any = None,
    profile: bool = False,
    after: Callable[[int, str], None] | None = None,
) -> list[Speed]:
    """Return the speed of each backend, measured with ``RandomActions``, without a learner.

    The backends take turns of ``seconds``, ``repeats`` times, so that other load on the machine affects all of them.

    env, num_workers, seed, env_kwargs, wrap_kwargs: as for ``pufferlib.make``.
    num_envs: by default, four per CPU, at least 8. batch_size: for pool and ray; by default, half of the environments.
        Batches of other backends hold all environments. device: for the backend "cuda".
    profile: whether each backend gets one more turn, four times as long, for the ``stats`` of its Speed.
    after: a function that is called after each turn, with the number of the repeat and the name of the backend.

    Raises PlanError if nothing would be measured, and the errors of ``pufferlib.make`` and of the environments.
    """
    if not seconds > 0 or repeats < 1:
        raise PlanError(f"seconds={seconds} and repeats={repeats} leave nothing to measure; use more than 0 of both")
    if not backends:
        raise PlanError(f"no backend to measure; name some of {', '.join(known_backends())}")
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
                batch_size=(batch_size or -(-num_envs // 2)) if backend in POOL_BACKENDS else None,
                seed=seed,
                env_kwargs=env_kwargs,
                wrap_kwargs=wrap_kwargs,
                device=device if backend == "cuda" else None,
            )
            player = Player(stack.enter_context(vec))
            num_workers_used = 1 if backend in ("serial", "cuda") else plan.num_workers
            speed = Speed(backend, num_envs, num_workers_used, player.batch_size, vec.agents_per_env)
            runs.append((player, speed))
            player.play(WARM_UP_S)
        for repeat in range(repeats):
            for shift in range(len(runs)):
                player, speed = runs[(repeat + shift) % len(runs)]
                speed.steps_per_s.append(player.play(seconds))
                if after is not None:
                    after(repeat, speed.backend)
        for player, speed in runs if profile else ():
            player.vec.stats(reset=True)
            player.play(PROFILE_TURNS * seconds)
            speed.stats = player.vec.stats()
    return [speed for _, speed in runs]


def right_one(speeds: Sequence[Speed]) -> Speed:
    """Return the Speed of the backend to use: serial if measured and none is clearly faster, else the fastest."""
    serial = next((speed for speed in speeds if speed.backend == "serial"), None)
    others = [speed for speed in speeds if speed is not serial]
    if serial is None or not others:
        return max(speeds, key=lambda speed: median(speed.steps_per_s))
    best = _fastest(others, serial)
    return best if _is_clearly_faster(best, serial) else serial


def _fastest(speeds: Sequence[Speed], base: Speed) -> Speed:
    return max(speeds, key=lambda speed: median(speed.ratios(base)))


def _is_clearly_faster(speed: Speed, base: Speed) -> bool:
    ratios = speed.ratios(base)
    return median(ratios) >= CLEARLY and min(ratios) > 1


def verdict(speeds: Sequence[Speed]) -> str:
    """Return a sentence that recommends a backend."""
    right = right_one(speeds)
    serial = next((speed for speed in speeds if speed.backend == "serial"), None)
    if serial is None or len(speeds) == 1:
        return f'backend="{right.backend}" is the fastest of these.'
    if right is not serial:
        return f'backend="{right.backend}" is right: {median(right.ratios(serial)):.1f} times as fast as serial.'
    best = _fastest([speed for speed in speeds if speed is not serial], serial)
    ratio = median(best.ratios(serial))
    step = f"a step takes {1e6 / median(serial.steps_per_s):,.0f} µs, and "
    if ratio > 1:
        return f'backend="serial" is right: {step}{best.backend} is not clearly faster ({ratio:.2f} times).'
    return f'backend="serial" is right: {step}{best.backend}, the next, makes {ratio:.2f} times as many.'


def profile_text(speed: Speed, speeds: Sequence[Speed]) -> str:
    """Return a backend's stats as text, with a verdict that agrees with the measurements of all backends.

    KernelStats have no verdict.
    """
    if not isinstance(speed.stats, Stats):
        return str(speed.stats)
    right = right_one(speeds)
    times = median(right.ratios(speed))
    settled = speed.stats.verdict_beside(right.backend, times, [other.backend for other in speeds])
    return f"{speed.stats.table}\n\n{settled}"


def overload() -> str:
    """Return a warning if other programs keep the CPUs busy, else "". Call it before measuring."""
    cpus = available_cpus()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= cpus / 2:
        return ""
    return f"The machine is busy already (load {load:.1f} on {cpus} CPUs): the figures will be too low, and unsteady."


def machine() -> str:
    """Describe this machine in one line: the processor, the CPUs that this process may use, the system and versions."""
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
