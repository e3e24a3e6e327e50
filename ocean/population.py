"""Population: agents that come, answer and go. Reveals training on padding, and values that leak between agents.

Observation  Box(0, 1, (2,), float32): [newborn, bit]. In its first step an agent is a newborn, and observes [1, 0].
             Afterwards it is an adult, and observes [0, bit], with a bit drawn for each observation, including the
             last. An adult's observation may thus equal the zeros in the row of an absent agent.
Actions      Discrete(3): answer 0, answer 1, or 2 to leave. A newborn's action has no effect.
Reward       -``entry`` for the newborn's step; then 1 for answering with the bit, 0 for the other answer, ``leave`` for
             leaving.
Ending       Leaving terminates an agent. An adult can stay for a number of steps drawn at its birth, geometric with
             mean 1/``hazard``; answering in the last of them truncates it. All agents are truncated after ``horizon``
             steps. The episode ends then, or when no agent is left.
Population   An episode starts with 2 agents. In every step but the last, a new agent appears with probability
             ``spawn``, or always if no other is left, in the lowest row that was free before the step. If no row was
             free, none appears, and the episode ends early if all agents end in that step. Names are never reused in an
             episode; there are no possible_agents, and at most ``max_num_agents`` agents are alive.
Score        For each agent that grew up, on its last step: the share of its adult steps that gave the right answer.
             Uniform play: 0.2765; the best policy: 1.
Catches      masks ignored, so that padding and first rows are trained on; agents' endings ignored in favour of the
             episode's; actions one row off.
Source       New.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from ocean._render import RENDER_MODES, check_render_mode, draw

LEAVE = 2


@dataclass
class _Life:
    """The state of a living agent. agent_index: the agent's row."""

    agent_index: int
    limit: int  # the maximum number of steps as an adult
    newborn: bool = True
    bit: int = 0
    num_steps: int = 0  # as an adult
    num_right: int = 0


class Population(ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """A population of up to ``places`` >= 2 agents.

    0 <= ``spawn`` <= 1; ``horizon`` >= 1; 0 < ``hazard`` <= 1; ``leave``, ``entry`` >= 0.
    """

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 4, "name": "population"}
    chance = 0.2765  # of 1.9 million simulated agents, 5.3 million steps; standard error 0.0003
    best = 1.0
    bar = 0.95

    def __init__(
        self,
        places: int = 8,
        spawn: float = 0.5,
        horizon: int = 64,
        hazard: float = 0.3,
        leave: float = 5.0,
        entry: float = 8.0,
        render_mode: str | None = None,
    ) -> None:
        if places < 2:
            raise ValueError(f"places={places} is too few for the 2 agents that it starts with; use 2 or more")
        if not 0 <= spawn <= 1:
            raise ValueError(f"spawn={spawn} is not a probability; use 0 to 1")
        if horizon < 1:
            raise ValueError(f"horizon={horizon} is not a number of steps; use 1 or more")
        if not 0 < hazard <= 1:
            raise ValueError(f"hazard={hazard} is not a probability above 0; use 0 < hazard <= 1")
        for name, value in (("leave", leave), ("entry", entry)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value} must be a number from 0 up")
        self.places, self.spawn, self.horizon = places, spawn, horizon
        self.hazard, self.leave, self.entry = hazard, leave, entry
        self.render_mode = check_render_mode(render_mode)
        self.np_random = np.random.default_rng()
        self.lives: dict[str, _Life] = {}
        self._observation_space = spaces.Box(0, 1, (2,), np.float32)
        self._action_space = spaces.Discrete(3)

    @property
    def agents(self) -> list[str]:
        """The names of the living agents, the oldest first."""
        return list(self.lives)

    @property
    def max_num_agents(self) -> int:
        return self.places

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._action_space

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self.steps_left, self.num_born = self.horizon, 0
        self.lives = {}
        for agent_index in range(2):
            self._bear(agent_index)
        return {name: _seen(life) for name, life in self.lives.items()}, {name: {} for name in self.lives}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        free = set(range(self.places)).difference(life.agent_index for life in self.lives.values())
        self.steps_left -= 1
        lives, self.lives = self.lives, {}
        rewards, terminations, truncations, infos = {}, {}, {}, {}
        for name, life in lives.items():
            left = not life.newborn and actions[name] == LEAVE
            rewards[name] = self._play(life, actions[name])
            over = life.num_steps == life.limit or self.steps_left <= 0
            terminations[name], truncations[name] = left, over and not left
            ended = left or over
            infos[name] = {"score": life.num_right / life.num_steps} if ended and life.num_steps else {}
            if not ended:
                self.lives[name] = life
        observations = {name: _seen(life) for name, life in lives.items()}
        if self.steps_left > 0 and free and (self.np_random.random() < self.spawn or not self.lives):
            name = self._bear(min(free))
            observations[name], infos[name] = _seen(self.lives[name]), {}
            rewards[name], terminations[name], truncations[name] = 0.0, False, False
        return observations, rewards, terminations, truncations, infos

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the best action for each row, int64 (places,): its agent's bit, or 0 for a row without an agent."""
        actions = np.zeros(self.places, np.int64)
        for life in self.lives.values():
            actions[life.agent_index] = life.bit
        return actions

    def solve_agents(self) -> dict[str, int]:
        """Return the best actions keyed by agent name, as ``step`` takes them."""
        return {name: life.bit for name, life in self.lives.items()}

    def render(self) -> Any:
        """Draw the agents' rows as columns of two cells.

        The upper cell is red if an agent is present, the lower cell blue if that agent's bit is 1.
        """
        grid = np.zeros((2, self.places), np.int8)
        for life in self.lives.values():
            grid[:, life.agent_index] = -1, life.bit
        return draw(grid, self.render_mode)

    def _bear(self, agent_index: int) -> str:
        name = f"agent_{self.num_born}"
        self.num_born += 1
        self.lives[name] = _Life(agent_index, int(self.np_random.geometric(self.hazard)))
        return name

    def _play(self, life: _Life, action: int) -> float:
        """Apply an agent's action, draw the agent's next bit, and return the reward."""
        bit, newborn = life.bit, life.newborn
        life.bit, life.newborn = int(self.np_random.integers(2)), False
        if newborn:
            return -self.entry
        life.num_steps += 1
        if action == LEAVE:
            return self.leave
        life.num_right += bool(action == bit)
        return float(action == bit)


def _seen(life: _Life) -> np.ndarray[Any, Any]:
    return np.array([life.newborn, life.bit], np.float32)
