"""What loops that deal out episodes use: ``ready``, ``idle`` and ``remake``, on every backend and path."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import numpy as np
import pytest
from mock_envs import HashEnv, NestedHashEnv

import pufferlib
from pufferlib import _native
from pufferlib.errors import CallError, RecvTimeout, WorkerError

pytestmark = pytest.mark.beside

PLANS: list[dict[str, Any]] = [
    {"backend": "serial", "num_envs": 4},
    {"backend": "serial", "num_envs": 4, "batch_size": 3},
    {"backend": "multiprocessing", "num_envs": 4, "num_workers": 2},
    {"backend": "multiprocessing", "num_envs": 4, "num_workers": 2, "batch_size": 3},
    {"backend": "pool", "num_envs": 4, "num_workers": 2, "batch_size": 3},
]


@pytest.fixture(params=["compiled", "portable"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "portable":
        monkeypatch.setattr(_native, "available", False)
    elif not _native.available:
        pytest.skip("the compiled path was not built")
    return str(request.param)


class Longer(HashEnv):
    def __init__(self, env_index: int = 0) -> None:
        super().__init__(env_index, mean_length=10_000)
        self.num_resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.num_resets += 1
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("plan", PLANS)
def test_idle_environments_complete_batches_and_are_not_stepped(plan: dict[str, Any], path: str) -> None:
    with pufferlib.make(Longer, **plan, autoreset_mode="disabled", seed=1) as vec:
        alone = HashEnv(1, mean_length=10_000)
        alone.reset(seed=7)
        vec.async_reset([5, 7, 6, 8])
        received: dict[int, int] = {}
        num_flying = 4
        while num_flying >= vec.batch_size:
            batch = vec.recv()
            num_flying -= vec.batch_size
            received.update(dict.fromkeys(batch.env_ids.tolist(), 0))
        waiting = sorted(received)
        if len(waiting) < 4:  # in smaller batches: one has finished, and waits to be received
            vec.idle([env_id for env_id in waiting if env_id != 1][:2])
            num_flying += 2
            batch = vec.recv()
            assert set(batch.env_ids.tolist()) >= {*range(4)} - {*waiting}
        for step in range(6):
            vec.send(np.array([step]), env_ids=[1])
            others = [0, 2, 3][: vec.batch_size - 1]
            vec.idle(others)
            batch = vec.recv()
            observation, reward, *_ = alone.step(step)
            row = batch.env_ids.tolist().index(1)
            assert sorted(batch.env_ids.tolist()) == sorted([1, *others])
            np.testing.assert_array_equal(batch.observations[row], observation)
            assert batch.rewards[row] == reward and batch.masks.tolist() == [i == row for i in range(vec.batch_size)]
        with pytest.raises(CallError, match="cannot idle: environment 1 is in flight"):
            vec.send(np.array([1]), env_ids=[1])
            vec.idle([1])
        vec.idle([0, 2, 3][: vec.batch_size - 1])
        vec.recv()
        vec.async_reset([9], env_ids=[2])
        vec.idle([0, 3, 1][: vec.batch_size - 1])
        batch = vec.recv()
        row = batch.env_ids.tolist().index(2)
        np.testing.assert_array_equal(batch.observations[row], HashEnv(2).reset(seed=9)[0])


@pytest.mark.parametrize("plan", PLANS)
def test_environments_are_made_again_by_their_next_reset(plan: dict[str, Any], path: str) -> None:
    with pufferlib.make(Longer, **{**plan, "batch_size": None}, autoreset_mode="disabled", seed=1) as vec:
        vec.reset()
        vec.remake([1, 3])
        assert vec.get_attr("num_resets") == [1, 1, 1, 1]
        vec.reset()
        assert vec.get_attr("num_resets") == [2, 1, 2, 1] and vec.restarts == [0] * 4
        vec.reset()
        assert vec.get_attr("num_resets") == [3, 2, 3, 2]
        with pytest.raises(CallError, match=r"env_ids=\[4\] do not exist"):
            vec.remake([4])


class Numbered(HashEnv):
    """Knows what it was made with; it can die."""

    def __init__(self, env_index: int = 0, number: int = 0) -> None:
        super().__init__(env_index, mean_length=10_000)
        self.number = number

    def step(self, action: Any) -> Any:
        if action == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize("plan", [PLANS[0], PLANS[4]])
def test_environments_are_replaced_by_what_other_creators_make(plan: dict[str, Any], path: str) -> None:
    how = {**plan, "batch_size": None, "on_error": "restart"}
    with pufferlib.make(Numbered, **how, autoreset_mode="disabled", seed=1) as vec:
        vec.reset()
        vec.remake([1, 3], [functools.partial(Numbered, 1, 5), lambda: Numbered(3, 6)])
        assert vec.get_attr("number") == [0] * 4
        vec.reset()
        assert vec.get_attr("number") == [0, 5, 0, 6]
        vec.remake([3])
        vec.reset()
        assert vec.get_attr("number") == [0, 5, 0, 6]
        if plan["backend"] != "serial":
            vec.send(np.array([0, 7, 0, 0]))
            vec.recv()
            vec.reset()
            assert vec.get_attr("number") == [0, 5, 0, 6] and vec.restarts[1] == 1
    with pufferlib.make(Numbered, **{**plan, "batch_size": None}, seed=1) as vec:
        vec.reset()
        for creators in ([Numbered], [1, 2]):
            with pytest.raises(CallError, match="are not 2 callables; pass one for each"):
                vec.remake([1, 2], creators)
        vec.remake([2], [NestedHashEnv])
        with pytest.raises(WorkerError, match="environment 2 "):
            vec.reset()


@pytest.mark.parametrize("plan", PLANS)
def test_what_is_ready_is_received_at_once(plan: dict[str, Any], path: str) -> None:
    with pufferlib.make(Longer, **plan, seed=1) as vec:
        assert not vec.ready
        vec.async_reset()
        batch = vec.recv()
        if vec.batch_size == 4:
            assert not vec.ready  # nothing is in flight
        vec.send(np.zeros(len(batch.env_ids), int))
        while not vec.ready and plan["backend"] == "pool" and path == "compiled":
            pass
        vec.recv(timeout=30.0)
    assert not vec.ready


def test_kernels_can_be_idle_and_remade() -> None:
    pytest.importorskip("torch")
    with pufferlib.make("ocean/squared", backend="cuda", device="host", num_envs=3, seed=1) as vec:
        vec.reset()
        vec.remake([0])
        with pytest.raises(CallError, match="creators cannot replace them"):
            vec.remake([0], [dict])
        vec.send(np.zeros(1, np.int64), env_ids=[1])
        vec.idle([0, 2])
        assert vec.recv().masks.tolist() == [False, True, False]


class Short(HashEnv):
    """Its episodes last two steps."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed, options=options)
        self.length = 2
        return result

    def pid(self) -> int:
        return os.getpid()


@pytest.mark.parametrize("plan", [PLANS[0], PLANS[2], {**PLANS[4], "batch_size": 4}])
def test_idle_environments_whose_episodes_are_over_still_refuse_actions(plan: dict[str, Any], path: str) -> None:
    with pufferlib.make(Short, **plan, autoreset_mode="disabled", seed=1) as vec:
        vec.reset()
        for _ in range(2):
            vec.send(np.zeros(4, int))
            vec.recv()
        for _ in range(2):
            with pytest.raises(CallError, match="are over, and autoreset_mode is 'disabled'"):
                vec.send(np.zeros(4, int))
            vec.idle(range(4))
            vec.recv()
        vec.async_reset([3] * 4, env_ids=range(4))
        vec.recv()
        vec.send(np.zeros(4, int))
        assert vec.recv().masks.all()


@pytest.mark.parametrize("autoreset_mode", ["next_step", "same_step"])
@pytest.mark.parametrize("plan", [PLANS[0], PLANS[2]])
def test_idle_environments_begin_a_new_episode_in_the_other_modes(
    plan: dict[str, Any], path: str, autoreset_mode: str
) -> None:
    with pufferlib.make(Longer, **plan, autoreset_mode=autoreset_mode, seed=1) as vec:
        vec.reset()
        vec.idle([1])
        vec.send(np.zeros(3, int), env_ids=[0, 2, 3])
        assert vec.recv().truncations.tolist() == [False, True, False, False]
        vec.send(np.zeros(4, int))
        assert vec.recv().masks.tolist() == [True, False, True, True]
        assert vec.get_attr("num_resets") == [1, 2, 1, 1]
        vec.send(np.zeros(4, int))
        assert vec.recv().masks.all()


@pytest.mark.parametrize("autoreset_mode", ["next_step", "disabled"])
def test_idle_environments_whose_worker_has_died_are_made_again(autoreset_mode: str, path: str) -> None:
    plan = {"backend": "multiprocessing", "num_envs": 2, "num_workers": 2, "on_error": "restart"}
    with pufferlib.make(Short, **plan, autoreset_mode=autoreset_mode, seed=1) as vec:
        vec.reset()
        os.kill(vec.call("pid")[0], signal.SIGKILL)
        with pytest.raises((CallError, WorkerError, RecvTimeout)):  # until the death has been found
            while True:
                vec.call("pid", env_ids=[0])
        vec.idle([0])
        vec.send(np.zeros(1, int), env_ids=[1])
        assert vec.recv().masks.tolist() == [False, True]
        if autoreset_mode == "disabled":
            assert not vec._scheduler.held  # the other sends take the fast path
            with pytest.raises(CallError, match="are over"):
                vec.send(np.zeros(1, int), env_ids=[0])
            vec.reset()
        else:
            vec.send(np.zeros(2, int))
            assert not vec.recv().masks[0]
        vec.send(np.zeros(2, int))
        assert vec.recv().masks[0] and vec.restarts == [1, 0]


@pytest.mark.parametrize("plan", [PLANS[0], PLANS[2]])
def test_environments_that_are_made_again_draw_from_the_seed(plan: dict[str, Any]) -> None:
    observations = []
    for seed in (1, 1, 2):
        with pufferlib.make(Longer, **plan, seed=seed) as vec:
            first = vec.reset()[0].tolist()
            vec.remake(range(4))
            vec.remake([1])
            observations.append(vec.reset()[0].tolist())
            assert observations[-1] != first
    assert observations[0] == observations[1] != observations[2]
