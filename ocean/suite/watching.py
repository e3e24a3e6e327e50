"""A learner's play, shown in a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console

from ocean.suite.tasks import Task
from pufferlib.training.evaluation import evaluate
from pufferlib.training.terminal_view import TerminalView

__all__ = ["watch"]

NUM_EPISODES = 3


def watch(task: Task, play: Callable[[Any], Any], console: Console) -> None:
    """Show NUM_EPISODES episodes of ``play`` in the terminal. Raises PlanError if the console is not a terminal."""
    make_kwargs = {"backend": "serial", "num_envs": 1, "batch_size": 1, "env_kwargs": {"render_mode": "ansi"}}
    with task.make(**make_kwargs) as vec, TerminalView(vec, console) as window:
        evaluate(vec, play, NUM_EPISODES, task.seed, see=window.see)
