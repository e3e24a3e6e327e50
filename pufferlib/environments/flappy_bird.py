"""Flappy Bird, from the package flappy-bird-gymnasium."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("FlappyBird-*",),
    description="Flappy Bird",
    package="flappy_bird_gymnasium",
    extra="flappy-bird",
    examples=(Example("FlappyBird-v0"),),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make one of the package's environments, unchanged. kwargs: arguments of ``gymnasium.make``."""
    return from_gymnasium(FAMILY, name, **kwargs)
