"""highway-env: driving on roads with other cars."""

from __future__ import annotations

from typing import Any

import gymnasium

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=(
        "highway-*",
        "merge-*",
        "roundabout-*",
        "parking-*",
        "intersection-*",
        "racetrack-*",
        "exit-*",
        "lane-keeping-*",
        "two-way-*",
        "u-turn-*",
    ),
    description="driving on roads with others",
    package="highway_env",
    extra="highway",
    examples=(Example("highway-fast-v0"),),
)


class Repeatable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that removes "action" from the infos of resets, because the package draws its value at random."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {key: value for key, value in info.items() if key != "action"}


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make one of the package's environments, without the random "action" in a reset's infos."""
    return Repeatable(from_gymnasium(FAMILY, name, **kwargs))
