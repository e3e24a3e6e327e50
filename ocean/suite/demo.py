"""The demo trainers as learners for the suite; they are examples for learners of your own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from typing import Any

from ocean.suite.tasks import Cannot, Task, demo_trainer
from pufferlib.errors import SpaceError
from pufferlib.models import BatchPlayer
from pufferlib.training.results import Result
from pufferlib.training.settings import family_settings

__all__ = ["train", "train_maddpg", "train_over_ray", "train_qmix", "train_sac", "train_td3"]


def train(task: Task, runs: str | None = None) -> Callable[[Any], Any]:
    """Train PPO on a task, with an LSTM if the task needs a memory, and return the learner's ``play``.

    runs: the parent of the run's folder; with None, nothing is written.
    """
    trainer = demo_trainer(task.env)
    # The trainer's own evaluation is not used here, but cannot be left out.
    overrides = {"backend": task.backend, "seed": task.seed, "runs": runs, "eval_episodes": 1}
    return _player(task, trainer.train(trainer.Config(**{**task.settings, **overrides})))


def train_over_ray(task: Task) -> Callable[[Any], Any]:
    """Train APPO on a task, and return the learner's ``play``.

    There are two actors, each with half of the task's environments, rounded up.
    """
    from cleanrl_demo import appo_ray

    names = {item.name for item in fields(appo_ray.Config)}
    settings = {name: value for name, value in task.settings.items() if name in names}
    settings["max_lag"] = 0 if task.needs_memory else appo_ray.Config.max_lag
    halved = {"num_actors": 2, "num_envs": -(-task.num_envs // 2), "num_workers": 1}
    overrides = {"backend": task.backend, "seed": task.seed, "runs": None, "eval_episodes": 1}
    return _player(task, appo_ray.train(appo_ray.Config(**{**settings, **halved, **overrides})))


def train_maddpg(task: Task) -> Callable[[Any], Any]:
    """Train MADDPG on a task, and return the learner's ``play``. Raises Cannot for actions that it does not play."""
    return _train_off_policy("maddpg", task)


def train_qmix(task: Task) -> Callable[[Any], Any]:
    """Train QMIX on a task, and return the learner's ``play``. Raises Cannot unless actions are Discrete."""
    return _train_off_policy("qmix", task)


def train_sac(task: Task) -> Callable[[Any], Any]:
    """Train SAC on a task, and return the learner's ``play``. Raises Cannot unless actions are a bounded Box."""
    return _train_off_policy("sac", task)


def train_td3(task: Task) -> Callable[[Any], Any]:
    """Train TD3 on a task, and return the learner's ``play``. Raises Cannot unless actions are a bounded Box."""
    return _train_off_policy("td3", task)


def _train_off_policy(algorithm: str, task: Task) -> Callable[[Any], Any]:
    trainer: Any = import_module(f"cleanrl_demo.{algorithm}")
    settings = family_settings(task.env, trainer.Config)[1]
    overrides = {"env": task.env, "backend": task.backend, "seed": task.seed, "runs": None, "eval_episodes": 1}
    config = trainer.Config(**{**settings, **overrides})
    try:
        result = trainer.train(config)
    except SpaceError as error:
        raise Cannot(str(error)) from error
    return _player(task, result)


def _player(task: Task, result: Result) -> BatchPlayer:
    with task.make(num_envs=1, batch_size=1) as vec:
        agents_per_env = vec.agents_per_env
    num_agents = agents_per_env * task.num_envs
    return BatchPlayer(result.actor, num_agents, agents_per_env=agents_per_env, seed=task.seed)
