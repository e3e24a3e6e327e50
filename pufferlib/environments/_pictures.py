"""Frame skipping and small grayscale images: the usual preprocessing of video games."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.errors import SpaceError
from pufferlib.util.annotations import Array, GymnasiumEnv

__all__ = ["GrayPictures", "gray_space", "is_picture", "small_gray"]

SIZE = 84  # height and width in pixels, as in DQN's preprocessing of Atari games


class GrayPictures(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that converts RGB images, uint8 (height, width, 3), to grayscale, uint8 (size, size), and skips frames.

    An action is repeated for ``frame_skip`` frames or until the episode ends. The reward is the sum over these frames;
    the image and the info are from the last frame. sticky: the probability that the first frame plays the previous
    action instead, drawn with the generator that ``reset(seed)`` seeds. If the observations are not RGB images, closes
    the environment and raises SpaceError.
    """

    def __init__(self, env: GymnasiumEnv, frame_skip: int = 4, size: int = SIZE, sticky: float = 0.0) -> None:
        super().__init__(env)
        if not is_picture(env.observation_space):
            env.close()  # a process can have only one of some emulators
            raise SpaceError(
                f"expected observations that are RGB images, uint8 (height, width, 3), got {env.observation_space}; "
                "use the raw environment"
            )
        self._frame_skip, self._size, self._sticky = frame_skip, size, sticky
        self.observation_space = gray_space(size)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._last: object = None
        picture, info = self.env.reset(seed=seed, options=options)
        return small_gray(picture, self._size), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        repeated = self._last is not None and self._sticky > 0 and self.np_random.random() < self._sticky
        total = 0.0
        for frame in range(self._frame_skip):
            played = self._last if repeated and frame == 0 else action
            picture, reward, terminated, truncated, info = self.env.step(played)
            total += float(reward)
            if terminated or truncated:
                break
        self._last = np.copy(action)  # the caller's may be overwritten
        return small_gray(picture, self._size), total, terminated, truncated, info


def is_picture(space: object) -> bool:
    """Return whether a space consists of RGB images, uint8 (height, width, 3)."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[2] == 3


def gray_space(size: int = SIZE) -> spaces.Box:
    """Return the space of the images that ``small_gray`` makes. Raises ImportError if OpenCV is missing."""
    importlib.import_module("cv2")  # fails before the first step if OpenCV is missing
    return spaces.Box(0, 255, (size, size), np.uint8)


def small_gray(picture: Array, size: int = SIZE) -> Array:
    """Convert an RGB image to grayscale, uint8 (size, size); each pixel is the mean of the area that it covers."""
    cv2 = importlib.import_module("cv2")
    gray = cv2.cvtColor(np.ascontiguousarray(picture), cv2.COLOR_RGB2GRAY)
    small: Array = cv2.resize(gray, (size, size), interpolation=cv2.INTER_AREA)
    return small
