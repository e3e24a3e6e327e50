"""panda-gym: goal-conditioned tasks for a robot arm in PyBullet."""

from __future__ import annotations

import functools

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.environments._recreated import Recreated
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("Panda*",),
    description="a robot arm in PyBullet, for goals",
    package="panda_gym",
    extra="panda",
    examples=(
        Example("PandaReach-v3"),
        Example("PandaPickAndPlace-v3"),
    ),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make a task in which a robot arm has to reach a goal.

    An observation is a Dict of three arrays: "observation", the state of the arm and any objects; "desired_goal"; and
    "achieved_goal", the part of the state that the task compares with the goal.

    PyBullet keeps contacts when it resets, and even when it restores a saved state. Each seeded reset after the first
    reset therefore recreates the environment; otherwise, an episode would depend on earlier episodes.

    PandaFlip cannot be made if the package lacks the texture for this task, as panda-gym 3.0.7 does.
    """
    return Recreated(functools.partial(from_gymnasium, FAMILY, name, **kwargs), draws=True)
