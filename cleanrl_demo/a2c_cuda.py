"""A2C that runs entirely on the device: ``ppo_cuda.py`` with a different update.

    python -m cleanrl_demo.a2c_cuda --env tag/grid --separate

Each rollout serves for one update of the policy that played it, with all rows in one batch. The new and the old policy
are then still the same, so there is no ratio of probabilities to clip, unlike in PPO.

Source: Mnih et al., arXiv:1602.01783 (A3C, here in its synchronous form); Schulman et al., arXiv:1506.02438 (GAE).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from cleanrl_demo import ppo_cuda
from cleanrl_demo.ppo_cuda import Learner, Rollout, descend, weighed
from pufferlib.training import DeviceConfig, Result, device_runs, main
from pufferlib.training.kernel_actions import pair


@dataclass(frozen=True)
class Config(DeviceConfig):
    """Train policies with A2C on kernel environments. One step is one action of one agent."""

    algorithm: ClassVar[str] = "a2c_cuda"
    losses: ClassVar[tuple[str, ...]] = ("policy_loss", "value_loss", "entropy")

    rollout_length: int = 8
    """steps of each environment between updates"""


def update(learner: Learner, rollout: Rollout, config: Config) -> Tensor:
    """Take one gradient step for each team on a rollout; return this process's share of the losses.

    The result has a row per team and a column per name in ``Config.losses``. The shares of all processes add up to the
    losses.
    """
    advantages = rollout.advantages(config.gamma, config.gae_lambda)
    metrics = []
    for team in learner.teams:
        masks, b_advantages = team.rows_of(rollout.masks).float(), team.rows_of(advantages)
        b_returns = b_advantages + team.rows_of(rollout.values[:-1])
        shares, normalized = weighed(b_advantages, masks, config.advantage_floor)
        distribution, newvalue, _ = team.actor(team.observations_of(rollout.observations[:-1]))
        log_probs = distribution.log_prob(*pair(team.rows_of(rollout.actions)))
        pg_loss = -normalized * log_probs  # (rows,), as are the other losses
        v_loss = 0.5 * (newvalue - b_returns).square()
        entropy = distribution.entropy()
        loss = pg_loss + config.value_coefficient * v_loss - team.entropy_coefficient * entropy
        descend(team, loss @ shares, config)
        metrics.append(torch.stack([pg_loss, v_loss, entropy]).detach() @ shares)
    return torch.stack(metrics)


learn = functools.partial(ppo_cuda.learn, update=update)
begin = functools.partial(ppo_cuda.begin, update=update)


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train policies, evaluate them on fresh seeds, and return the result.

    env: a KernelEnv to use instead of config.env.
    """
    return device_runs.run(config, Learner, learn, begin, env)


def resume(
    folder: Path, env: Any = None, total_steps: int | None = None, *, trust: bool = False
) -> tuple[Config, Result]:
    """Resume the run in a folder (see ``device_runs.resumed``); return its settings and its result."""
    return device_runs.resumed(folder, Config, Learner, learn, env, total_steps, trust)


if __name__ == "__main__":
    main(Config, train)
