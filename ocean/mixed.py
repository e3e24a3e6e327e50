"""Mixed: choose a code and aim at a point. Shows whether a choice and real numbers are learnt as one action.

Observation  Box([0, 0, 0, 0, -1, -1], 1, (6,), float32): one of four codes, one-hot, and a point in [-1, 1]²; both are
             drawn for each episode.
Actions      Dict(aim: Box(-1, 1, (2,), float32), choice: Discrete(4)).
Reward       0.5 for choosing the code, plus 0.5·(1 - error) for the aim. The error is the mean of the two coordinates'
             absolute errors, or 1 if that mean is larger.
Ending       The episode terminates after one step.
Score        The reward. Uniform play: 0.3083; the best policy: 1.
Catches      the log-probability of a part of the action dropped: of the choice, of the aim, or of one of the aim's two
             dimensions. Does not catch: a Gaussian's log-probability averaged instead of summed, clipped actions
             stored.
Source       New.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw

NUM_CODES = 4
SIDE = 9  # cells of the picture


class Mixed(gymnasium.Env[np.ndarray[Any, Any], dict[str, Any]]):
    """A Gymnasium environment with a discrete and a continuous part in its action."""

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 1}
    # 1/8 + E[max(0, 1 - u - v)]/2 for u and v of density 2·(1 - x): half the distances of uniform points. The mean is
    # E[1 - u - v] + E[max(0, u + v - 1)] = 1/3 + 4·(1!·1!·1!/5!) = 11/30.
    chance = 1 / 8 + 11 / 60
    best = 1.0
    bar = 0.9

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = check_render_mode(render_mode)
        low = np.array([0] * NUM_CODES + [-1, -1], np.float32)
        self.observation_space = spaces.Box(low, 1, dtype=np.float32)
        aim = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Dict({"aim": aim, "choice": spaces.Discrete(NUM_CODES)})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.code = int(self.np_random.integers(NUM_CODES))
        self.point = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.played: dict[str, Any] | None = None
        return self._observation(), {}

    def step(self, action: dict[str, Any]) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        self.played = action
        error = float(np.abs(action["aim"] - self.point).mean())
        score = 0.5 * bool(action["choice"] == self.code) + 0.5 * max(0.0, 1 - error)
        return self._observation(), score, True, False, {"score": score}

    def solve(self) -> dict[str, Any]:
        """Return the best action, a dict that the action space contains."""
        return {"aim": self.point, "choice": self.code}

    def render(self) -> Any:
        """Draw the codes in the first line and the square below it: the right action in blue, the one played in red."""
        grid = np.zeros((SIDE + 1, SIDE), np.int8)
        self._mark(grid, 1, self.code, self.point)
        if self.played is not None:
            self._mark(grid, -1, int(self.played["choice"]), np.clip(self.played["aim"], -1, 1))
        return draw(grid, self.render_mode)

    def _mark(self, grid: np.ndarray[Any, Any], value: int, code: int, point: np.ndarray[Any, Any]) -> None:
        right, up = np.rint((point + 1) / 2 * (SIDE - 1)).astype(int)
        grid[0, code] = grid[SIDE - up, right] = value

    def _observation(self) -> np.ndarray[Any, Any]:
        observation = np.zeros(NUM_CODES + 2, np.float32)
        observation[self.code] = 1
        observation[NUM_CODES:] = self.point
        return observation
