"""The demo trainer under examination, and an example of what a learner of yours has to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cleanrl_demo.suite.tasks import Task, demo_trainer
from pufferlib.models import BatchPlayer

__all__ = ["train"]


def train(task: Task, runs: str | None = None) -> Callable[[Any], Any]:
    """Train PPO, or PPO with an LSTM, on a task, and return what plays. runs: a folder for the folder of the run."""
    trainer = demo_trainer(task.env)
    # Its own evaluation says nothing here, and there is no way to leave it out.
    given = {"backend": task.backend, "seed": task.seed, "runs": runs, "eval_episodes": 1}
    result = trainer.train(trainer.Config(**{**task.settings, **given}))
    with task.make(num_envs=1, batch_size=1) as vec:
        num_agents = vec.agents_per_env * task.num_envs
    return BatchPlayer(result.actor, num_agents, seed=task.seed)
