"""The settings of all contestants of train.py, which make them compute and learn the same."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["REFERENCE", "SETTINGS", "Settings"]


@dataclass(frozen=True)
class Settings:
    """The settings that determine the amount of computation and the quality of learning.

    The network is an actor and a critic that share nothing, each of two tanh layers; images pass three convolutions
    first. The value loss is halved, as by PPO's authors. The learning rate falls to 0. The evaluation samples actions.
    """

    env: str
    total_steps: int
    num_envs: int = 32
    rollout_length: int = 32
    num_epochs: int = 4
    num_minibatches: int = 4
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5
    hidden_size: int = 64
    channels: tuple[int, int, int] = (8, 16, 16)
    torch_threads: int = 1
    eval_episodes: int = 100
    seed: int = 1

    @property
    def minibatch_size(self) -> int:
        """The rows of a minibatch."""
        return self.num_envs * self.rollout_length // self.num_minibatches


# CartPole: the defaults of SB3's PPO (rollouts of 2,048 rows, ten epochs, minibatches of 64, a learning rate of 3e-4,
# no entropy bonus), with eight environments in place of one.
SETTINGS = {
    "cartpole": Settings(
        "cartpole",
        total_steps=100_000,
        num_envs=8,
        rollout_length=256,
        num_epochs=10,
        num_minibatches=32,
        learning_rate=3e-4,
        entropy_coefficient=0.0,
    ),
    "breakout": Settings("breakout", total_steps=20_000, num_envs=16, learning_rate=5e-4, eval_episodes=16),
}

# The settings of reference.py, which compares returns: SB3's published ones (RL Baselines3 Zoo) where Settings has
# them, except for rollouts, which are short enough for dozens of updates in fewer steps.
REFERENCE = {
    "cartpole": SETTINGS["cartpole"],
    "lunarlander": Settings(
        "lunarlander",
        total_steps=500_000,
        num_envs=16,
        rollout_length=256,
        num_minibatches=64,
        learning_rate=3e-4,
        gamma=0.999,
        gae_lambda=0.98,
    ),
    "lunarlander-continuous": Settings(
        "lunarlander-continuous",
        total_steps=500_000,
        num_envs=16,
        rollout_length=256,
        num_minibatches=64,
        learning_rate=3e-4,
        gamma=0.999,
        gae_lambda=0.98,
    ),
    "doorkey": Settings(
        "doorkey",
        total_steps=200_000,
        num_envs=8,
        rollout_length=128,
        num_epochs=10,
        num_minibatches=16,
        learning_rate=2.5e-4,
    ),
}
