"""Level-based foraging: Gymnasium environments with several agents; their Tuple spaces have one element per agent."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("Foraging-*",),
    description="level-based foraging, agents in a Tuple",
    package="lbforaging",
    extra="lbforaging",
    examples=(Example("Foraging-8x8-3p-3f-v3"),),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make one of the environments of the package lbforaging, unchanged. kwargs: arguments of ``gymnasium.make``."""
    return from_gymnasium(FAMILY, name, **kwargs)
