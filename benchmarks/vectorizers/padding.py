"""Pad the observations of agents to the longest one, for libraries that assume equal spaces of all agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo.utils import BaseParallelWrapper

__all__ = ["padded"]


def padded(env_creator: Callable[[], Any]) -> Any:
    """Return a ParallelEnv whose observations are padded to the longest; the environment itself if all are equal."""
    env = env_creator()
    shapes = {env.observation_space(agent).shape for agent in env.possible_agents}
    return env if len(shapes) == 1 else Padded(env, max(size for (size,) in shapes))


class Padded(BaseParallelWrapper):  # type: ignore[misc]
    """A wrapper that appends zeros to observations, with as little work as possible."""

    def __init__(self, env: Any, size: int) -> None:
        super().__init__(env)
        self._size = size
        self._space = spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def observation_space(self, agent: str) -> spaces.Box:
        return self._space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._pad(observations), infos

    def step(self, actions: Any) -> Any:
        observations, *rest = self.env.step(actions)
        return self._pad(observations), *rest

    def _pad(self, observations: dict[str, Any]) -> dict[str, Any]:
        """Return a new dict, since environments of this benchmark return the same one again."""
        return {
            agent: observation if len(observation) == self._size else self._padded(observation)
            for agent, observation in observations.items()
        }

    def _padded(self, observation: Any) -> Any:
        row = np.zeros(self._size, np.float32)
        row[: len(observation)] = observation
        return row
