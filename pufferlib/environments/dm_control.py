"""The DeepMind Control Suite, through Shimmy."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("dm_control/*",),
    description="DeepMind's control suite",
    package="dm_control",
    extra="dm-control",
    examples=(Example("dm_control/cartpole-balance-v0", {"max_episode_steps": 100}),),
    registers="shimmy",
    needs=("shimmy",),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make one of the suite's environments, unchanged. kwargs: arguments of ``gymnasium.make``."""
    return from_gymnasium(FAMILY, name, **kwargs)
