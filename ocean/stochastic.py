"""Stochastic: play one of two actions a given share of the time, without counting. Shows whether actions are sampled.

Observation  Box(0, 1, (1,), float32), always 1.
Actions      Discrete(2).
Reward       The proximity, 1 - (p - f)², for action 0 if f < p and for action 1 if f >= p; otherwise 0. f is the share
             of action 0 in the episode so far, including this step.
Ending       The episode terminates after ``horizon`` steps. That is a termination, because p is a share of that many
             steps.
Score        The proximity at the end. Uniform play: 0.9575; always action 0: 0.91. A policy without memory sees
             neither f nor the step, so it can only play action 0 with some probability q, which scores
             1 - (p - q)² - q(1 - q)/horizon on average. The best policy: 0.9979, with q = p, as in ``solve``. (At q =
             0.702 the score is higher by 0.000004; a policy that counts steps can reach 1.) The return, which learners
             maximize, is highest at a lower q, about 0.61, which scores 0.9895. Correct learners end with a score
             between these two.
Catches      the likeliest action played instead of a sampled one. Does not reliably catch: learning from an action
             other than the one played, which may end near the right share by chance. Does not catch: the old
             log-probability of another row's action.
Source       Rewritten from "Stochastic" of PufferLib's Ocean (MIT). It has a kernel (cuda_ext/ocean_stochastic.cuh).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv
from pufferlib.util.philox import episode_of

BAR_CELLS = 20


class Stochastic(PufferEnv):
    """A test of sampling. The target share of action 0 is 0 < ``p`` < 1, in episodes of ``horizon`` >= 1 steps."""

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 20}
    chance = 1 - (0.7 - 0.5) ** 2 - 0.5 * 0.5 / 100  # f is binomial: its mean is q, its variance q(1 - q)/horizon
    best = 1 - 0.7 * 0.3 / 100
    bar = 0.98

    def __init__(self, p: float = 0.7, horizon: int = 100, render_mode: str | None = None) -> None:
        if not 0 < p < 1:
            raise ValueError(f"p={p} asks for one action only; use a number between 0 and 1")
        if horizon < 1:
            raise ValueError(f"horizon={horizon} is not a number of steps; use 1 or more")
        self.p, self.horizon = p, horizon
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.seed: int | None = None
        self.episode = self.t = self.num_zeros = 0

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        self.observations[0] = 1
        self.seed, self.episode = episode_of(seed, self.seed, self.episode)
        self.t = self.num_zeros = 0

    def step(self, actions: np.ndarray[Any, Any]) -> dict[str, float] | None:
        zero = actions[0] == 0
        self.t += 1
        self.num_zeros += int(zero)
        share = self.num_zeros / self.t
        away = self.p - share
        proximity = 1 - away * away
        if zero == (share < self.p):
            self.rewards[0] = np.float32(proximity)  # so that sums equal a kernel's
        if self.t < self.horizon:
            return None
        self.terminations[0] = True
        return {"score": proximity}

    def solve(self) -> np.ndarray[Any, Any]:
        """Return a random action, int64 (1,): 0 with probability ``p``, else 1."""
        return np.array([int(self.np_random.random() >= self.p)])

    def render(self) -> Any:
        """Draw two bars: ``p`` in blue, and below it the share of action 0 so far in red."""
        share = self.num_zeros / max(1, self.t)
        grid = np.zeros((2, BAR_CELLS), np.int8)
        grid[0, : round(self.p * BAR_CELLS)] = 1
        grid[1, : round(share * BAR_CELLS)] = -1
        return draw(grid, self.render_mode)
