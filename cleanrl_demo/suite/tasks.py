"""Tasks: what a learner under examination is asked to learn."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pufferlib
from cleanrl_demo.settings import family_settings
from pufferlib import registry
from pufferlib.errors import PlanError, PufferError
from pufferlib.util.suggestions import meant

__all__ = ["NUM_EPISODES", "Cannot", "Task", "catches", "faults", "names", "shortfall", "tasks"]

NUM_EPISODES = 1000  # fresh ones, which a score is the mean of
PREFIX = "ocean/"
NEAR = 0.05  # of the way from chance to the bar, below which a score is near it


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
        defaults = {
            "backend": self.backend,
            "num_envs": self.num_envs,
            "batch_size": self.batch_size,
            "seed": self.seed,
        }
        return pufferlib.make(self.env, **{**defaults, **changes})


def names() -> list[str]:
    """Return the environments that have a bar and can be learnt."""
    return _surveyed()[0]


def faults() -> dict[str, str]:
    """Return, by name and in a sentence, what is wrong with environments that cannot be learnt but should be."""
    return _surveyed()[1]


def tasks(envs: Sequence[str] = (), backends: Sequence[str] = ("pool",), seeds: Sequence[int] = (1,)) -> Iterator[Task]:
    """Yield a task for each environment, backend and seed; one for those that are named twice.

    envs: with or without "ocean/", each or several with commas between; all where none is named. Raises PlanError for
        one that there is not, or that cannot be learnt.
    """
    chosen = dict.fromkeys(_full_name(env.strip()) for argument in envs for env in argument.split(",")) or names()
    for env in chosen:
        creator = _learnable(env)
        settings = demo_settings(env)
        for backend in dict.fromkeys(backends):
            for seed in dict.fromkeys(seeds):
                memory = getattr(creator, "needs_memory", False)
                yield Task(env, backend, seed, creator.chance, creator.best, creator.bar, memory, settings)


def catches(env: str) -> str:
    """Return what an environment catches: the section of that name of its file's docstring, as one line."""
    module = sys.modules[registry.creator(env).__module__]
    match = re.search(r"^Catches +(.*(?:\n +.*)*)", module.__doc__ or "", re.MULTILINE)
    return " ".join(match[1].split()) if match else ""


def shortfall(task: Task, score: float) -> str:
    """Return what a score below the bar may come of, in a few lines."""
    reasons = []
    if task.bar - score <= NEAR * (task.bar - task.chance):
        reasons.append("near the bar: another seed may pass, or longer training")
    if task.needs_memory:
        reasons.append("no policy without a memory passes")
    return "\n".join([*reasons, f"may be: {catches(task.env)}"])


def demo_settings(env: str) -> dict[str, Any]:
    """Return what the demo trainer is told of an environment of Ocean, by the names of its Config."""
    config = demo_trainer(env).Config
    return {**vars(config()), **family_settings(env, config)[1], "env": env}


def demo_trainer(env: str) -> Any:
    """Return the module of the demo trainer for an environment of Ocean: PPO, with a memory where that is needed."""
    from cleanrl_demo import ppo, ppo_lstm

    return ppo_lstm if getattr(registry.creator(env), "needs_memory", False) else ppo


def _full_name(env: str) -> str:
    name = env if env.startswith(PREFIX) else PREFIX + env
    if name not in _listed():
        raise PlanError(f"env={env!r} is no environment of Ocean that can be learnt; {meant(name, names())}")
    return name


def _listed() -> list[str]:
    return [entry.name for entry in registry.names() if entry.name.startswith(PREFIX)]


def _surveyed() -> tuple[list[str], dict[str, str]]:
    """Return what can be learnt, and what is wrong with others. Without a bar one is neither: it is not meant to be."""
    fine, wrong = list[str](), dict[str, str]()
    for env in _listed():
        try:
            if getattr(registry.creator(env), "bar", None) is not None:
                _learnable(env)
                fine.append(env)
        except PufferError as error:
            wrong[env] = str(error)
    return fine, wrong


def _learnable(env: str) -> Any:
    """Return what makes an environment of Ocean. Raises PufferError where it cannot be made or lacks what it states."""
    creator = registry.creator(env)
    lacking = [name for name in ("bar", "chance", "best") if getattr(creator, name, None) is None]
    if lacking:
        raise PlanError(
            f"env={env.removeprefix(PREFIX)!r} is no environment of Ocean that can be learnt: {creator.__name__} has "
            f"no {' and no '.join(lacking)}; ocean/__init__.py says what these are"
        )
    return creator
