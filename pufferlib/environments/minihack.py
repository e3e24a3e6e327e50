"""Levels, tasks and puzzles made of NetHack."""

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
    """Return a task of MiniHack that seeds make repeatable.

    Its Dict is MiniHack's default: the map as "glyphs", "chars", "colors" and "specials", each (21, 79), and as the
    nine by nine cells around the agent ("…_crop"), "blstats" and "message". "observation_keys" selects among these and
    NetHack's others.
    """
    return Seeded(from_gymnasium(FAMILY, name, **kwargs))
