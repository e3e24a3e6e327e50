"""Bell: has it rung in this episode? Shows a memory that outlives its episode, as nothing else tells where one begins.

Observation  Box(0, 1, (1,), float32): 1 where the bell rings, which it does in each step with probability ``ring``,
             in the first one too; else 0, and so after the last step.
Actions      Discrete(2): 1 says that it has rung in this episode, now or before, 0 that it has not.
Reward       1 for the right answer, else 0.
Ending       After a number of steps drawn at the start, geometric with mean 1/``hazard``, terminated. What one answers
             changes nothing, so nothing is there to be bootstrapped.
Score        The share of right answers. Uniform play: 0.5; the best policy: 1. Who remembers only what rang since the
             beginning of time, not of the episode, cannot score more than 0.82; who remembers nothing, not more than
             0.67: between rings all looks alike, the first row of an episode too.
Catches      a recurrent state that is not reset with an episode, in play or in the update; a state that is not
             carried on, or kept by place in the batch.
Source       New.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv


class Bell(PufferEnv):
    """The environment; 0 < ``ring`` < 1 and 0 < ``hazard`` <= 1 a step."""

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 4}
    chance = 0.5  # each answer is right half of the time
    best = 1.0
    bar = 0.95
    needs_memory = True

    def __init__(self, ring: float = 0.2, hazard: float = 0.1, render_mode: str | None = None) -> None:
        if not 0 < ring < 1:
            raise ValueError(f"ring={ring} leaves nothing to ask; use a probability between 0 and 1")
        if not 0 < hazard <= 1:
            raise ValueError(f"hazard={hazard} is no probability that an episode could end by; use 0 < hazard <= 1")
        self.ring, self.hazard = ring, hazard
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        self.length = int(self.np_random.geometric(self.hazard))
        self.num_steps = self.num_right = 0
        self.rung = False
        self.mark = 0  # of the last answer: 1 right, -1 wrong
        self._listen()

    def step(self, actions: np.ndarray[Any, Any]) -> dict[str, float] | None:
        right = int(actions[0]) == self.rung
        self.mark = 1 if right else -1
        self.rewards[0] = right
        self.num_right += right
        self.num_steps += 1
        if self.num_steps < self.length:
            self._listen()
            return None
        self.observations[0] = 0
        self.terminations[0] = True
        return {"score": self.num_right / self.num_steps}

    def _listen(self) -> None:
        rings = self.np_random.random() < self.ring
        self.observations[0] = rings
        self.rung = bool(self.rung or rings)

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the action, int64 (1,): whether the bell has rung."""
        return np.array([int(self.rung)])

    def render(self) -> Any:
        """Draw the bell, blue where it rings, and below it the answer before: blue if it was right, red if not."""
        return draw(np.array([[int(self.observations[0, 0])], [self.mark]]), self.render_mode)
