"""The portable path: what it refuses, and the flags of its buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from mock_envs import HashPopulation

import pufferlib
from pufferlib import _native

pytestmark = pytest.mark.beside


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the portable path, in forked workers too."""
    monkeypatch.setattr(_native, "available", False)
    yield


class Plain(gymnasium.Env[Any, Any]):
    """Nothing but rows: observes how often it was stepped."""

    observation_space, action_space = Box(0, 1e6, (2,), np.float32), Discrete(9)

    def __init__(self, env_index: int = 0) -> None:
        self.env_index = env_index

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        return np.array([self.env_index, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        return np.array([self.env_index, self.tick], np.float32), float(action), False, False, {}


class Slips(Plain):
    """Observes, at last, what is not quite of its space; where it slips its episode may as well end."""

    observation_space = Box(0, 255, (2,), np.uint8)

    def __init__(self, last: Any = None) -> None:
        super().__init__()
        self.last = last

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        return np.zeros(2, np.uint8), {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        over = self.tick == 4 and self.last is None
        return np.zeros(2, np.uint8) if self.tick < 4 or over else self.last, 0.0, over, False, {}


@pytest.mark.parametrize("last", [np.array([300, 1]), np.zeros(1, np.uint8), np.zeros((2, 2), np.uint8)])
def test_what_could_be_stored_but_is_not_of_the_space_is_refused(last: Any) -> None:
    with pufferlib.make(Slips, env_kwargs={"last": last}) as vec:
        vec.reset()
        for _ in range(3):
            vec.step(np.zeros(1, np.int64))
        with pytest.raises(pufferlib.WorkerError, match="SpaceError"):
            vec.step(np.zeros(1, np.int64))


def test_an_environment_whose_episode_is_over_is_not_stepped() -> None:
    with pufferlib.make(Slips, num_envs=2, autoreset_mode="disabled") as vec:
        vec.reset()
        for _ in range(4):
            terminations = vec.step(np.zeros(2, np.int64))[2]
        assert terminations.all()
        with pytest.raises(pufferlib.errors.CallError, match="are over"):
            vec.send(np.zeros(2, np.int64))


@pytest.mark.parametrize("env", [Plain, HashPopulation])
def test_flags_of_one_buffer_touch_no_other(env: Callable[..., Any]) -> None:
    """What ``recv`` returned keeps its flags until the second ``recv`` after it, for one agent and for several."""
    wrap_kwargs = {"max_agents": 4} if env is HashPopulation else None
    with pufferlib.make(env, backend="serial", num_envs=6, wrap_kwargs=wrap_kwargs, seed=2) as vec:
        vec.reset()
        for _ in range(40):
            vec.send(np.zeros(vec.agents_per_batch, np.int64))
            batch = vec.recv()
            copies = [array.copy() for array in batch[1:4]], batch.masks.copy()
            vec.send(np.zeros(vec.agents_per_batch, np.int64))
            for array, copy in zip([*batch[1:4], batch.masks], [*copies[0], copies[1]], strict=True):
                np.testing.assert_array_equal(array, copy)
            vec.recv()
