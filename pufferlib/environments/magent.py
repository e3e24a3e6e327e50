"""MAgent2: battles between hundreds of agents."""

from __future__ import annotations

from typing import Any

from pufferlib.environments import Example, Family, from_module
from pufferlib.util.annotations import ParallelEnv

FAMILY = Family(
    names=("magent/*",),
    description="battles of hundreds of agents (PettingZoo)",
    package="magent2",
    extra="magent",
    examples=(Example("magent/battle_v4", {"max_cycles": 150}),),
    folder="magent2.environments",
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> ParallelEnv:
    """Make one of MAgent2's environments, unchanged.

    kwargs: arguments of ``parallel_env`` in the environment's module.
    """
    env: ParallelEnv = from_module(FAMILY, name, **kwargs)
    return env
