"""DeepMind's Behaviour Suite (bsuite), through Shimmy."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("bsuite/*",),
    description="small questions to a learner (bsuite)",
    package="bsuite",
    extra="bsuite",
    examples=(Example("bsuite/catch-v0"),),
    registers="shimmy",
    needs=("shimmy",),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make one of bsuite's environments, unchanged. kwargs: arguments of ``gymnasium.make``."""
    return from_gymnasium(FAMILY, name, **kwargs)
