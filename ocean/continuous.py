"""Continuous: push a point to a target. Shows whether all dimensions of a continuous action are learnt together.

Observation  Box(-1, 1, (6,), float32): position, velocity and target, each (right, up).
Actions      Box(-1, 1, (2,), float32): a push, clipped to ±1. A tenth of it is added to the velocity, which is clipped
             to ±1 and then added to the position. With ``discrete``, Discrete(4): a full push left, right, down or up.
Reward       +5 for coming within 0.1 of the target, -1 for leaving the square [-1, 1]², else 0.02·(1 - distance). Only
             the position after a step counts, and a point outside the square hits nothing.
Ending       Hitting the target or leaving the square terminates the episode; after 100 steps it is truncated. The point
             starts at rest, and its position and the target are uniform in the square. Observed positions are clipped
             to the square.
Score        1 if the target was hit, else 0. Uniform play: 0.0417; the best policy: 1. With ``discrete``, positions are
             the start plus multiples of 0.1, so 0.04 % of the targets, in corners, cannot be hit.
Catches      the log-probability of one of two dimensions dropped, clipped actions stored with the log-probability of
             unclipped ones. Does not catch: clipped actions stored with their own log-probability, bootstrapping
             through terminations, truncations taken for terminations.
Source       Rewritten from "Continuous" of PufferLib's Ocean (MIT). This version draws start and target in each
             episode, and its time limit is a truncation. It computes in float32 and draws by ``pufferlib.util.philox``,
             as in the kernel (cuda_ext/ocean_continuous.cuh): ``reset(seed=s)`` is episode 0 of seed s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv
from pufferlib.util.philox import episode_of, philox, uniform

PUSH = np.float32(0.1)  # the largest change of velocity in one step, and the distance within which the target is hit
NUM_STEPS = 100
START = 1  # the purpose of philox's draws
PUSHES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]], np.float32)  # (right, up) by discrete action
ONES = np.ones(2, np.float32)
MINUS_ONES = -ONES
SIDE = 21  # cells of the picture


class Continuous(PufferEnv):
    """A point to push to a target. discrete: offer a choice of four pushes instead of two real numbers."""

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 10}
    chance = 0.0417  # of 6 million simulated episodes, 49 million steps; standard error 0.0001 (discrete: 0.0382)
    best = 1.0
    bar = 0.9
    num_axes = 2

    def __init__(self, discrete: bool = False, render_mode: str | None = None) -> None:
        if not isinstance(discrete, (bool, np.bool_)):
            raise ValueError(f"discrete={discrete!r} is neither True nor False; use True for Discrete(4) actions")
        self.discrete = bool(discrete)
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(-1, 1, (6,), np.float32)
        self.single_action_space = spaces.Discrete(4) if discrete else spaces.Box(-1, 1, (2,), np.float32)
        self.seed: int | None = None
        self.episode = self.t = 0
        self.position, self.velocity, self.target = np.zeros((3, 2), np.float32)

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        self.seed, self.episode = episode_of(seed, self.seed, self.episode)
        self.t = 0
        words = np.array(philox(self.seed, self.episode, 0, 0, START), np.uint32)
        self.position, self.target = (2 * uniform(words) - 1).reshape(2, 2)
        self.velocity = np.zeros(2, np.float32)
        self._observe()

    def step(self, actions: np.ndarray[Any, Any]) -> dict[str, float] | None:
        push = PUSHES[actions[0]] if self.discrete else _clipped(actions[0]).astype(np.float32)
        self.velocity = _clipped(self.velocity + PUSH * push)
        self.position = self.position + self.velocity
        self.t += 1
        self._observe()
        outside = bool(np.abs(self.position).max() > 1)
        right, up = self.position - self.target
        distance = np.sqrt(right * right + up * up)
        hit = bool(not outside and distance < PUSH)
        self.rewards[0] = -1 if outside else 5 if hit else np.float32(0.02) * (np.float32(1) - distance)
        late = self.t >= NUM_STEPS
        self.terminations[0] = outside or hit
        self.truncations[0] = late and not (outside or hit)
        return {"score": float(hit)} if outside or hit or late else None

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the action, float32 (1, 2) or int64 (1,), of a policy that hits every target that can be hit."""
        if self.discrete:
            return np.array([self._chosen_push()])
        # Three tenths of the way in each step: never too fast to stop, so never out of the square.
        wanted = 0.3 * (self.target - self.position)
        push: np.ndarray[Any, Any] = np.clip((wanted - self.velocity) / PUSH, -1, 1).astype(np.float32)[None]
        return push

    def render(self) -> Any:
        grid = np.zeros((SIDE, SIDE), np.int8)
        for value, point in ((1, self.target), (-1, self.position)):
            right, up = np.rint((np.clip(point, -1, 1) + 1) / 2 * (SIDE - 1)).astype(int)
            grid[SIDE - 1 - up, right] = value
        return draw(grid, self.render_mode)

    def _observe(self) -> None:
        np.concatenate((_clipped(self.position), self.velocity, self.target), out=self.observations[0])

    def _chosen_push(self) -> int:
        """Return a discrete push: towards the target if the point is at rest, else against its motion, to stop it.

        At the reachable position nearest to the target, the push is towards the centre.
        """
        moving = np.flatnonzero(np.abs(self.velocity) > PUSH / 2)
        if len(moving):
            axis = int(moving[0])
            return 2 * axis + int(self.velocity[axis] < 0)
        tenths = np.rint((self.target - self.position) / PUSH)
        beyond = np.abs(self.position + PUSH * tenths) > 1  # then the last tenth before the edge
        tenths -= np.where(beyond, np.sign(tenths), 0)
        axis = int(np.abs(tenths).argmax())
        way = tenths[axis] or -self.position[axis]
        return 2 * axis + int(way > 0)


def _clipped(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return two numbers, clipped to ±1, in a third of the time of ``np.clip``."""
    clipped: np.ndarray[Any, Any] = np.minimum(np.maximum(values, MINUS_ONES), ONES)
    return clipped
