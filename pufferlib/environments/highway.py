"""Driving on roads with others."""

from __future__ import annotations

from typing import Any

from pufferlib.environments import Example, Family, from_gymnasium

FAMILY = Family(
    names=(
        "highway-*",
        "merge-*",
        "roundabout-*",
        "parking-*",
        "intersection-*",
        "racetrack-*",
        "exit-*",
        "two-way-*",
        "u-turn-*",
    ),
    description="driving on roads with others",
    package="highway_env",
    extra="highway",
    examples=(Example("highway-fast-v0", slow=True),),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Any:
    """Return an environment as its package has it."""
    return from_gymnasium(FAMILY, name, **kwargs)
