"""Squared: walk from the centre of a square to the target on its rim. The general smoke test.

Observation  Box(-1, 1, (2d+1, 2d+1), float32) with d = ``distance``: the square as seen from above, -1 where the agent
             is, 1 at each target, 0 elsewhere. A target that was hit stays in the picture.
Actions      Discrete(8): one cell up-left, up, up-right, left, right, down-left, down, down-right.
Reward       1 - L/d, where L is the distance (of a king in chess) from the agent to the nearest target not yet hit: 1
             for hitting it, less than 0 for walking away.
Ending       Whoever reaches the rim, target or not, is back in the centre at once. The episode terminates after
             ``num_targets``·d steps, just enough to hit them all. It is a termination: the steps left are part of the
             task, and nothing can be earned after them.
Score        The share of the targets that were hit. Uniform play: 0.0085; the best policy: 1. With several targets a
             policy without memory cannot know which are left: the best such one draws lots in the centre.
Catches      observations transposed on the way to the update, actions or rewards that reach the wrong environment, an
             advantage of the wrong sign, and most of what else can break.
Source       After "Squared" of PufferLib's Ocean (MIT), written anew; this one has its own generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv

MOVES = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))  # (rows down, columns right)
ACTIONS = {move: action for action, move in enumerate(MOVES)}


class Squared(PufferEnv):
    """The environment; ``distance`` >= 1 from the centre to the rim, 1 to 8·distance ``num_targets`` on the rim."""

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 4}
    chance = 104 / 512 / 24  # P(on the rim after three steps), spread evenly over its 24 cells
    best = 1.0
    bar = 0.95

    def __init__(self, distance: int = 3, num_targets: int = 1, render_mode: str | None = None) -> None:
        if distance < 1:
            raise ValueError(f"distance={distance} leaves no room to walk; use 1 or more")
        if not 1 <= num_targets <= 8 * distance:
            raise ValueError(f"num_targets={num_targets} must be 1 to {8 * distance}, the rim's cells")
        side = 2 * distance + 1
        self.distance, self.num_targets = distance, num_targets
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(-1, 1, (side, side), np.float32)
        self.single_action_space = spaces.Discrete(8)
        ends = (0, side - 1)
        self.rim = [(row, column) for row in range(side) for column in range(side) if row in ends or column in ends]

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        chosen = self.np_random.choice(len(self.rim), self.num_targets, replace=False, shuffle=False)
        self.targets = [self.rim[index] for index in chosen.tolist()]  # those not yet hit
        self.agent = (self.distance, self.distance)
        self.steps_left = self.num_targets * self.distance
        grid = self.observations[0]
        grid[:] = 0
        grid[self.agent] = -1
        for target in self.targets:
            grid[target] = 1

    def step(self, actions: np.ndarray[Any, Any]) -> dict[str, float] | None:
        row, column = self.agent
        down, right = MOVES[actions[0]]
        grid = self.observations[0]
        grid[row, column] = 0
        row, column = row + down, column + right
        self.rewards[0] = 1 - self._nearest(row, column)[0] / self.distance
        if max(abs(row - self.distance), abs(column - self.distance)) == self.distance:
            if (row, column) in self.targets:
                self.targets.remove((row, column))
            row = column = self.distance
        self.agent = (row, column)
        grid[row, column] = -1
        self.steps_left -= 1
        if self.steps_left:
            return None
        self.terminations[0] = True
        return {"score": 1 - len(self.targets) / self.num_targets}

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the action, int64 (1,), that leads from the centre straight to the nearest target not yet hit.

        When none is left, which one does not matter.
        """
        if not self.targets:
            return np.zeros(1, np.int64)
        row, column = self.agent
        _, (target_row, target_column) = self._nearest(row, column)
        return np.array([ACTIONS[_sign(target_row - row), _sign(target_column - column)]])

    def render(self) -> Any:
        return draw(self.observations[0], self.render_mode)

    def _nearest(self, row: int, column: int) -> tuple[int, tuple[int, int]]:
        return min((max(abs(row - target[0]), abs(column - target[1])), target) for target in self.targets)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
