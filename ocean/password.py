"""Password: guess a fixed sequence of bits, for a reward only if all are right. Shows whether rare rewards are learnt.

Observation  Box(-1, 1, (``length``,), float32): the guesses so far, 0 or 1, and -1 for those still to come.
Actions      Discrete(2): the next bit.
Reward       1 with the last bit if all are right, else 0.
Ending       The episode terminates after ``length`` steps.
Score        The reward. Uniform play: 1/2^length; the best policy: 1.
Catches      a learner that does not latch onto a rare reward. Catches too little exploration only sometimes: a policy
             that at first almost always chose the same action was caught with about half of the seeds.
Source       Rewritten from "Password" of PufferLib's Ocean (MIT). This version draws the password from
             ``password_seed``, so that it is the same in every copy, and does not use global generators. It has a
             kernel (cuda_ext/ocean_password.cuh).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv
from pufferlib.util.philox import episode_of


class Password(PufferEnv):
    """A password to guess, of ``length`` >= 1 bits that are drawn with the seed ``password_seed`` >= 0."""

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 4}
    chance = 1 / 2**5  # 1 / 2^length
    best = 1.0
    bar = 0.9

    def __init__(self, length: int = 5, password_seed: int = 0, render_mode: str | None = None) -> None:
        if length < 1:
            raise ValueError(f"length={length} leaves nothing to guess; use 1 or more")
        if password_seed < 0:
            raise ValueError(f"password_seed={password_seed} cannot seed a generator; use 0 or more")
        self.length = length
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(-1, 1, (length,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.password = np.random.default_rng(password_seed).integers(2, size=length).tolist()
        self.seed: int | None = None
        self.episode = self.t = 0
        self.guesses = np.zeros(length, np.bool_)  # in the episode's steps so far; False for those still to come

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        self.observations[0] = -1
        self.seed, self.episode = episode_of(seed, self.seed, self.episode)
        self.t = 0
        self.guesses[:] = False

    def step(self, actions: np.ndarray[Any, Any]) -> dict[str, float] | None:
        self.observations[0, self.t] = self.guesses[self.t] = actions[0]
        self.t += 1
        if self.t < self.length:
            return None
        score = float((self.guesses == self.password).all())
        self.rewards[0] = score
        self.terminations[0] = True
        return {"score": score}

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the next bit of the password, int64 (1,)."""
        return np.array([self.password[self.t % self.length]])  # % : also when the episode is over

    def render(self) -> Any:
        """Draw the password in the upper row, the guesses in the lower: 1 in blue, 0 in red, future guesses in grey."""
        grid = np.zeros((2, self.length), np.int8)
        grid[0] = 2 * np.array(self.password) - 1
        grid[1, : self.t] = 2 * self.guesses[: self.t] - 1
        return draw(grid, self.render_mode)
