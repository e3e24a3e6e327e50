"""POPGym: games that require memory."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("popgym-*",),
    description="games that take a memory",
    package="popgym",
    extra="popgym",
    examples=(
        Example("popgym-RepeatPreviousEasy-v0"),
        Example("popgym-BattleshipEasy-v0"),
    ),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make one of the package's environments, unchanged. kwargs: arguments of ``gymnasium.make``."""
    return from_gymnasium(FAMILY, name, **kwargs)
