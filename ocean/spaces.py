"""Spaces: an image and a vector, and a question about each. Shows whether nested spaces are packed correctly.

Observation  Dict: ``image``, Box(-1, 1, (5, 5), float32), with uniform pixels; ``flat``, Box(-1, 1, (5,), int8), with
             elements from -1, 0 and 1, which are drawn again while their sum is 0.
Actions      Dict: ``image`` and ``flat``, each Discrete(2).
Reward       0.5 for each right answer. The right answer about a part is 1 if its elements sum to more than 0, else 0;
             both are equally likely.
Ending       The episode terminates after one step.
Score        The reward. Uniform play: 0.5; the best policy: 1.
Catches      heads swapped in the update. If ``solve`` is played through wrapper and backend: wrong packing, wrong
             padding, keys or answers in the wrong order. (A learner adapts to parts that are always swapped.)
Source       Rewritten from "Spaces" of PufferLib's Ocean (MIT). This version has no ties, and its own generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from ocean._render import RENDER_MODES, check_render_mode, draw


class Spaces(gymnasium.Env[Any, Any]):
    """A Gymnasium environment with nested observation and action spaces."""

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 4}
    chance = 0.5  # each answer is right half of the time
    best = 1.0
    bar = 0.95

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = check_render_mode(render_mode)
        self.observation_space = Dict(image=Box(-1, 1, (5, 5), np.float32), flat=Box(-1, 1, (5,), np.int8))
        self.action_space = Dict(image=Discrete(2), flat=Discrete(2))

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.image = self.np_random.uniform(-1, 1, (5, 5)).astype(np.float32)
        self.flat = self.np_random.integers(-1, 2, 5, np.int8)
        while self.flat.sum() == 0:
            self.flat = self.np_random.integers(-1, 2, 5, np.int8)
        return self._observation(), {}

    def step(self, action: Mapping[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, float]]:
        score = sum(0.5 for part, answer in self.solve().items() if action[part] == answer)
        return self._observation(), score, True, False, {"score": score}

    def solve(self) -> dict[str, np.int64]:
        """Return the right answers, as an action of the action space."""
        parts = {"image": self.image, "flat": self.flat}
        return {name: np.int64(part.sum(dtype=np.float64) > 0) for name, part in parts.items()}

    def render(self) -> Any:
        """Draw the image and, as a sixth row, the vector: positive in blue, negative in red, 0 in grey."""
        return draw(np.sign(np.vstack([self.image, self.flat])), self.render_mode)

    def _observation(self) -> dict[str, Any]:
        return {"image": self.image.copy(), "flat": self.flat.copy()}
