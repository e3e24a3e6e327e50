"""Memory: bits are shown, then nothing, then the bits must be repeated. Whether a recurrent state arrives.

Observation  Box(-1, 1, (1,), float32): -1 for the bit 0 and 1 for the bit 1, one a step, in the first ``length`` steps;
             0, which is blank, in the ``delay`` steps after them and in the ``length`` steps of the recall.
Actions      Discrete(2): the bit, in the recall. Before it actions mean nothing.
Reward       1 for each bit repeated right, in its place of the sequence; 0 before the recall.
Ending       The episode terminates after 2·length + delay steps, with the last bit of the recall. Its last observation
             is blank.
Score        1 if the whole sequence was repeated right, else 0. Uniform play: 1/2^length, and no policy without a
             memory does better, as nothing that is seen in the recall depends on the bits; the best policy: 1.
Catches      a recurrent state that is not carried on, or kept by place in the batch instead of environment; stretches
             to learn from in the wrong order. Not surely: a state that is not reset with an episode, because all
             episodes are equally long and the first bit shows where one begins; see bell.
Source       After "Memory" of PufferLib's Ocean (MIT), rewritten; here the bit 0 does not look like a blank, and
             nothing is paid before the recall.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv


class Memory(PufferEnv):
    """The environment; ``length`` >= 1 bits to remember, over ``delay`` >= 0 blank steps."""

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 4}
    chance = 1 / 2**2  # 1 / 2^length: each bit of the recall is right half of the time
    best = 1.0
    bar = 0.9
    needs_memory = True

    def __init__(self, length: int = 2, delay: int = 2, render_mode: str | None = None) -> None:
        if length < 1:
            raise ValueError(f"length={length} leaves nothing to remember; use 1 or more")
        if delay < 0:
            raise ValueError(f"delay={delay} is no number of steps; use 0 or more")
        self.length, self.delay = length, delay
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        self.bits = self.np_random.integers(2, size=self.length).tolist()
        self.answers: list[int] = []
        self.num_steps = 0
        self._show()

    def step(self, actions: np.ndarray[Any, Any]) -> dict[str, float] | None:
        if self.num_steps >= self.length + self.delay:
            bit = int(actions[0])
            self.rewards[0] = bit == self.bits[len(self.answers)]
            self.answers.append(bit)
        self.num_steps += 1
        self._show()
        if len(self.answers) < self.length:
            return None
        self.terminations[0] = True
        return {"score": float(self.answers == self.bits)}

    def _show(self) -> None:
        self.observations[0] = 2 * self.bits[self.num_steps] - 1 if self.num_steps < self.length else 0

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the bit, int64 (1,), that comes next in the recall."""
        return np.array([self.bits[len(self.answers) % self.length]])  # % : also when the episode is over

    def render(self) -> Any:
        """Draw the bits shown so far in the upper row, the answers in the lower: 1 blue, 0 red, none yet grey."""
        grid = np.zeros((2, self.length), np.int8)
        bits, answered = self.bits[: self.num_steps + 1], self.answers
        grid[0, : len(bits)] = 2 * np.array(bits) - 1
        grid[1, : len(answered)] = 2 * np.array(answered) - 1
        return draw(grid, self.render_mode)
