"""MinAtar: five Atari games on a grid of ten by ten cells."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium

from pufferlib.environments import Example, Family, from_gymnasium, member
from pufferlib.util.annotations import GymnasiumEnv

GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
FAMILY = Family(
    names=("MinAtar/*",),
    description="five of Atari's games, on a grid of ten by ten",
    package="minatar",
    extra="minatar",
    examples=(Example("MinAtar/Breakout-v1"), Example("MinAtar/SpaceInvaders-v1", {"max_episode_steps": 100})),
    members=tuple(f"MinAtar/{game}-{version}" for game in GAMES for version in ("v0", "v1")),
)


class Seeded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that clears a game's last action at seeded resets.

    Otherwise MinAtar may start a game by repeating the last action of the previous game, whatever the seed.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.unwrapped.game.last_action = 0  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=options)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make a game with observations bool (10, 10, channels).

    "…-v0" has all six actions, "…-v1" only those with an effect.
    """
    member(FAMILY, name)
    if name not in gymnasium.registry:
        importlib.import_module("minatar.gym").register_envs()
    return Seeded(from_gymnasium(FAMILY, name, **kwargs))
