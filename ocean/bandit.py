"""Bandit: pull one of several arms, only one of which pays. Shows whether learning goes in the right direction.

Observation  Box(0, 1, (1,), float32), always 1.
Actions      Discrete(``num_actions``): the arm to pull.
Reward       (score + noise) · ``reward_scale``. The noise, drawn for each episode, has the standard deviation
             ``reward_noise``. It is nearly normal: the sum of twelve uniform numbers, minus its mean.
Ending       The episode terminates after one step.
Score        1 for the best arm, else 0. Uniform play: 1/num_actions; the best policy: 1.
Catches      an advantage or a reward of the wrong sign, rewards that reach the wrong row; with noise and scale, wrong
             normalisation of rewards.
Source       Rewritten from "Bandit" of PufferLib's Ocean (MIT). This version draws the best arm from ``arm_seed``, so
             that it is the same in every copy, and draws noise by ``pufferlib.util.philox``, as in the kernel
             (cuda_ext/ocean_bandit.cuh): ``reset(seed=s)`` is episode 0 of seed s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv
from pufferlib.util.philox import episode_of, philox, uniform

NOISE = 1  # the purpose of philox's draws


class Bandit(PufferEnv):
    """A bandit with ``num_actions`` >= 2 arms; ``arm_seed`` >= 0 is the seed with which the best arm is drawn.

    ``reward_scale`` > 0; ``reward_noise`` >= 0.
    """

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 4}
    chance = 1 / 4  # 1 / num_actions
    best = 1.0
    bar = 0.9

    def __init__(
        self,
        num_actions: int = 4,
        reward_scale: float = 1.0,
        reward_noise: float = 0.0,
        arm_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        if num_actions < 2:
            raise ValueError(f"num_actions={num_actions} leaves nothing to choose; use 2 or more")
        if not 0 < reward_scale < math.inf:
            raise ValueError(f"reward_scale={reward_scale} would hide which arm is the best; use a number above 0")
        if not 0 <= reward_noise < math.inf:
            raise ValueError(f"reward_noise={reward_noise} is not a standard deviation; use 0 or more")
        if arm_seed < 0:
            raise ValueError(f"arm_seed={arm_seed} cannot seed a generator; use 0 or more")
        self.num_actions, self.reward_scale, self.reward_noise = num_actions, reward_scale, reward_noise
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(num_actions)
        self.best_arm = int(np.random.default_rng(arm_seed).integers(num_actions))
        self.seed: int | None = None
        self.episode = self.t = 0
        self.noise = 0.0

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        self.observations[0] = 1
        self.seed, self.episode = episode_of(seed, self.seed, self.episode)
        self.t = 0
        if self.reward_noise:
            words = [word for block in range(3) for word in philox(self.seed, self.episode, 0, 0, NOISE, block)]
            self.noise = (sum(float(uniform(word)) for word in words) - 6) * self.reward_noise
        self.arm: int | None = None  # the arm that was pulled

    def step(self, actions: np.ndarray[Any, Any]) -> dict[str, float]:
        self.t += 1
        self.arm = int(actions[0])
        score = float(self.arm == self.best_arm)
        # Rounded to float32, so that sums equal a kernel's.
        self.rewards[0] = np.float32((score + self.noise) * self.reward_scale)
        self.terminations[0] = True
        return {"score": score}

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the best arm, int64 (1,)."""
        return np.array([self.best_arm])

    def render(self) -> Any:
        """Draw the arms: the best one in blue in the upper row, the pulled one in red in the lower row."""
        grid = np.zeros((2, self.num_actions), np.int8)
        grid[0, self.best_arm] = 1
        if self.arm is not None:
            grid[1, self.arm] = -1
        return draw(grid, self.render_mode)
