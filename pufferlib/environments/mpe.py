"""MPE2: particles that communicate, chase and gather."""

from __future__ import annotations

from typing import Any

from pufferlib.environments import Example, Family, from_module
from pufferlib.util.annotations import ParallelEnv

FAMILY = Family(
    names=("mpe/*",),
    description="particles that talk, chase and gather (PettingZoo)",
    package="mpe2",
    extra="mpe",
    examples=(
        Example("mpe/simple_tag_v3"),
        Example("mpe/simple_speaker_listener_v4"),
    ),
    folder="mpe2",
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> ParallelEnv:
    """Make one of MPE2's environments, unchanged. kwargs: arguments of ``parallel_env`` in the environment's module."""
    env: ParallelEnv = from_module(FAMILY, name, **kwargs)
    return env
