"""Gymnasium's classic control and toy text environments."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=(
        "CartPole-*",
        "Acrobot-*",
        "MountainCar*",
        "Pendulum-*",
        "Blackjack-*",
        "FrozenLake*",
        "CliffWalking*",
        "Taxi-*",
    ),
    description="classic control, and games of a few numbers",
    package="gymnasium",
    extra="classic",
    examples=(
        Example("CartPole-v1", {"max_episode_steps": 25}),
        Example("Blackjack-v1"),
    ),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make one of Gymnasium's classic control or toy text environments, unchanged.

    kwargs: arguments of ``gymnasium.make``.
    """
    return from_gymnasium(FAMILY, name, **kwargs)
