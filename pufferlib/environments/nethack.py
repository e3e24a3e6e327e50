"""NetHack, the learning environment."""

from __future__ import annotations

from typing import Any

from pufferlib.environments import Example, Family, from_gymnasium

FAMILY = Family(
    names=("NetHack*",),
    description="NetHack",
    package="nle",
    extra="nethack",
    examples=(Example("NetHackScore-v0", {"max_episode_steps": 200}),),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Any:
    """Return an environment as its package has it."""
    return from_gymnasium(FAMILY, name, **kwargs)
