"""PettingZoo's board and card games: turn-based, with action masks."""

from __future__ import annotations

from pufferlib.environments import Example, Family, from_module

FAMILY = Family(
    names=("pettingzoo-classic/*",),
    description="board and card games in turns, with action masks",
    package="pettingzoo",
    extra="pettingzoo-classic",
    examples=(Example("pettingzoo-classic/connect_four_v3"), Example("pettingzoo-classic/leduc_holdem_v4")),
    folder="pettingzoo.classic",
    needs=("chess", "pygame", "rlcard", "shimmy"),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> object:
    """Make a game as a PettingZoo AEC environment. kwargs: arguments of the function ``env`` in the game's module."""
    return from_module(FAMILY, name, "env", **kwargs)
