"""A robot arm in PyBullet, for goals: panda-gym."""

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
    """Return a task whose observations are Dicts: the arm and the objects, the goal, and the part of it achieved.

    Bullet keeps contacts through a reset, and even when it restores a state. Therefore the environment is made again
    for each seed; otherwise an episode would depend on those before it.

    PandaFlip cannot be made if the package lacks its texture, as panda-gym 3.0.7 does.
    """
    return Recreated(functools.partial(from_gymnasium, FAMILY, name, **kwargs), draws=True)
