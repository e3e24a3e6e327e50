"""Truncation: stay in a room until a random time limit. Shows whether a learner bootstraps from the final observation.

Observation  Box(0, 1, (1,), float32): 0 at the start, at the entrance; 1 in the room, and after the last step.
Actions      Discrete(2): 0 stays, 1 leaves. At the entrance either leads into the room.
Reward       -``entry`` for the step at the entrance; in the room +1 for staying, +``leave`` for leaving.
Ending       Leaving terminates the episode. Staying is possible for a number of steps drawn at the start, geometric
             with mean 1/``hazard``; staying in the last of them truncates the episode. The observations do not show
             which step is the last.
Score        Of the steps that the agent takes in the room, the share in which it stays. Uniform play: 0.3846; the best
             policy: 1. Staying pays more than ``leave`` at every discount above 0.875, but only for learners that
             bootstrap from the final observation. If truncations count as terminations, staying is worth only
             1/(1 - discount·(1 - hazard)) < 3.4. Staying is worth even less to learners that take the next episode's
             first observation, or zeros, for the final observation, because entry > 1/hazard.
Catches      truncations taken for terminations, bootstrapping from the observation after the reset or from none, the
             reset's row trained on, bootstrapping through terminations, endings of episodes ignored.
Source       New.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv


class Truncation(PufferEnv):
    """A room with a random time limit. 0 < ``hazard`` <= 1; ``leave`` >= 0, a reward; ``entry`` >= 0, a penalty."""

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 4}
    # The sum over n of P(a uniform policy is in the room for n steps and the n-th is the last) · share of staying, with
    # c = 0.7/2 the probability of another step: (1/2)·sum c^(n-1)·(n-1)/n for leaving, (0.3/2)·sum c^(n-1) for the rest
    chance = (1 / 0.65 + math.log(0.65) / 0.35) / 2 + 0.15 / 0.65
    best = 1.0
    bar = 0.9

    def __init__(
        self, hazard: float = 0.3, leave: float = 8.0, entry: float = 8.0, render_mode: str | None = None
    ) -> None:
        if not 0 < hazard <= 1:
            raise ValueError(f"hazard={hazard} is not a probability above 0; use 0 < hazard <= 1")
        for name, value in (("leave", leave), ("entry", entry)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value} must be a number from 0 up")
        self.hazard, self.leave, self.entry = hazard, leave, entry
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        self.limit = int(self.np_random.geometric(self.hazard))  # steps in the room
        self.stayed = 0
        self.cell = 0  # the agent's: 0 is the entrance, 1 the room, 2 outside
        self.observations[0] = 0

    def step(self, actions: np.ndarray[Any, Any]) -> dict[str, float] | None:
        self.observations[0] = 1
        if self.cell == 0:
            self.cell = 1
            self.rewards[0] = -self.entry
            return None
        if actions[0] == 1:
            self.cell = 2
            self.rewards[0] = self.leave
            self.terminations[0] = True
            return {"score": self.stayed / (self.stayed + 1)}
        self.stayed += 1
        self.rewards[0] = 1
        if self.stayed < self.limit:
            return None
        self.truncations[0] = True
        return {"score": 1.0}

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the best action, int64 (1,): stay."""
        return np.zeros(1, np.int64)

    def render(self) -> Any:
        grid = np.array([[0, 1, 0]])  # entrance, room, outside
        grid[0, self.cell] = -1
        return draw(grid, self.render_mode)
