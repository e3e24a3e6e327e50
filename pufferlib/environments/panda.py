"""A robot arm in PyBullet, for goals: panda-gym."""

from __future__ import annotations

import functools
from typing import Any

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.environments._anew import MadeAnew

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


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Any:
    """Return a task, whose observations are Dicts: of the arm and the things, the goal, and what is reached of it.

    Bullet remembers touches through a reset, and where it is asked to restore a state: by itself an episode depends on
    those before it, whatever the seed.

    PandaFlip cannot be made where the package lacks its texture, as panda-gym 3.0.7 does.
    """
    return MadeAnew(functools.partial(from_gymnasium, FAMILY, name, **kwargs), draws=True)
