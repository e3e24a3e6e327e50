"""Tasks of one robot arm: Meta-World."""

from __future__ import annotations

from typing import Any

from pufferlib.environments import Example, Family, from_gymnasium

FAMILY = Family(
    names=("Meta-World/*",),
    description="tasks of one robot arm",
    package="metaworld",
    extra="metaworld",
    examples=(Example("Meta-World/MT1", {"env_name": "reach-v3", "max_episode_steps": 50}, slow=True),),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Any:
    """Return an environment as its package has it."""
    return from_gymnasium(FAMILY, name, **kwargs)
