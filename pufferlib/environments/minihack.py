"""MiniHack: levels, tasks and puzzles built on NetHack."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.environments.nethack import Seeded
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("MiniHack-*",),
    description="levels and puzzles made of NetHack",
    package="minihack",
    extra="minihack",
    examples=(Example("MiniHack-Room-Random-5x5-v0", {"max_episode_steps": 30}),),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make a MiniHack task that is repeatable for a given seed.

    Observations are MiniHack's default Dict: "glyphs", "chars", "colors" and "specials", each (21, 79), for the map;
    the same four with the suffix "_crop", each (9, 9), for the cells around the agent; "blstats"; and "message".
    "observation_keys" selects among these and NetHack's other keys.
    """
    return Seeded(from_gymnasium(FAMILY, name, **kwargs))
