"""Crafter: an open-world survival game seen from above."""

from __future__ import annotations

import importlib
from typing import Any, SupportsInt

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.environments import Example, Family, member

FAMILY = Family(
    names=("crafter/*",),
    description="an open world to survive in",
    package="crafter",
    extra="crafter",
    examples=(Example("crafter/reward", {"length": 100}),),
    members=("crafter/reward", "crafter/noreward"),
)


class Crafter(gymnasium.Env[Any, Any]):
    """A Gymnasium environment for Crafter, with observations uint8 (64, 64, 3) by default.

    ``reset(seed)`` seeds the world. Episodes are truncated at the time limit.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None, **kwargs: object) -> None:
        """Create the world. kwargs: arguments of ``crafter.Env``; "length" is the maximum length of an episode."""
        self.render_mode = render_mode
        self._world = importlib.import_module("crafter").Env(**kwargs)
        # Crafter's sets of creatures are ordered by memory address, which would make it random which one vanishes.
        balance = self._world._balance_chunk
        self._world._balance_chunk = lambda chunk, objects: balance(
            chunk, sorted(objects, key=lambda creature: tuple(creature.pos))
        )
        width, height = self._world.observation_space.shape[:2]  # Crafter's size; its pictures are transposed
        self.observation_space = spaces.Box(0, 255, (height, width, 3), np.uint8)
        self.action_space = spaces.Discrete(self._world.action_space.n)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._world._seed, self._world._episode = int(self.np_random.integers(1 << 31)), 0  # these seed the world
        return self._world.reset(), {}

    def step(self, action: SupportsInt) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, done, info = self._world.step(int(action))
        dead = info["discount"] == 0
        return observation, float(reward), bool(dead), bool(done and not dead), info

    def render(self) -> Any:
        return self._world.render()


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Crafter:
    """Make a world, with the rewards that its name selects. kwargs: arguments of ``Crafter``.

    "crafter/reward" rewards new achievements and changes in health; in "crafter/noreward", all rewards are 0.
    """
    return Crafter(reward=member(FAMILY, name) == "reward", **kwargs)
