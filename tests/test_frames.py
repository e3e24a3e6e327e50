"""How many of pufferlib's Python functions a step enters: what environments return must not leave the compiled path."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import pufferlib
from benchmarks.envs import RETURNS, ReturningEnv
from pufferlib import _native

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(not _native.available, reason=f"there is no compiled path: {_native.reason}"),
]

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


class Watched(ReturningEnv):
    """Counts the frames of the process that steps it, from the step that follows the warm-up on."""

    frames: Frames | None = None

    def start_counting(self) -> None:
        Watched.frames = Frames()
        sys.setprofile(Watched.frames)

    def stop_counting(self) -> int:
        sys.setprofile(None)
        assert Watched.frames is not None
        return Watched.frames.count


@pytest.mark.filterwarnings("ignore:.*is cast to")
@pytest.mark.parametrize("autoreset_mode", ["next_step", "same_step"])
@pytest.mark.parametrize("returns", RETURNS)
def test_serial_steps_enter_few_python_functions(returns: str, autoreset_mode: str) -> None:
    with pufferlib.make(ReturningEnv, env_args=[returns, 10], num_envs=NUM_ENVS, autoreset_mode=autoreset_mode) as vec:
        actions = np.zeros(NUM_ENVS, int)
        vec.reset()
        for _ in range(WARM_UP):
            vec.step(actions)
        frames = Frames()
        sys.setprofile(frames)
        try:
            for _ in range(STEPS):
                vec.step(actions)
        finally:
            sys.setprofile(None)
    entered = frames.count / STEPS / NUM_ENVS
    assert 0 < entered <= (PLAIN if returns == "plain" else MOST), f"{returns}: {entered:.2f} frames a step"


@pytest.mark.filterwarnings("ignore:.*is cast to")
@pytest.mark.parametrize("returns", RETURNS)
def test_wrapped_steps_enter_few_python_functions(returns: str) -> None:
    """The step's own, that of actions, and, where there is an info, what copies it."""
    env = pufferlib.wrap(ReturningEnv(returns))
    env.reset()
    for _ in range(WARM_UP):
        env.step(1)
    frames = Frames()
    sys.setprofile(frames)
    try:
        for _ in range(STEPS):
            env.step(1)
    finally:
        sys.setprofile(None)
    if not returns.startswith("info"):
        assert frames.count == 2 * STEPS, f"{returns}: {frames.count / STEPS:.2f} frames a step"


@pytest.mark.filterwarnings("ignore:.*is cast to")
@pytest.mark.parametrize("returns", RETURNS)
def test_workers_enter_few_python_functions(returns: str) -> None:
    with pufferlib.make(
        Watched, env_args=[returns, 10], num_envs=NUM_ENVS, num_workers=1, backend="multiprocessing"
    ) as vec:
        actions = np.zeros(NUM_ENVS, int)
        vec.reset()
        for _ in range(WARM_UP):
            vec.step(actions)
        vec.call("start_counting", env_ids=[0])
        for _ in range(STEPS):
            vec.step(actions)
        (count,) = vec.call("stop_counting", env_ids=[0])
    entered = count / STEPS / NUM_ENVS  # beside those of the two calls themselves
    assert entered <= MOST, f"{returns}: {entered:.2f} frames a step in the worker"
