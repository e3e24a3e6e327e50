"""Performance: steps of a given duration, observations of a given size. For throughput tests; nothing to learn.

Observation  Box(0, 255, (bandwidth,), uint8): every byte is the number of steps since the reset, modulo 256.
Actions      Discrete(2), which have no effect.
Reward       0.
Ending       None: an episode never ends.
Score        None, because no episode ends; ``chance`` and ``best`` are None.
Catches      nothing in a learner. It measures the throughput of vectorization for environments of this speed.
Source       Rewritten from "Performance" of PufferLib's Ocean (MIT). This version honours its arguments.

A step takes ``mean_s`` seconds on average, with a standard deviation of ``std_s`` (a gamma distribution, so never
negative). A reset takes ``reset_s``. In mode "cpu" the environment runs a Python loop for as many iterations as take
that much CPU time on this machine. That is work, not waiting: two environments that share a core both take twice as
long. In mode "sleep" the environment sleeps, like a step that waits for another machine; the system adds about 0.1 ms.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from ocean._render import RENDER_MODES, check_render_mode, draw
from pufferlib.environment import PufferEnv

MODES = ("cpu", "sleep")


class Performance(PufferEnv):
    """An environment with steps of a given duration and observations of ``bandwidth`` bytes. mode: "cpu" or "sleep"."""

    metadata: ClassVar = {"render_modes": list(RENDER_MODES), "render_fps": 10}
    chance = None
    best = None

    def __init__(
        self,
        mean_s: float = 0.001,
        std_s: float = 0.0,
        reset_s: float = 0.0,
        bandwidth: int = 64,
        mode: str = "cpu",
        render_mode: str | None = None,
    ) -> None:
        for name, value in (("mean_s", mean_s), ("std_s", std_s), ("reset_s", reset_s)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value} is not a time; use a number of seconds from 0 up")
        if std_s and not mean_s:
            raise ValueError(f"std_s={std_s} is impossible with mean_s=0; use mean_s > 0")
        if bandwidth < 1:
            raise ValueError(f"bandwidth={bandwidth} is not a number of bytes; use 1 or more")
        if mode not in MODES:
            raise ValueError(f'mode={mode!r} is unknown; use "cpu" or "sleep"')
        self.mean_s, self.std_s, self.reset_s = mean_s, std_s, reset_s
        self.render_mode = check_render_mode(render_mode)
        self.single_observation_space = spaces.Box(0, 255, (bandwidth,), np.uint8)
        self.single_action_space = spaces.Discrete(2)
        self._spend = time.sleep if mode == "sleep" else _work

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        super().reset(seed=seed)
        self._spend(self.reset_s)
        self.num_steps = 0
        self.observations[:] = 0

    def step(self, actions: np.ndarray[Any, Any]) -> None:
        self._spend(self._duration())
        self.num_steps += 1
        self.observations[:] = self.num_steps % 256

    def solve(self) -> np.ndarray[Any, Any]:
        """Return an action, int64 (1,); no action has an effect."""
        return np.zeros(1, np.int64)

    def render(self) -> Any:
        """Draw the number of steps, modulo 256, as eight bits."""
        return draw(np.unpackbits(self.observations[:1, :1]).reshape(1, 8), self.render_mode)

    def _duration(self) -> float:
        if not self.std_s:
            return self.mean_s
        return float(self.np_random.gamma((self.mean_s / self.std_s) ** 2, self.std_s**2 / self.mean_s))


def _work(seconds: float) -> None:
    _loop(round(seconds * _turns_per_s()))


def _loop(num_turns: int) -> int:
    number = 1
    for _ in range(num_turns):
        number = number * 5 % 8191
    return number


@functools.cache
def _turns_per_s() -> float:
    """Return the number of iterations of ``_loop`` per second of the thread's CPU time, measured once per process."""
    num_turns, seconds = 10_000, []
    for _ in range(10):
        start_s = time.thread_time()
        _loop(num_turns)
        seconds.append(time.thread_time() - start_s)
    return num_turns / min(seconds)
