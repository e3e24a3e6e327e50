"""Replacements for wrappers of Gymnasium 0.29 whose names or arguments differ in later versions.

CleanRL's Atari and continuous-action scripts use them. If Gymnasium 0.29 is installed, nothing is replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers
from gymnasium.vector import VectorEnv

from pufferlib.errors import PlanError, SpaceError
from pufferlib.util.annotations import Array, GymnasiumEnv

__all__ = ["WRAPPERS", "named"]

OLD = issubclass(VectorEnv, gymnasium.Env)  # Gymnasium 0.29, which has all of these
# Wrappers of 0.29 that exist neither in later versions nor in this file.
LEFT_OUT = {"AutoResetWrapper", "EnvCompatibility", "LazyFrames", "PixelObservationWrapper", "StepAPICompatibility"}
LEFT_OUT |= {"VectorListInfo"}
_USE_OLD = "run this script with gymnasium 0.29: pip install gymnasium==0.29.1"


class _AlsoOfVectors:
    """A mixin for wrappers that also accept vector environments, as in 0.29.

    Later versions have separate classes for vector environments, in ``wrappers.vector``. Applied to a vector
    environment, a wrapper returns an instance of the class of the same name there. Raises PlanError if that class does
    not support the vector environment.
    """

    def __new__(cls, env: object, *args: object, **kwargs: object) -> Any:
        if not isinstance(env, VectorEnv):
            return super().__new__(cls)
        try:
            return getattr(wrappers.vector, cls.__name__)(env, *args, **kwargs)  # another class: no __init__ follows
        except ValueError as error:  # the wrapper does not support 0.29's autoreset mode
            raise PlanError(
                f"wrappers.{cls.__name__} around vector environments: {error}; put it around each environment, or "
                f"{_USE_OLD}"
            ) from error


class RecordEpisodeStatistics(_AlsoOfVectors, wrappers.RecordEpisodeStatistics):
    """Gymnasium's RecordEpisodeStatistics with 0.29's argument ``deque_size``."""

    def __init__(self, env: GymnasiumEnv, deque_size: int = 100) -> None:
        super().__init__(env, deque_size)


class NormalizeObservation(_AlsoOfVectors, wrappers.NormalizeObservation):
    """Gymnasium's NormalizeObservation, for single and vector environments."""


class NormalizeReward(_AlsoOfVectors, wrappers.NormalizeReward):
    """Gymnasium's NormalizeReward, for single and vector environments."""


class TransformObservation(_AlsoOfVectors, wrappers.TransformObservation):
    """Gymnasium's TransformObservation without a space argument: ``f`` must not change the space."""

    def __init__(self, env: GymnasiumEnv, f: Callable[[Any], Any]) -> None:
        super().__init__(env, f, None)


class TransformReward(_AlsoOfVectors, wrappers.TransformReward):
    """Gymnasium's TransformReward with 0.29's argument ``f``."""

    def __init__(self, env: GymnasiumEnv, f: Callable[[Any], Any]) -> None:
        super().__init__(env, f)


class FrameStack(getattr(wrappers, "FrameStackObservation", gymnasium.Wrapper)):  # type: ignore[misc]
    """A wrapper that stacks the last ``num_stack`` observations in an array, rather than in 0.29's LazyFrames.

    lz4_compress: ignored.
    """

    def __init__(self, env: GymnasiumEnv, num_stack: int, lz4_compress: bool = False) -> None:
        super().__init__(env, num_stack)


class ResizeObservation(wrappers.ResizeObservation):
    """Gymnasium's ResizeObservation, which also accepts one integer for both height and width."""

    def __init__(self, env: GymnasiumEnv, shape: tuple[int, int] | int) -> None:
        super().__init__(env, (shape, shape) if isinstance(shape, int) else (shape[0], shape[1]))


class GrayScaleObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapper that converts RGB images to grayscale with OpenCV. Later Gymnasium versions weight colours differently.

    keep_dim: return (h, w, 1) rather than (h, w). Raises SpaceError unless observations are uint8 (h, w, 3).
    """

    def __init__(self, env: GymnasiumEnv, keep_dim: bool = False) -> None:
        super().__init__(env)
        shape: tuple[int, ...] = env.observation_space.shape or ()
        if env.observation_space.dtype != np.uint8 or len(shape) != 3 or shape[2] != 3:
            raise SpaceError(f"{env.observation_space} is not the space of uint8 images (height, width, 3)")
        self.keep_dim = keep_dim
        self.observation_space = spaces.Box(0, 255, (*shape[:2], 1) if keep_dim else shape[:2], np.uint8)

    def observation(self, observation: Array) -> Array:
        """Return the image in grayscale."""
        import cv2

        gray = cv2.cvtColor(observation, cv2.COLOR_RGB2GRAY)
        return gray[..., None] if self.keep_dim else gray


class ClipAction(gymnasium.ActionWrapper[Any, Any, Any]):
    """A wrapper that clips actions to the space's bounds.

    Unlike ClipAction in later Gymnasium versions, it does not change the action space.
    """

    def action(self, action: Array) -> Array:
        """Return the action, clipped to the space's bounds."""
        space: Any = self.action_space
        return np.clip(action, space.low, space.high)


WRAPPERS = {
    kind.__name__: kind
    for kind in (
        *(RecordEpisodeStatistics, NormalizeObservation, NormalizeReward, TransformObservation, TransformReward),
        *(FrameStack, ResizeObservation, GrayScaleObservation, ClipAction),
    )
}


@contextlib.contextmanager
def named() -> Iterator[None]:
    """Add 0.29's wrappers to ``gymnasium.wrappers`` in the ``with`` block.

    Access to a wrapper of 0.29 that has no replacement raises AttributeError, whose text gives advice. If Gymnasium
    0.29 is installed, nothing changes.
    """
    if OLD:
        yield
        return
    theirs = wrappers.__getattr__

    def missing(name: str) -> object:
        if name in LEFT_OUT:
            raise AttributeError(
                f"gymnasium {gymnasium.__version__} has no wrappers.{name}, and of 0.29's wrappers pufferlib replaces "
                f"only {', '.join(WRAPPERS)}; {_USE_OLD}"
            )
        return theirs(name)

    names: dict[str, Any] = {**WRAPPERS, "__getattr__": missing}
    with mock.patch.multiple(wrappers, create=True, **names):
        yield
