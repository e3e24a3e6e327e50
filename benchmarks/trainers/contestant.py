"""Code shared by the contestants of train.py: read the task, make environments, print the result."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import envs
import gymnasium
import numpy as np
import torch
from trainers.settings import Settings

__all__ = ["ENVS", "Outcome", "print_result", "read_task"]


def breakout() -> gymnasium.Env[Any, Any]:
    """Return Breakout preprocessed as for DQN, with rewards clipped to 1."""
    return gymnasium.wrappers.ClipReward(envs.breakout(), -1, 1)


ENVS: dict[str, Callable[[], gymnasium.Env[Any, Any]]] = {
    "cartpole": envs.cartpole,
    "breakout": breakout,
    "lunarlander": envs.lunarlander,
    "lunarlander-continuous": partial(envs.lunarlander, continuous=True),
    "doorkey": envs.doorkey,
}


@dataclass(frozen=True)
class Outcome:
    """The result of a run. began, ended: the Unix times of the first step and of the end of the last update.

    num_steps: of environments. final_return: the mean over ``eval_episodes`` fresh episodes. versions: of packages that
    not all contestants have. curve: steps, or seconds since ``began``, and the mean return of the last hundred
    episodes, if requested.
    """

    began: float
    ended: float
    num_steps: int
    num_parameters: int
    final_return: float
    versions: dict[str, str]
    curve: Sequence[tuple[float, float]] = ()


def read_task() -> tuple[Settings, dict[str, Any], float]:
    """Return the settings, the contestant's options, and the Unix time at which the process was launched."""
    task = json.loads(sys.argv[1])
    settings = Settings(**{**task["settings"], "channels": tuple(task["settings"]["channels"])})
    torch.set_num_threads(settings.torch_threads)
    return settings, task["options"], task["launched"]


def print_result(outcome: Outcome, settings: Settings, launched: float) -> None:
    """Print the result as a line of JSON, the contestant's last line."""
    seconds = outcome.ended - outcome.began
    facts = {
        "settings": asdict(settings),
        "num_parameters": outcome.num_parameters,
        "torch_threads": torch.get_num_threads(),
        "num_steps": outcome.num_steps,
        "steps_per_s": outcome.num_steps / seconds,
        "seconds": seconds,
        "setup_s": outcome.began - launched,
        "total_s": time.time() - launched,
        "final_return": outcome.final_return,
        "curve": outcome.curve,
        "versions": {
            "torch": torch.__version__,
            "gymnasium": gymnasium.__version__,
            "numpy": np.__version__,
            **outcome.versions,
        },
    }
    print(json.dumps(facts), flush=True)
