"""PettingZoo's SISL environments: cooperative pursuit and balancing."""

from __future__ import annotations

from typing import Any

from pufferlib.environments import Example, Family, from_module
from pufferlib.util.annotations import ParallelEnv

FAMILY = Family(
    names=("sisl/*",),
    description="pursuit and balance in teams (PettingZoo)",
    package="pettingzoo",
    extra="sisl",
    examples=(
        Example("sisl/pursuit_v5", {"max_cycles": 50}),
        Example("sisl/multiwalker_v9", {"max_cycles": 50}),
    ),
    folder="pettingzoo.sisl",
    needs=("Box2D", "pygame", "pymunk", "scipy"),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> ParallelEnv:
    """Make a SISL environment with PettingZoo's parallel interface.

    kwargs: arguments of ``parallel_env`` in the environment's module.
    """
    env: ParallelEnv = from_module(FAMILY, name, **kwargs)
    return env
