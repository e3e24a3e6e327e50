"""Tasks: the Ocean environments that a learner under examination is trained on."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pufferlib
from pufferlib import registry
from pufferlib.errors import PlanError, PufferError
from pufferlib.training.settings import family_settings
from pufferlib.util.suggestions import meant

__all__ = ["NUM_EPISODES", "Cannot", "Task", "catches", "faults", "names", "shortfall", "tasks"]

NUM_EPISODES = 1000  # fresh episodes in the mean score
PREFIX = "ocean/"
NEAR = 0.05  # of the way from chance to the bar: a score that falls short of the bar by no more is near it


class Cannot(PufferError, NotImplementedError):
    """The error that a learner raises for an environment that it does not support, with the reason as its message.

    Such an environment counts neither as passed nor as failed.
    """


@dataclass(frozen=True)
class Task:
    """An Ocean environment to learn, on one backend and with one seed."""

    env: str
    """the environment's name, such as ocean/squared"""
    backend: str
    """serial, multiprocessing or pool"""
    seed: int
    chance: float
    """the mean score of uniform play"""
    best: float
    """the mean score of the best policy"""
    bar: float
    """the mean score at which the learner passes"""
    needs_memory: bool
    """whether only policies with a memory can pass"""
    settings: Mapping[str, Any] = field(hash=False)
    """the demo trainer's settings, by Config field"""

    @property
    def total_steps(self) -> int:
        """The number of transitions to learn from: as many as the demo trainer needs."""
        return int(self.settings["total_steps"])

    @property
    def num_envs(self) -> int:
        """The number of environments that the demo trainer learns from at once."""
        return int(self.settings["num_envs"])

    @property
    def batch_size(self) -> int:
        """The number of environments in a batch: half of ``num_envs`` (rounded up) on a pool, unless set; else all."""
        return (self.settings.get("batch_size") or -(-self.num_envs // 2)) if self.backend == "pool" else self.num_envs

    def make(self, **changes: Any) -> pufferlib.VecEnv:
        """Return the environments on the task's backend, for the caller to close.

        changes: arguments of ``pufferlib.make`` that replace the task's or are added to them.
        """
        defaults = {
            "backend": self.backend,
            "num_envs": self.num_envs,
            "batch_size": self.batch_size,
            "seed": self.seed,
        }
        arguments = {**defaults, **changes}
        if (num_workers := self.settings.get("num_workers")) is not None:
            arguments.setdefault("num_workers", min(num_workers, arguments["num_envs"]))
        return pufferlib.make(self.env, **arguments)


def names() -> list[str]:
    """Return the names of the environments that have a bar and can be learnt."""
    return _surveyed()[0]


def faults() -> dict[str, str]:
    """Return error messages, keyed by name, for the environments that should be learnable but are not."""
    return _surveyed()[1]


def tasks(envs: Sequence[str] = (), backends: Sequence[str] = ("pool",), seeds: Sequence[int] = (1,)) -> Iterator[Task]:
    """Yield a task for each combination of environment, backend and seed, without duplicates.

    envs: names, with or without "ocean/"; an item may be several names, separated by commas. By default, all
    environments that can be learnt. Raises PufferError for an environment that does not exist or cannot be learnt.
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
    """Return the faults that an environment catches: the section "Catches" of its module's docstring, as one line."""
    module = sys.modules[registry.creator(env).__module__]
    match = re.search(r"^Catches +(.*(?:\n +.*)*)", module.__doc__ or "", re.MULTILINE)
    return " ".join(match[1].split()) if match else ""


def shortfall(task: Task, score: float) -> str:
    """Return possible reasons for a score below the bar, one per line."""
    reasons = []
    if task.bar - score <= NEAR * (task.bar - task.chance):
        reasons.append("near the bar: another seed may pass, or longer training")
    if task.needs_memory:
        reasons.append("no policy without a memory passes")
    return "\n".join([*reasons, f"may be: {catches(task.env)}"])


def demo_settings(env: str) -> dict[str, Any]:
    """Return the demo trainer's settings for an Ocean environment, keyed by ``Config`` field."""
    config = demo_trainer(env).Config
    return {**vars(config()), **family_settings(env, config)[1], "env": env}


def demo_trainer(env: str) -> Any:
    """Return the demo trainer's module for an Ocean environment: ``ppo_lstm`` if it needs a memory, else ``ppo``."""
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
    """Return the names of learnable environments, and error messages for broken ones, keyed by name.

    Environments without a bar are in neither.
    """
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
    """Return an Ocean environment's creator. Raises PufferError if it is not found or has no bar, chance or best."""
    creator = registry.creator(env)
    lacking = [name for name in ("bar", "chance", "best") if getattr(creator, name, None) is None]
    if lacking:
        raise PlanError(
            f"env={env.removeprefix(PREFIX)!r} is no environment of Ocean that can be learnt: {creator.__name__} has "
            f"no {' and no '.join(lacking)}; ocean/__init__.py says what these are"
        )
    return creator
