"""Memory: repeat a sequence of bits after a pause. Shows whether a recurrent state is carried from step to step.

Observation  Box(-1, 1, (1,), float32): in each of the first ``length`` steps a bit, -1 for 0 and 1 for 1; 0, a blank,
             in the ``delay`` steps of the pause and in the ``length`` steps of the recall.
Actions      Discrete(2): the bit, in the recall. Earlier actions have no effect.
Reward       1 for each bit of the recall that equals the bit in the same position of the sequence; otherwise 0.
Ending       The episode terminates after 2·length + delay steps, with the last bit of the recall. Its last observation
             is blank.
Score        1 if the whole sequence was repeated, else 0. Uniform play: 1/2^length; no policy without memory does
             better, because the observations in the recall do not depend on the bits. The best policy: 1.
Catches      a recurrent state that is not carried over, or that is stored by position in the batch instead of by
             environment; training sequences in the wrong order. Does not reliably catch: a state that is not reset
             between episodes, because all episodes are equally long and the first bit shows where one begins; see bell.
Source       Rewritten from "Memory" of PufferLib's Ocean (MIT). In this version the bit 0 differs from a blank, and
             only the recall is rewarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv


class Memory(PufferEnv):
    """A test of memory, with ``length`` >= 1 bits to remember over ``delay`` >= 0 blank steps."""

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 4}
    chance = 1 / 2**2  # 1 / 2^length: each bit of the recall is right half of the time
    best = 1.0
    bar = 0.9
    needs_memory = True

    def __init__(self, length: int = 2, delay: int = 2, render_mode: str | None = None) -> None:
        if length < 1:
            raise ValueError(f"length={length} leaves nothing to remember; use 1 or more")
        if delay < 0:
            raise ValueError(f"delay={delay} is not a number of steps; use 0 or more")
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
        """Return the next bit of the recall, int64 (1,)."""
        return np.array([self.bits[len(self.answers) % self.length]])  # % : also when the episode is over

    def render(self) -> Any:
        """Draw the bits shown so far in the upper row, and the answers in the lower row.

        1 is blue, 0 is red, and grey means none yet.
        """
        grid = np.zeros((2, self.length), np.int8)
        bits, answered = self.bits[: self.num_steps + 1], self.answers
        grid[0, : len(bits)] = 2 * np.array(bits) - 1
        grid[1, : len(answered)] = 2 * np.array(answered) - 1
        return draw(grid, self.render_mode)
