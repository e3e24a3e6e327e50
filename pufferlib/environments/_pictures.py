"""What games of consoles are learnt from as a rule: small gray pictures, one for some of their frames."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["GrayPictures"]


class GrayPictures(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment of RGB pictures, uint8 (height, width, 3), in gray ones, uint8 (size, size).

    An action is played for ``frame_skip`` frames, until the episode ends; the reward is the sum of theirs, and picture
    and info are the last one's. sticky: the probability with which the first of these frames is played with the action
    before, drawn from the generator that ``reset(seed)`` seeds.
    """

    def __init__(self, env: Any, frame_skip: int = 4, size: int = 84, sticky: float = 0.0) -> None:
        super().__init__(env)
        self._frame_skip, self._size, self._sticky = frame_skip, size, sticky
        self._cv2 = importlib.import_module("cv2")
        self.observation_space = spaces.Box(0, 255, (size, size), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._last: Any = None
        picture, info = self.env.reset(seed=seed, options=options)
        return self._gray(picture), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        held = self._last is not None and self._sticky > 0 and self.np_random.random() < self._sticky
        total = 0.0
        for frame in range(self._frame_skip):
            played = self._last if held and frame == 0 else action
            picture, reward, terminated, truncated, info = self.env.step(played)
            total += float(reward)
            if terminated or truncated:
                break
        self._last = np.copy(action)  # the caller's may be overwritten
        return self._gray(picture), total, terminated, truncated, info

    def _gray(self, picture: Any) -> Any:
        gray = self._cv2.cvtColor(np.ascontiguousarray(picture), self._cv2.COLOR_RGB2GRAY)
        return self._cv2.resize(gray, (self._size, self._size), interpolation=self._cv2.INTER_AREA)
