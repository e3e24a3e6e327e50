"""A small game of one team, as a PettingZoo environment, that refuses forbidden actions."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

__all__ = ["Barred"]


class Barred(ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """Two agents and three actions, of which another one is forbidden in each step and for each agent.

    A forbidden action raises AssertionError. An agent observes the step and its action mask; episodes have four steps.
    """

    metadata: dict[str, Any] = {"name": "barred"}
    possible_agents = ["first", "second"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict(action_mask=spaces.MultiBinary(3), time=spaces.Box(0, 4, (1,), np.float32))

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self.time = list(self.possible_agents), 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        for agent, observation in self._observations().items():
            assert observation["action_mask"][actions[agent]], (agent, self.time, actions)
        self.time += 1
        ends, observations = self.time == 4, self._observations()
        values: tuple[Any, ...] = (1.0, False, ends, {})
        returned = [dict.fromkeys(self.agents, value) for value in values]
        self.agents = [] if ends else self.agents
        return observations, *returned

    def _observations(self) -> dict[str, Any]:
        time = np.full(1, self.time, np.float32)
        return {
            agent: {"action_mask": (np.arange(3) != (self.time + index) % 3).astype(np.int8), "time": time}
            for index, agent in enumerate(self.agents)
        }
