"""Run PettingZoo's tests of parallel environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pettingzoo.test import parallel_api_test, parallel_seed_test

__all__ = ["require_api"]


def require_api(make: Callable[[], Any], num_steps: int) -> None:
    """Run PettingZoo's API and seed tests, for num_steps cycles each, on environments that ``make`` creates.

    Raises AssertionError if a test fails, and any exception that an environment raises.
    """
    env = make()
    parallel_api_test(env, num_cycles=num_steps)
    env.close()
    parallel_seed_test(make, num_cycles=num_steps)
