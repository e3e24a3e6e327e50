"""Observations of agents padded to the longest, for libraries that take all agents for alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo.utils import BaseParallelWrapper

__all__ = ["padded"]


def padded(env_creator: Callable[[], Any]) -> Any:
    """Return a ParallelEnv whose agents all have the longest observation, or the environment itself if they do."""
    env = env_creator()
    shapes = {env.observation_space(agent).shape for agent in env.possible_agents}
    return env if len(shapes) == 1 else Padded(env, max(size for (size,) in shapes))


class Padded(BaseParallelWrapper):  # type: ignore[misc]
    """Zeros after what an agent sees; as little work as can be."""

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
        """Return another dict, since environments of this benchmark return the same one again."""
        return {
            agent: observation if len(observation) == self._size else self._padded(observation)
            for agent, observation in observations.items()
        }

    def _padded(self, observation: Any) -> Any:
        row = np.zeros(self._size, np.float32)
        row[: len(observation)] = observation
        return row
