"""RWARE, robots in a warehouse: Gymnasium environments whose Tuple spaces have one element per robot."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("rware-*",),
    description="robots in a warehouse, agents in a Tuple",
    package="rware",
    extra="rware",
    examples=(Example("rware-tiny-2ag-v2", {"max_steps": 50}),),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make one of the package's environments, unchanged. kwargs: arguments of ``gymnasium.make``."""
    return from_gymnasium(FAMILY, name, **kwargs)
