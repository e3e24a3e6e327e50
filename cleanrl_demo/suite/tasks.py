"""Tasks: what a learner under examination is asked to learn."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pufferlib
from cleanrl_demo.settings import family_settings
from pufferlib import registry
from pufferlib.errors import PlanError, PufferError

__all__ = ["NUM_EPISODES", "Cannot", "Task", "catches", "names", "tasks"]

NUM_EPISODES = 1000  # fresh ones, which a score is the mean of
PREFIX = "ocean/"


class Cannot(PufferError, NotImplementedError):
    """To be raised by a learner for environments of a kind that it was never meant for, with a sentence that says so.

    Such an environment counts neither as passed nor as failed.
    """


@dataclass(frozen=True)
class Task:
    """One environment of Ocean, to be learnt on one backend from one seed."""

    env: str
    """its name, such as ocean/squared"""
    backend: str
    """serial, multiprocessing or pool"""
    seed: int
    chance: float
    """the mean score of uniform play"""
    best: float
    """the mean score of the best policy"""
    bar: float
    """the mean score from which the learner has passed"""
    needs_memory: bool
    """whether no policy without a memory passes"""
    settings: Mapping[str, Any] = field(hash=False)
    """what the demo trainer is told, by the names of its Config"""

    @property
    def total_steps(self) -> int:
        """Transitions to learn from: what the demo trainer needs."""
        return int(self.settings["total_steps"])

    @property
    def num_envs(self) -> int:
        """How many environments the demo trainer learns from at once."""
        return int(self.settings["num_envs"])

    @property
    def batch_size(self) -> int:
        """How many of them a batch holds: on a pool half of them, else all."""
        return -(-self.num_envs // 2) if self.backend == "pool" else self.num_envs

    def make(self, **changes: Any) -> pufferlib.VecEnv:
        """Return the environments on the task's backend; the caller closes them. changes: arguments of ``make``."""
        given = {"backend": self.backend, "num_envs": self.num_envs, "batch_size": self.batch_size, "seed": self.seed}
        return pufferlib.make(self.env, **{**given, **changes})


def names() -> list[str]:
    """Return the environments that have a bar."""
    found = (entry.name for entry in registry.names() if entry.name.startswith(PREFIX))
    return [name for name in found if getattr(registry.creator(name), "bar", None) is not None]


def tasks(envs: Sequence[str] = (), backends: Sequence[str] = ("pool",), seeds: Sequence[int] = (1,)) -> Iterator[Task]:
    """Yield a task for each environment, backend and seed; one for those that are named twice.

    envs: with or without "ocean/"; all where none is named. Raises PlanError for one that there is not.
    """
    known = names()
    chosen = dict.fromkeys(_found(env, known) for env in envs) or known
    for env in chosen:
        made = registry.creator(env)
        settings = demo_settings(env)
        for backend in dict.fromkeys(backends):
            for seed in dict.fromkeys(seeds):
                memory = getattr(made, "needs_memory", False)
                yield Task(env, backend, seed, made.chance, made.best, made.bar, memory, settings)


def catches(env: str) -> str:
    """Return what an environment catches: the section of that name of its file's docstring, as one line."""
    module = sys.modules[registry.creator(env).__module__]
    found = re.search(r"^Catches +(.*(?:\n +.*)*)", module.__doc__ or "", re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def demo_settings(env: str) -> dict[str, Any]:
    """Return what the demo trainer is told of an environment of Ocean, by the names of its Config."""
    config = demo_trainer(env).Config
    return {**vars(config()), **family_settings(env, config)[1], "env": env}


def demo_trainer(env: str) -> Any:
    """Return the module of the demo trainer for an environment of Ocean: PPO, with a memory where that is needed."""
    from cleanrl_demo import ppo, ppo_lstm

    return ppo_lstm if getattr(registry.creator(env), "needs_memory", False) else ppo


def _found(env: str, known: Sequence[str]) -> str:
    name = env if env.startswith(PREFIX) else PREFIX + env
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise PlanError(f"env={env!r} is no environment of Ocean that can be learnt; {meant}")
    return name
