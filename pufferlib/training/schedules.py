"""Schedules of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from pufferlib.errors import PlanError

__all__ = ["SCHEDULES", "rate_at"]

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "constant": lambda progress: 1.0,
}  # the remaining share of the learning rate, by progress


def rate_at(schedule: str, first: float, num_steps: int, total_steps: int) -> float:
    """Return the learning rate after ``num_steps`` steps. Raises PlanError for an invalid schedule.

    schedule: a name in SCHEDULES; or rates at some steps, such as "0:1e-3 2e6:1e-4", with linear interpolation between
    them. first: the initial rate, for a schedule in SCHEDULES.
    """
    if schedule in SCHEDULES:
        return first * SCHEDULES[schedule](min(1.0, num_steps / total_steps))
    try:
        points = [point.split(":") for point in schedule.split()]
        steps, rates = [float(step) for step, _ in points], [float(rate) for _, rate in points]
    except ValueError:
        steps, rates = [], []
    if not steps or steps != sorted(set(steps)) or min(rates) < 0:
        raise PlanError(
            f'schedule={schedule!r} is none; use {", ".join(SCHEDULES)}, or "0:1e-3 2e6:1e-4" with growing steps'
        )
    return float(np.interp(num_steps, steps, rates))
