"""PettingZoo's arcade games for teams."""

from __future__ import annotations

from typing import Any

from pufferlib.environments import Example, Family, from_module

FAMILY = Family(
    names=("butterfly/*",),
    description="cooperative arcade games (PettingZoo)",
    package="pettingzoo",
    extra="butterfly",
    examples=(
        Example("butterfly/knights_archers_zombies_v11", {"max_cycles": 100, "spawn_delay": 4, "line_death": True}),
    ),
    folder="pettingzoo.butterfly",
    needs=("pygame", "pymunk"),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Any:
    """Return an environment as its package has it."""
    return from_module(FAMILY, name, **kwargs)
