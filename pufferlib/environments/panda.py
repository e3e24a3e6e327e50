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
    """Make a task whose observations are Dicts of the arm's and objects' state, the goal, and the goal achieved so far.

    PyBullet keeps contacts through a reset, and even when it restores a state. Each seeded reset therefore recreates
    the environment; otherwise an episode would depend on earlier ones.

    PandaFlip cannot be made if the package lacks its texture, as panda-gym 3.0.7 does.
    """
    return Recreated(functools.partial(from_gymnasium, FAMILY, name, **kwargs), draws=True)
