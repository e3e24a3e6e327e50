"""Procgen: sixteen games with a new level for each episode."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.environments import Example, Family, member
from pufferlib.util.annotations import Array

GAMES = (
    *("bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot", "heist"),
    *("jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot"),
)
FAMILY = Family(
    names=("procgen/*",),
    description="sixteen games of drawn levels",
    package="procgen",
    extra="procgen",
    examples=(Example("procgen/bigfish"),),
    members=tuple(f"procgen/{game}" for game in GAMES),
)


class Procgen(gymnasium.Env[Any, Any]):
    """A Gymnasium environment for a Procgen game: observations uint8 (64, 64, 3), actions Discrete(15).

    Procgen takes its seed at construction, and starts the next level on its own when an episode ends. Therefore, a
    reset with a seed, or in the middle of an episode, recreates the game. Any other reset returns the first image of
    the level that has already started.

    At the end of an episode, Procgen replaces the last image with the first image of the next level; ``step`` returns
    this first image as the last observation. An episode that reaches its time limit also counts as terminated,
    because Procgen does not report why an episode ends.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, game: str, render_mode: str | None = None, **kwargs: object) -> None:
        """Store a game's arguments; the first reset creates the game.

        kwargs: arguments of ``procgen.ProcgenGym3Env``, such as ``num_levels`` and ``distribution_mode``.
        """
        self.render_mode = render_mode
        self._game, self._kwargs = game, kwargs
        self._env: Any = None
        self._ended = False
        self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = spaces.Discrete(15)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or not self._ended:
            self.close()
            arguments = {"rand_seed": int(self.np_random.integers(1 << 31)), "num_threads": 0, **self._kwargs}
            self._env = importlib.import_module("procgen").ProcgenGym3Env(num=1, env_name=self._game, **arguments)
        self._ended = False
        return self._picture(), {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._env.act(np.array([action], np.int32))
        rewards, _, firsts = self._env.observe()
        self._ended = bool(firsts[0])
        return self._picture(), float(rewards[0]), self._ended, False, {}

    def render(self) -> Any:
        return self._picture()

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _picture(self) -> Array:
        picture: Array = self._env.observe()[1]["rgb"][0].copy()
        return picture


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Procgen:
    """Make a game. kwargs: arguments of ``Procgen``."""
    return Procgen(member(FAMILY, name), **kwargs)
