"""MO-Gymnasium: environments with several objectives, combined into a single weighted reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.errors import SpaceError
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=(
        *("mo-*", "deep-sea-treasure-*", "resource-gathering-*", "minecart-*", "breakable-bottles-*", "four-room-*"),
        *("fruit-tree-*", "fishwood-*", "water-reservoir-*"),
    ),
    description="several objectives, weighted to one reward",
    package="mo_gymnasium",
    extra="mo-gymnasium",
    examples=(
        Example("deep-sea-treasure-v0"),
        Example("minecart-v0"),
        Example("mo-hopper-v5", {"weights": (1, 0.5, 0)}),
    ),
)


class Weighted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper whose reward is the weighted sum of an environment's rewards, one for each objective.

    ``infos["rewards"]`` has the rewards before weighting, float64 (num_objectives,). A seeded reset also seeds
    Minecart's ores, which would otherwise come from NumPy's global generator. weights: one per objective, by default 1
    each. Raises SpaceError for another number of weights.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], weights: Sequence[float] | None = None) -> None:
        super().__init__(env)
        size = int(env.unwrapped.reward_space.shape[0])  # type: ignore[attr-defined]
        self._weights = np.ones(size) if weights is None else np.asarray(weights, np.float64)
        if self._weights.shape != (size,):
            raise SpaceError(f"weights={weights!r}, but there are {size} objectives; give one weight for each")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(seed=seed, options=options)
        if seed is not None:  # Minecart's ores come from NumPy's global generator
            for mine in getattr(self.unwrapped, "mines", ()):
                for ore in mine.distributions:
                    ore.random_state = self.unwrapped.np_random
        return result

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, rewards, terminated, truncated, infos = self.env.step(action)
        rewards = np.array(rewards, np.float64)
        return observation, float(rewards @ self._weights), terminated, truncated, {**infos, "rewards": rewards}


def env_creator(
    name: str = FAMILY.examples[0].name, weights: Sequence[float] | None = None, **kwargs: object
) -> GymnasiumEnv:
    """Make an environment with a scalar reward. weights: one per objective, by default 1 each."""
    return Weighted(from_gymnasium(FAMILY, name, **kwargs), weights)
