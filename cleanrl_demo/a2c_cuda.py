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
from cleanrl_demo.ppo_cuda import DeviceConfig, Learner, Rollout, as_begun, descend, weighed
from pufferlib.training.checkpoints import checkpoint_path
from pufferlib.training.ddp import joined, require_as_many
from pufferlib.training.results import Result
from pufferlib.training.session import main, resumed, run


@dataclass(frozen=True)
class Config(DeviceConfig):
    """Train policies with A2C on kernel environments. One step is one action of one agent."""

    algorithm: ClassVar[str] = "a2c_cuda"
    losses: ClassVar[tuple[str, ...]] = ("policy_loss", "value_loss", "entropy")

    rollout_length: int = 8
    """steps of each environment between updates"""


def train(config: Config, env: Callable[..., Any] | None = None) -> Result:
    """Train policies, evaluate them on fresh seeds, and return the result.

    env: a KernelEnv to use instead of config.env.
    """
    with joined(config, lambda local_config: ppo_cuda.num_envs_that_fit(local_config, env, update)) as (
        local_config,
        run_config,
    ):
        return run(local_config, Learner, learn, env=env, run_config=run_config)


def resume(
    folder: Path, env: Any = None, total_steps: int | None = None, *, trust: bool = False
) -> tuple[Config, Result]:
    """Resume the run in a folder (see ``ppo_cuda.resume``); return its settings and its result."""
    require_as_many(checkpoint_path(folder).parent)
    return resumed(folder, Config, Learner, learn, env, total_steps, trust, as_begun)


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
        distribution, values, _ = team.actor(team.rows_of(rollout.observations[:-1]))
        log_probs = distribution.log_prob(team.rows_of(rollout.discrete_actions), b_advantages[:, None])
        pg_objectives = log_probs * normalized
        v_losses = 0.5 * (values - b_returns).square()
        entropies = distribution.entropy()
        losses = config.value_coefficient * v_losses - pg_objectives - team.entropy_coefficient * entropies
        descend(team, losses @ shares, config)
        metrics.append(torch.stack([-pg_objectives, v_losses, entropies]).detach() @ shares)
    return torch.stack(metrics)


learn = functools.partial(ppo_cuda.learn, update=update)

if __name__ == "__main__":
    main(Config, train)
