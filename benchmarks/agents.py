"""Environments of several agents under PettingZoo's parallel interface, whose steps cost almost nothing."""

from __future__ import annotations

from time import thread_time
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

try:
    from benchmarks.recordings import built, load
except ImportError:  # in a player, whose path holds the files of this folder
    from recordings import built, load  # type: ignore[import-not-found,no-redef]

__all__ = ["ReplayedAgents", "ReturningAgents"]


class _Spaces(ParallelEnv):  # type: ignore[misc,type-arg]
    """A ParallelEnv that returns the same space objects each time, as PettingZoo requires."""

    metadata = {"render_modes": []}
    render_mode = None

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]


class ReturningAgents(_Spaces):
    """An environment whose agents live for a whole episode and whose steps return the same objects.

    info: whether each agent's info has an entry. episode_length: steps until all agents terminate. busy_s: the CPU time
    of a step.
    """

    def __init__(self, num_agents: int, info: bool = False, episode_length: int = 200, busy_s: float = 0.0) -> None:
        self.possible_agents = [f"agent_{index}" for index in range(num_agents)]
        self.agents: list[str] = []
        self.observation_spaces = {agent: spaces.Box(-1, 1, (8,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(4) for agent in self.possible_agents}
        agents = self.possible_agents
        observations = {agent: np.full(8, index / num_agents, np.float32) for index, agent in enumerate(agents)}
        infos = {agent: {"distance": index + 0.5} if info else {} for index, agent in enumerate(agents)}
        rewards, on, off = dict.fromkeys(agents, 1.0), dict.fromkeys(agents, False), dict.fromkeys(agents, True)
        step = (list(agents), (observations, rewards, on, on, infos))
        last: Any = ([], (observations, rewards, off, on, infos))
        self._begin = (observations, infos)
        self._episode = [step] * (episode_length - 1) + [last]
        self._results = iter(self._episode)
        self._busy_s = busy_s
        if busy_s:
            self.step = self._busy_step  # type: ignore[method-assign]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        self._results = iter(self._episode)
        return self._begin

    def step(self, actions: Any) -> Any:
        self.agents, result = next(self._results)
        return result

    def _busy_step(self, actions: Any) -> Any:
        end_s = thread_time() + self._busy_s
        while thread_time() < end_s:
            pass
        self.agents, result = next(self._results)
        return result


class ReplayedAgents(_Spaces):
    """An environment whose agents appear and leave as in a recording; otherwise like replayed.ReplayedEnv."""

    def __init__(self, recording: str) -> None:
        content = load(recording)
        self.possible_agents = list(content["agents"])
        self.agents: list[str] = []
        self.observation_spaces = {agent: built(space) for agent, space in content["observation"].items()}
        self.action_spaces = {agent: built(space) for agent, space in content["action"].items()}
        self._episodes = content["episodes"]
        self._number = 0
        self._results: Any = iter(())

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._number = int(seed)
        (self.agents, begin), results = self._episodes[self._number % len(self._episodes)]
        self._number += 1
        self._results = iter(results)
        return begin

    def step(self, actions: Any) -> Any:
        self.agents, result = next(self._results)
        return result
