"""Environments whose observations say where they belong; actors over Ray import this file, and not the tests."""

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


def require_counted(replay: Any) -> None:
    """Raise AssertionError unless a TeamReplay that never wrapped has the steps of Counting environments."""
    num_ends = np.zeros(2, np.int64)  # by truncation, by termination
    for env_id, num_rows in enumerate(replay.num_rows):
        columns = {name: column[env_id, :num_rows] for name, column in replay.columns.items()}
        for row, agent in zip(*columns["masks"].nonzero(), strict=True):
            (episode, _, time), after = columns["observations"][row - 1, agent], columns["observations"][row, agent]
            assert after.tolist() == [episode, agent, time + 1] and columns["rewards"][row, agent] == time + 1
            ended = row + 1 < num_rows and not columns["masks"][row + 1, agent]
            assert columns["terminations"][row, agent] <= (ended and episode % 2 == 1)
            num_ends[int(episode) % 2] += ended
            if ended and episode % 2 == 1:
                assert columns["terminations"][row, agent]
    assert (num_ends > 3).all()
