"""Counting Python frames: how many of pufferlib's functions a step enters, in this process and in a worker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pufferlib

__all__ = ["MOST", "NUM_ENVS", "PLAIN", "STEPS", "Counting", "frames_a_step", "frames_in_worker", "frames_of"]

PACKAGE = str(Path(pufferlib.__file__).parent)
NUM_ENVS, WARM_UP, STEPS = 16, 12, 40
PLAIN = 0.25  # VecEnv.step, send and recv, for 16 environments
MOST = PLAIN + 0.25


class Frames:
    """Counts the calls of pufferlib's Python functions in this thread while it is installed as its profiler."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        self.count += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)


class Counting:
    """An environment that counts the frames of the process that steps it, from the step after the call on."""

    frames: Frames | None = None

    def start_counting(self) -> None:
        Counting.frames = Frames()
        sys.setprofile(Counting.frames)

    def stop_counting(self) -> int:
        sys.setprofile(None)
        assert Counting.frames is not None
        return Counting.frames.count


def frames_of(step: Callable[[], Any]) -> int:
    """Return how many frames STEPS calls enter, after some to warm up."""
    for _ in range(WARM_UP):
        step()
    frames = Frames()
    sys.setprofile(frames)
    try:
        for _ in range(STEPS):
            step()
    finally:
        sys.setprofile(None)
    return frames.count


def frames_a_step(vec: Any, actions: Any, env_ids: Any = None) -> float:
    """Return how many frames of this process a step of one environment enters, from the reset of them all on.

    env_ids: the environments of the last batch, as ``send`` gets them; None where it gets none.
    """
    vec.async_reset()
    vec.recv()

    def step() -> None:
        vec.send(actions, env_ids=env_ids(vec.batch.env_ids))
        vec.recv()

    # The least of three counts: on a busy machine a step may take so long that sockets are looked at, in Python.
    return min(frames_of((lambda: vec.step(actions)) if env_ids is None else step) for _ in range(3)) / STEPS / NUM_ENVS


def frames_in_worker(vec: Any, actions: Any) -> float:
    """Return the same of the one worker, whose environments are Counting, besides the frames of the two calls."""
    vec.reset()
    for _ in range(WARM_UP):
        vec.step(actions)
    vec.call("start_counting", env_ids=[0])
    for _ in range(STEPS):
        vec.step(actions)
    (count,) = vec.call("stop_counting", env_ids=[0])
    return float(count / STEPS / NUM_ENVS)
