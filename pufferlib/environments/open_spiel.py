"""OpenSpiel's games, through Shimmy: in turns, with masks of what is allowed."""

from __future__ import annotations

import importlib
from typing import Any

from pufferlib.environments import Example, Family

FAMILY = Family(
    names=("open_spiel/*",),
    description="OpenSpiel's games, with action masks",
    package="shimmy",
    extra="open-spiel",
    examples=(Example("open_spiel/tic_tac_toe"), Example("open_spiel/kuhn_poker")),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Any:
    """Return a game, an AEC environment; kwargs: "config", the game's parameters."""
    shimmy = importlib.import_module("shimmy.openspiel_compatibility")
    return shimmy.OpenSpielCompatibilityV0(game_name=name.rpartition("/")[2], **kwargs)
