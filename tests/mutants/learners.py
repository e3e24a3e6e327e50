"""A learner for each mutant: `puffer ocean --trainer tests.mutants.learners:advantage_sign` trains that one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ocean.suite import demo
from ocean.suite.tasks import Task

from .catalogue import MUTANTS, infect


def __getattr__(name: str) -> Callable[[Task], Callable[[Any], Any]]:
    """Return the demo trainer with a mutant, which stays in the process that it trains in."""
    if name not in MUTANTS:
        raise AttributeError(f"no mutant is called {name}")

    def train(task: Task) -> Callable[[Any], Any]:
        infect(name)
        return demo.train(task)

    return train


def __dir__() -> list[str]:
    return [*MUTANTS]
