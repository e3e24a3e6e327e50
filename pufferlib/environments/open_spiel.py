"""OpenSpiel's games, through Shimmy: turn-based, with action masks."""

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
    needs=("pettingzoo", "pyspiel"),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> object:
    """Make a game as a PettingZoo AEC environment.

    kwargs: arguments of Shimmy's ``OpenSpielCompatibilityV0``, such as "config", a dict of the game's parameters.
    """
    game: Any = importlib.import_module("shimmy.openspiel_compatibility").OpenSpielCompatibilityV0

    class Repeatable(game):  # type: ignore[misc]
        """A game whose randomness, including that of later episodes, derives from the last seed passed to ``reset``."""

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
            if seed is None and hasattr(self, "np_seed"):
                seed = int(self.np_random.integers(1 << 31))
            super().reset(seed, options)

    return Repeatable(game_name=name.rpartition("/")[2], **kwargs)
