"""MuJoCo environments: robots that walk, swim and reach."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=(
        "Ant-*",
        "HalfCheetah-*",
        "Hopper-*",
        "Humanoid-*",
        "HumanoidStandup-*",
        "InvertedPendulum-*",
        "InvertedDoublePendulum-*",
        "Pusher-*",
        "Reacher-*",
        "Swimmer-*",
        "Walker2d-*",
    ),
    description="robots that walk, swim and reach",
    package="mujoco",
    extra="mujoco",
    examples=(
        Example("HalfCheetah-v5", {"max_episode_steps": 100}),
        Example("Hopper-v5"),
    ),
    registers="gymnasium",
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make one of Gymnasium's MuJoCo environments, unchanged. kwargs: arguments of ``gymnasium.make``."""
    return from_gymnasium(FAMILY, name, **kwargs)
