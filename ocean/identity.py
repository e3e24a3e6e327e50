"""Identity: repeat the code that is shown, in environments of different speeds. Reveals mixed-up rows of a pool.

Observation  Box(-1, 1, (num_codes + 1,), float32): a one-hot code, and the luck of the step, uniform in [-1, 1]; both
             are drawn for each observation, including the last.
Actions      Discrete(num_codes): the answer.
Reward       1 for repeating the code, else 0; plus ``fortune`` times the luck, whatever the answer. A learner that
             pairs each row with its own reward can predict the luck. To a learner that mixes up rows, the luck is
             noise, which hides the rewards that are in the right row by chance. Without the luck, those rewards would
             be enough to learn from: with fortune=0, such a learner scored 0.93 after 60,000 steps.
Ending       The episode terminates after ``horizon`` steps: it is a test of that many questions.
Score        The share of the codes that were repeated. Uniform play: 1/num_codes, by default 0.25; the best policy: 1.
Catches      rows and actions matched by their position in a batch, although environments finish in a different order
             from the one in which they started: memories and trajectories stored by position, actions sent in the
             order of sorted ids, the actions of the previous batch. Use a pool of more environments than a batch holds.
Source       New.

A step sleeps for ``step_s`` seconds or, in every fourth environment (``env_index`` 3, 7, 11, …), for ``slow`` times as
long. Each duration varies at random by up to 30 %. The codes do not depend on the durations, which come from a separate
generator that is seeded with the environment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv

JITTER = 0.3


class Identity(PufferEnv):
    """A test of repeating codes. ``num_codes`` >= 2; ``horizon``, ``slow`` >= 1; ``fortune``, ``step_s`` >= 0."""

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 4}
    chance = 1 / 4  # 1/num_codes
    best = 1.0
    bar = 0.95

    def __init__(
        self,
        num_codes: int = 4,
        horizon: int = 8,
        fortune: float = 4.0,
        slow: float = 5.0,
        step_s: float = 0.0001,
        env_index: int = 0,
        render_mode: str | None = None,
    ) -> None:
        if num_codes < 2:
            raise ValueError(f"num_codes={num_codes} leaves nothing to choose; use 2 or more")
        if horizon < 1:
            raise ValueError(f"horizon={horizon} is not a number of steps; use 1 or more")
        if not 0 <= fortune < math.inf:
            raise ValueError(f"fortune={fortune} must be a number from 0 up")
        if not 1 <= slow < math.inf:
            raise ValueError(f"slow={slow} would not be slower; use a number from 1 up")
        if not 0 <= step_s < math.inf:
            raise ValueError(f"step_s={step_s} is not a time; use a number of seconds from 0 up")
        if env_index < 0:
            raise ValueError(f"env_index={env_index} is not an environment's number; use 0 or more")
        self.num_codes, self.horizon, self.fortune = num_codes, horizon, fortune
        self.step_s = step_s * (slow if env_index % 4 == 3 else 1)
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(-1, 1, (num_codes + 1,), np.float32)
        self.single_action_space = spaces.Discrete(num_codes)
        self.clock = np.random.default_rng(0)

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        if seed is not None:
            self.clock = np.random.default_rng([seed, 1])
        self.steps_left, self.num_right = self.horizon, 0
        self.answer: int | None = None
        self._ask()

    def step(self, actions: np.ndarray[Any, Any]) -> dict[str, float] | None:
        if self.step_s:
            time.sleep(self.step_s * self.clock.uniform(1 - JITTER, 1 + JITTER))
        self.answer = int(actions[0])
        right = self.answer == self.code
        self.rewards[0] = right + self.fortune * self.luck
        self.num_right += right
        self.steps_left -= 1
        self._ask()
        if self.steps_left:
            return None
        self.terminations[0] = True
        return {"score": self.num_right / self.horizon}

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the right answer, int64 (1,): the code."""
        return np.array([self.code])

    def render(self) -> Any:
        """Draw the code in blue, and below it the answer to the previous code in red."""
        grid = np.zeros((2, self.num_codes), np.int8)
        grid[0, self.code] = 1
        if self.answer is not None:
            grid[1, self.answer] = -1
        return draw(grid, self.render_mode)

    def _ask(self) -> None:
        self.code = int(self.np_random.integers(self.num_codes))
        self.luck = self.np_random.uniform(-1, 1)
        self.observations[0] = 0
        self.observations[0, self.code] = 1
        self.observations[0, -1] = self.luck
