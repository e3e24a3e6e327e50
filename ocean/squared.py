"""Squared: walk from the centre of a square to the target on its rim. The general smoke test.

Observation  Box(-1, 1, (2d+1, 2d+1), float32) with d = ``distance``: the square seen from above, -1 at the agent, 1 at
             each target, 0 elsewhere. Targets that were hit remain visible.
Actions      Discrete(8): one cell up-left, up, up-right, left, right, down-left, down, down-right.
Reward       1 - L/d, where L is the distance, in moves of a chess king, from the agent to the nearest target not yet
             hit: 1 for hitting it, below 0 for walking away.
Ending       An agent that reaches the rim, target or not, returns to the centre at once. The episode terminates after
             ``num_targets``·d steps, just enough to hit all targets. That is a termination, not a truncation, because
             the limit is part of the task.
Score        The share of the targets that were hit. Uniform play: 0.0085; the best policy: 1. With several targets, a
             policy without memory cannot know which are left; the best policy without memory chooses a target at
             random whenever the agent is in the centre.
Catches      observations transposed on the way to the update, actions or rewards that reach the wrong environment, an
             advantage of the wrong sign, and most other bugs.
Source       Rewritten from "Squared" of PufferLib's Ocean (MIT). Targets are drawn by ``pufferlib.util.philox``, as in
             the kernel (cuda_ext/ocean_squared.cuh): ``reset(seed=s)`` is episode 0 of seed s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv
from pufferlib.util.philox import below, episode_of, philox

MOVES = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))  # (rows down, columns right)
ACTIONS = {move: action for action, move in enumerate(MOVES)}
TARGETS = 1  # the purpose of philox's draws


class Squared(PufferEnv):
    """A square with targets on its rim.

    distance: cells from the centre to the rim, at least 1. num_targets: 1 to 8·distance.
    """

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
        self.distance, self.num_targets, self.num_cells = distance, num_targets, side * side
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(-1, 1, (side, side), np.float32)
        self.single_action_space = spaces.Discrete(8)
        ends = (0, side - 1)
        self.rim = [(row, column) for row in range(side) for column in range(side) if row in ends or column in ends]
        # Rounded to float32, so that their sums equal a kernel's.
        self.reward_at = [float(np.float32(1 - away / distance)) for away in range(side + 1)]
        self.seed: int | None = None
        self.episode = self.t = 0
        self.row = self.column = distance
        self.goals: list[tuple[int, int]] = []  # all targets of the episode
        self.targets: list[tuple[int, int]] = []  # targets not yet hit

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        self.seed, self.episode = episode_of(seed, self.seed, self.episode)
        self.t, self.row, self.column = 0, self.distance, self.distance
        self.goals = [self.rim[index] for index in self._drawn()]
        self.targets = list(self.goals)
        self.observations[0] = self._picture()

    def step(self, actions: np.ndarray[Any, Any]) -> dict[str, float] | None:
        down, right = MOVES[actions[0]]
        grid = self.observations[0]
        grid[self.row, self.column] = 0
        row, column = self.row + down, self.column + right
        self.rewards[0] = self.reward_at[self._nearest(row, column)[0]]
        if max(abs(row - self.distance), abs(column - self.distance)) == self.distance:
            if (row, column) in self.targets:
                self.targets.remove((row, column))
            row = column = self.distance
        self.row, self.column = row, column
        grid[row, column] = -1
        self.t += 1
        if self.t < self.num_targets * self.distance:
            return None
        self.terminations[0] = True
        return {"score": 1 - len(self.targets) / self.num_targets}

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the action, int64 (1,), towards the nearest target not yet hit; 0 if none is left."""
        if not self.targets:
            return np.zeros(1, np.int64)
        _, (target_row, target_column) = self._nearest(self.row, self.column)
        return np.array([ACTIONS[_sign(target_row - self.row), _sign(target_column - self.column)]])

    def render(self) -> Any:
        return draw(self._picture(), self.render_mode)

    @property
    def goal_cells(self) -> np.ndarray[Any, Any]:
        """A mask of all targets of the episode: bool (num_cells,), row by row, like the kernel's field."""
        return self._marked(self.goals)

    @goal_cells.setter
    def goal_cells(self, cells: np.ndarray[Any, Any]) -> None:
        self.goals = self._marks(cells)

    @property
    def left_cells(self) -> np.ndarray[Any, Any]:
        """A mask of the targets not yet hit: bool (num_cells,), row by row, like the kernel's field."""
        return self._marked(self.targets)

    @left_cells.setter
    def left_cells(self, cells: np.ndarray[Any, Any]) -> None:
        self.targets = self._marks(cells)

    def _drawn(self) -> list[int]:
        """Draw the targets: num_targets different indices of ``rim``, with all sets equally likely.

        Source: Floyd's algorithm, in Bentley, "Programming pearls: a sample of brilliance", CACM 1987.
        """
        assert self.seed is not None
        chosen: list[int] = []
        for k in range(self.num_targets):
            last = len(self.rim) - self.num_targets + k
            index = below(philox(self.seed, self.episode, 0, k, TARGETS)[0], last + 1)
            chosen.append(last if index in chosen else index)
        return chosen

    def _picture(self) -> np.ndarray[Any, Any]:
        grid = np.zeros((2 * self.distance + 1,) * 2, np.float32)
        grid[self.row, self.column] = -1
        for goal in self.goals:
            grid[goal] = 1
        return grid

    def _marked(self, cells: list[tuple[int, int]]) -> np.ndarray[Any, Any]:
        marked = np.zeros((2 * self.distance + 1,) * 2, np.bool_)
        for cell in cells:
            marked[cell] = True
        return marked.reshape(-1)

    def _marks(self, cells: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
        side = 2 * self.distance + 1
        return [divmod(index, side) for index in np.flatnonzero(cells).tolist()]

    def _nearest(self, row: int, column: int) -> tuple[int, tuple[int, int]]:
        return min((max(abs(row - target[0]), abs(column - target[1])), target) for target in self.targets)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
