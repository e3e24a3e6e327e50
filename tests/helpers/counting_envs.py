"""Environments that tests of training over Ray send to actors, which import this file and not the tests."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from gymnasium import spaces

import pufferlib


class Counting(pufferlib.PufferEnv):
    """Two agents of unequal lives; each observes (episode, agent, time), and is paid its time."""

    num_agents = 2
    single_observation_space = spaces.Box(0, np.inf, (3,), np.float32)
    single_action_space = spaces.Discrete(4)
    num_episodes = 0

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed=seed)
        self.num_episodes, self.time = self.num_episodes + 1, 0
        self.length = int(self.np_random.integers(2, 7))
        self.observations[:] = [[self.num_episodes, agent, 0] for agent in range(2)]

    def step(self, actions: Any) -> Any:
        self.time += 1
        self.observations[:, 2] = self.time
        self.rewards[:] = self.time
        (self.terminations if self.num_episodes % 2 else self.truncations)[:] = self.alive & (
            self.time >= np.array([self.length, self.length - 1])
        )
        return {"picture": np.zeros(1000), "time": self.time}


class Marked(Counting):
    """Says in which process it plays."""

    def step(self, actions: Any) -> Any:
        return {**super().step(actions), "pid": os.getpid()}


class Fragile(Counting):
    """Breaks in its third episode."""

    def step(self, actions: Any) -> Any:
        if self.num_episodes == 3:
            raise OSError("the emulator caught fire")
        return super().step(actions)
