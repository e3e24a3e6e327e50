"""Uneven: choose an arm that pays best over all environments, of which some are slow. Reveals the bias of a pool.

Observation  Box(0, 1, (1,), float32), always 1: nothing shows how fast the environment is.
Actions      Discrete(3): ``ALL``, ``FAST`` or ``SLOW``.
Reward       Of any four environments in a row (by ``env_index``) the first is always fast, the second always slow, and
             the other two change: each of their episodes is fast or slow, with equal probability. FAST pays 1.25 in the
             first, SLOW pays 1.4 in slow episodes of those that change, ALL pays 1 in the second and in fast episodes
             of those that change; anything else pays 0. Over environments that play equally many steps, the means of
             ALL, FAST and SLOW are 0.5, 0.31 and 0.35.
Ending       The episode terminates after ``horizon`` steps.
Score        The share of steps on which ALL was played. Uniform play: 1/3; the best policy: 1.
Catches      a pool that learns from rows as they arrive: most of them are of fast environments, for which FAST seems
             best; weights the wrong way round: the same; weights from the rows of one rollout instead of all rows so
             far: they favour slow episodes, in which SLOW seems best. Use a pool of small batches, with a worker for
             each environment: one that steps several in turns makes them equally fast, whatever they take.
Source       New.

A step sleeps for ``step_s`` seconds, or ``slow`` times as long, if the environment is alone in its process.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv

ALL, FAST, SLOW = range(3)
PAYS = (1.0, 1.25, 1.4)  # of each arm, where it pays
_process_ids: weakref.WeakKeyDictionary[Uneven, int] = weakref.WeakKeyDictionary()  # the process in which each was made


class Uneven(PufferEnv):
    """Three arms, in environments of different speeds. ``horizon``, ``slow`` >= 1; ``step_s``, ``env_index`` >= 0."""

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 4}
    chance = 1 / 3
    best = 1.0
    bar = 0.95

    def __init__(
        self,
        horizon: int = 8,
        slow: float = 10.0,
        step_s: float = 0.002,
        env_index: int = 0,
        render_mode: str | None = None,
    ) -> None:
        if horizon < 1:
            raise ValueError(f"horizon={horizon} is not a number of steps; use 1 or more")
        if not 1 <= slow < math.inf:
            raise ValueError(f"slow={slow} would not be slower; use a number from 1 up")
        if not 0 <= step_s < math.inf:
            raise ValueError(f"step_s={step_s} is not a time; use a number of seconds from 0 up")
        if env_index < 0:
            raise ValueError(f"env_index={env_index} is not an environment's number; use 0 or more")
        self.horizon, self.slow, self.step_s = horizon, slow, step_s
        self.kind = env_index % 4  # 0: always fast, 1: always slow, 2 and 3: by episode
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(3)
        _process_ids[self] = os.getpid()

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        drawn = bool(self.np_random.integers(2))
        self.is_alone = not any(env is not self and pid == os.getpid() for env, pid in _process_ids.items())
        self.is_slow = drawn if self.kind > 1 else self.kind == 1
        self.paying = (FAST, ALL)[self.kind] if self.kind < 2 else SLOW if self.is_slow else ALL
        self.steps_left, self.num_right = self.horizon, 0
        self.arm: int | None = None  # the arm that was chosen last
        self.observations[0] = 1

    def step(self, actions: np.ndarray[Any, Any]) -> dict[str, float] | None:
        if self.step_s and self.is_alone:
            time.sleep(self.step_s * (self.slow if self.is_slow else 1))
        self.arm = int(actions[0])
        self.rewards[0] = PAYS[self.arm] if self.arm == self.paying else 0
        self.num_right += self.arm == ALL
        self.steps_left -= 1
        if self.steps_left:
            return None
        self.terminations[0] = True
        return {"score": self.num_right / self.horizon}

    def solve(self) -> np.ndarray[Any, Any]:
        """Return the arm that pays best over all environments, int64 (1,)."""
        return np.array([ALL])

    def render(self) -> Any:
        """Draw the arms: the one that pays in blue in the upper row, the chosen one in red in the lower row."""
        grid = np.zeros((2, 3), np.int8)
        grid[0, self.paying] = 1
        if self.arm is not None:
            grid[1, self.arm] = -1
        return draw(grid, self.render_mode)
