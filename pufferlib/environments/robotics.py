"""Gymnasium-Robotics: robot arms and hands, mazes and a kitchen."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("Fetch*", "HandReach*", "HandManipulate*", "AntMaze_*", "PointMaze_*", "Adroit*", "FrankaKitchen-*"),
    description="robot arms and hands, mazes, a kitchen",
    package="gymnasium_robotics",
    extra="robotics",
    examples=(Example("FetchReach-v4", {"max_episode_steps": 50}),),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make one of the package's environments, unchanged. kwargs: arguments of ``gymnasium.make``."""
    return from_gymnasium(FAMILY, name, **kwargs)
