"""Multiagent: two agents with opposite rules. Shows whether each agent's observations, actions and rewards match.

Observation  Box(-1, 1, (2,), float32): [b, 0] for the first agent, [0, b] for the second. b is -1 or 1, drawn for each
             agent in each episode.
Actions      Discrete(2). If b is 1, the right action is 1 for the first agent and 0 for the second; if b is -1, it is 0
             for the first and 1 for the second.
Reward       1 to each agent that takes its right action, else 0.
Ending       Both agents terminate after one step.
Score        Each agent's reward. Uniform play: 0.5; the best policy: 1.
Catches      agents whose rows are scrambled: observations in a different order from actions and rewards, actions one
             row off.
Source       Rewritten from "Multiagent" of PufferLib's Ocean (MIT). In the original, an agent's observation never
             changes, so a learner can adapt to swapped rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv


class Multiagent(PufferEnv):
    """A ``PufferEnv`` with two agents, which ``pufferlib.wrap`` turns into a PettingZoo environment."""

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 4}
    chance = 0.5  # one of two actions is right
    best = 1.0
    bar = 0.95
    num_agents = 2

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        self.asked = self.np_random.choice((-1, 1), 2)  # the b of each agent
        self.observations[:] = np.diag(self.asked)
        self.played = np.zeros(2, np.int64)  # by each agent: -1 for action 0, 1 for action 1, 0 for none yet

    def step(self, actions: np.ndarray[Any, Any]) -> list[dict[str, float]]:
        self.played = 2 * actions - 1
        self.rewards[:] = actions == self.solve()
        self.terminations[:] = True
        return [{"score": float(reward)} for reward in self.rewards]

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the right action of each agent, int64 (2,)."""
        first, second = self.asked
        return np.array([int(first > 0), int(second < 0)])

    def render(self) -> Any:
        """Draw a row per agent: its observation, then its action.

        An observed 1 and action 1 are blue, an observed -1 and action 0 are red. An observed 0 and an action not yet
        taken are grey.
        """
        return draw(np.column_stack([self.observations, self.played]), self.render_mode)
