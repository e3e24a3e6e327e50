"""A PufferEnv of several agents that writes its rows in place, at almost no cost. Only this project can step it."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
from gymnasium import spaces

import pufferlib


class NativeRows(pufferlib.PufferEnv):
    """A PufferEnv whose agents live for a whole episode and whose observations do not change."""

    single_observation_space = spaces.Box(-1, 1, (8,), np.float32)
    single_action_space = spaces.Discrete(4)

    def __init__(self, num_agents: int, episode_length: int = 200) -> None:
        self.num_agents = num_agents
        self._ends = cycle([False] * (episode_length - 1) + [True])

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed=seed)
        self.observations[:] = 0.5

    def step(self, actions: np.ndarray[Any, Any]) -> None:
        self.rewards[:] = 1
        if next(self._ends):
            self.terminations[:] = True
