"""Box2D environments: landing, walking and driving in two dimensions."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("LunarLander*", "BipedalWalker*", "CarRacing-*"),
    description="landing, walking and driving in the plane",
    package="Box2D",
    extra="box2d",
    examples=(
        Example("LunarLander-v3"),
        Example("CarRacing-v3", {"max_episode_steps": 50}),
    ),
    registers="gymnasium",
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make one of Gymnasium's Box2D environments, unchanged. kwargs: arguments of ``gymnasium.make``."""
    return from_gymnasium(FAMILY, name, **kwargs)
