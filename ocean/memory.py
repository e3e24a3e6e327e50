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
             only the recall is rewarded. It draws bits by ``pufferlib.util.philox``, as in the kernel
             (cuda_ext/ocean_memory.cuh): ``reset(seed=s)`` is episode 0 of seed s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv
from pufferlib.util.philox import below, episode_of, philox

BITS = 1  # the purpose of philox's draws


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
        self.seed: int | None = None
        self.episode = self.t = 0
        self.bits = np.zeros(length, np.bool_)
        self.answers = np.zeros(length, np.bool_)  # False for those still to come

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        self.seed, self.episode = episode_of(seed, self.seed, self.episode)
        self.t = 0
        num_blocks = -(-self.length // 4)
        words = [word for block in range(num_blocks) for word in philox(self.seed, self.episode, 0, 0, BITS, block)]
        self.bits[:] = [below(word, 2) for word in words[: self.length]]
        self.answers[:] = False
        self._show()

    def step(self, actions: np.ndarray[Any, Any]) -> dict[str, float] | None:
        answer = self.num_answers
        if self.t >= self.length + self.delay:
            self.answers[answer] = actions[0]
            self.rewards[0] = self.answers[answer] == self.bits[answer]
        self.t += 1
        self._show()
        if self.num_answers < self.length:
            return None
        self.terminations[0] = True
        return {"score": float((self.answers == self.bits).all())}

    @property
    def num_answers(self) -> int:
        """The number of steps of the recall so far."""
        return max(0, self.t - self.length - self.delay)

    def _show(self) -> None:
        self.observations[0] = 2.0 * self.bits[self.t] - 1 if self.t < self.length else 0

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the next bit of the recall, int64 (1,)."""
        return np.array([int(self.bits[self.num_answers % self.length])])  # % : also when the episode is over

    def render(self) -> Any:
        """Draw the bits shown so far in the upper row, and the answers in the lower row.

        1 is blue, 0 is red, and grey means none yet.
        """
        grid = np.zeros((2, self.length), np.int8)
        bits, answered = self.bits[: self.t + 1], self.answers[: self.num_answers]
        grid[0, : len(bits)] = 2 * bits.astype(np.int8) - 1
        grid[1, : len(answered)] = 2 * answered.astype(np.int8) - 1
        return draw(grid, self.render_mode)
