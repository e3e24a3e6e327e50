"""Bell: answer whether a bell has rung in this episode. Reveals a memory that is not reset between episodes.

Observation  Box(0, 1, (1,), float32): 1 if the bell rings, else 0. It rings with probability ``ring`` in each step,
             including the first. The observation after the last step is 0.
Actions      Discrete(2): the answer, 1 for yes. Yes is right if the bell rings in this step or rang earlier in the
             episode.
Reward       1 for the right answer, else 0.
Ending       The episode terminates after a number of steps drawn at its start, geometric with mean 1/``hazard``.
             Answers have no effect on later steps, so bootstrapping makes no difference.
Score        The share of right answers. Uniform play: 0.5; the best policy: 1. A policy that also remembers rings of
             earlier episodes scores at most 0.82, one without memory at most 0.67: without a ring all observations
             look alike, including the first of an episode.
Catches      a recurrent state that is not reset between episodes, in play or in the update; a state that is not carried
             from step to step, or that is stored by position in the batch.
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
    """A bell that rings with probability 0 < ``ring`` < 1 in each step.

    hazard: the probability that an episode ends after a step, 0 < ``hazard`` <= 1.
    """

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 4}
    chance = 0.5  # each answer is right half of the time
    best = 1.0
    bar = 0.95
    needs_memory = True

    def __init__(self, ring: float = 0.2, hazard: float = 0.1, render_mode: str | None = None) -> None:
        if not 0 < ring < 1:
            raise ValueError(f"ring={ring} leaves nothing to ask; use a probability between 0 and 1")
        if not 0 < hazard <= 1:
            raise ValueError(f"hazard={hazard} is not a probability above 0; use 0 < hazard <= 1")
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
        """Return the right answer, int64 (1,): whether the bell has rung."""
        return np.array([int(self.rung)])

    def render(self) -> Any:
        """Draw the bell, blue if it rings, and below it the last answer, blue if it was right and red if not."""
        return draw(np.array([[int(self.observations[0, 0])], [self.mark]]), self.render_mode)
