"""Wrappers of Gymnasium 0.29 that have other names or other arguments in later versions.

CleanRL's scripts for Atari and for continuous actions use them. With Gymnasium 0.29 itself nothing is replaced.
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
# Wrappers of 0.29 that neither later versions nor this file have.
LEFT_OUT = {"AutoResetWrapper", "EnvCompatibility", "LazyFrames", "PixelObservationWrapper", "StepAPICompatibility"}
LEFT_OUT |= {"VectorListInfo"}
_USE_OLD = "run this script with gymnasium 0.29: pip install gymnasium==0.29.1"


class _AlsoOfVectors:
    """A wrapper that accepts vector environments too, as in 0.29; later versions have a second class for them."""

    def __new__(cls, env: object, *args: object, **kwargs: object) -> Any:
        if not isinstance(env, VectorEnv):
            return super().__new__(cls)
        try:
            return getattr(wrappers.vector, cls.__name__)(env, *args, **kwargs)  # another class: no __init__ follows
        except ValueError as error:  # the wrapper of observations does not support the autoreset mode of 0.29
            raise PlanError(
                f"wrappers.{cls.__name__} around vector environments: {error}; put it around each environment, or "
                f"{_USE_OLD}"
            ) from error


class RecordEpisodeStatistics(_AlsoOfVectors, wrappers.RecordEpisodeStatistics):
    """Gymnasium's, with the argument of 0.29."""

    def __init__(self, env: GymnasiumEnv, deque_size: int = 100) -> None:
        super().__init__(env, deque_size)


class NormalizeObservation(_AlsoOfVectors, wrappers.NormalizeObservation):
    """Gymnasium's, of one environment or many."""


class NormalizeReward(_AlsoOfVectors, wrappers.NormalizeReward):
    """Gymnasium's, of one environment or many."""


class TransformObservation(_AlsoOfVectors, wrappers.TransformObservation):
    """Gymnasium's, without a space argument: f keeps the space."""

    def __init__(self, env: GymnasiumEnv, f: Callable[[Any], Any]) -> None:
        super().__init__(env, f, None)


class TransformReward(_AlsoOfVectors, wrappers.TransformReward):
    """Gymnasium's, with the argument of 0.29."""

    def __init__(self, env: GymnasiumEnv, f: Callable[[Any], Any]) -> None:
        super().__init__(env, f)


class FrameStack(getattr(wrappers, "FrameStackObservation", gymnasium.Wrapper)):  # type: ignore[misc]
    """Stacks the last num_stack observations in an array, not in 0.29's LazyFrames; lz4_compress is ignored."""

    def __init__(self, env: GymnasiumEnv, num_stack: int, lz4_compress: bool = False) -> None:
        super().__init__(env, num_stack)


class ResizeObservation(wrappers.ResizeObservation):
    """Gymnasium's, which also takes one number for both sides."""

    def __init__(self, env: GymnasiumEnv, shape: tuple[int, int] | int) -> None:
        super().__init__(env, (shape, shape) if isinstance(shape, int) else (shape[0], shape[1]))


class GrayScaleObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Converts pictures to gray with OpenCV; later versions use other weights. keep_dim: (h, w, 1) for (h, w)."""

    def __init__(self, env: GymnasiumEnv, keep_dim: bool = False) -> None:
        super().__init__(env)
        shape: tuple[int, ...] = env.observation_space.shape or ()
        if env.observation_space.dtype != np.uint8 or len(shape) != 3 or shape[2] != 3:
            raise SpaceError(f"{env.observation_space} is no picture of uint8, (height, width, 3), to make gray")
        self.keep_dim = keep_dim
        self.observation_space = spaces.Box(0, 255, (*shape[:2], 1) if keep_dim else shape[:2], np.uint8)

    def observation(self, observation: Array) -> Array:
        """Return the picture in gray."""
        import cv2

        gray = cv2.cvtColor(observation, cv2.COLOR_RGB2GRAY)
        return gray[..., None] if self.keep_dim else gray


class ClipAction(gymnasium.ActionWrapper[Any, Any, Any]):
    """Clips actions to the space's bounds. The space keeps its bounds; later versions make them infinite."""

    def action(self, action: Array) -> Array:
        """Return the action clipped to the bounds."""
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
    """Add 0.29's names to ``gymnasium.wrappers`` in this block; missing names raise AttributeError with advice."""
    if OLD:
        yield
        return
    theirs = wrappers.__getattr__

    def missing(name: str) -> object:
        if name in LEFT_OUT:
            raise AttributeError(
                f"gymnasium {gymnasium.__version__} has no wrappers.{name}, and of 0.29's wrappers pufferlib stands in "
                f"for {', '.join(WRAPPERS)}; {_USE_OLD}"
            )
        return theirs(name)

    names: dict[str, Any] = {**WRAPPERS, "__getattr__": missing}
    with mock.patch.multiple(wrappers, create=True, **names):
        yield
