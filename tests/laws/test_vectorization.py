"""The laws of VecEnv, on every backend."""

from __future__ import annotations

import functools
import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_envs import HashEnv, HashPopulation, NestedHashEnv, TagEnv

import pufferlib
from pufferlib import _native
from pufferlib.vectorization.driver.dispatcher import Dispatcher

pytestmark = pytest.mark.beside

BACKENDS = ("serial", "multiprocessing", "pool")


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "flat": (HashEnv, {}),
    "nested": (NestedHashEnv, {}),
    "population": (HashPopulation, {"max_agents": 4}),
}


def answers(vec: pufferlib.VecEnv, observations: Any) -> Any:
    """Return actions that depend on nothing but each row's observation."""
    words = observations.view(np.uint8).reshape(len(observations), -1)[:, -16:].astype(np.int64)
    space = vec.single_action_space
    if isinstance(space, gymnasium.spaces.Tuple):
        return words[:, :1] % 5, (words[:, 1:3] / 255).astype(np.float32)
    return words[:, 0] % int(space.n)


def trajectories(vec: pufferlib.VecEnv, num_batches: int) -> dict[int, list[Any]]:
    """Play actions that each environment's own rows determine; return every environment's rows and infos in order."""
    seen: dict[int, list[Any]] = {env_id: [] for env_id in range(vec.num_envs)}
    n = vec.agents_per_env
    vec.async_reset()
    for _ in range(num_batches):
        batch = vec.recv()
        infos: dict[int, list[Any]] = {}
        for info in batch.infos:
            infos.setdefault(info["env_id"], []).append(without_seconds(info))
        for index, env_id in enumerate(batch.env_ids.tolist()):
            rows = slice(index * n, (index + 1) * n)
            columns = (batch.observations, batch.rewards, batch.terminations, batch.truncations, batch.masks)
            seen[env_id].append((*(column[rows].tobytes() for column in columns), str(infos.get(env_id))))
            assert batch.agent_ids[rows].tolist() == list(range(env_id * n, (env_id + 1) * n))
        vec.send(answers(vec, batch.observations))
    return seen


def without_seconds(info: Any) -> Any:
    if not isinstance(info, dict):
        return info.tolist() if isinstance(info, np.ndarray) else info
    return sorted((key, without_seconds(value)) for key, value in info.items() if key != "t")


def assert_same_prefixes(expected: dict[int, list[Any]], actual: dict[int, list[Any]]) -> None:
    for env_id, rows in actual.items():
        assert rows == expected[env_id][: len(rows)], f"environment {env_id} differs"


@settings(max_examples=3)
@given(data=st.data())
def test_trajectories_are_bit_identical_on_every_backend(data: st.DataObject) -> None:
    assert_any_identical(data)


@pytest.mark.long
@settings(max_examples=20)
@given(data=st.data())
def test_many_trajectories_are_bit_identical_on_every_backend(data: st.DataObject) -> None:
    assert_any_identical(data)


@pytest.mark.parametrize("kind", KINDS)
def test_trajectories_of_each_kind_are_bit_identical(kind: str) -> None:
    mode = "same_step" if kind == "nested" else "next_step"
    counts = dict(num_envs=5, num_workers=2, batch_size=3)
    assert_identical(BACKENDS, kind, counts, seed=len(kind), mode=mode, delay_s=0.0)


def assert_any_identical(data: st.DataObject) -> None:
    num_envs = data.draw(st.integers(1, 9), "num_envs")
    num_workers = data.draw(st.integers(1, num_envs), "num_workers")
    batch_size = data.draw(st.integers(1, num_envs), "batch_size")
    seed = data.draw(st.integers(0, 2**40), "seed")
    kind = data.draw(st.sampled_from(sorted(KINDS)), "kind")
    mode = data.draw(st.sampled_from(["next_step", "same_step"]), "mode")
    delay_s = data.draw(st.sampled_from([0.0, 0.002]), "delay")
    counts = dict(num_envs=num_envs, num_workers=num_workers, batch_size=batch_size)
    assert_identical(BACKENDS, kind, counts, seed=seed, mode=mode, delay_s=delay_s)


def assert_identical(
    backends: Sequence[str], kind: str, counts: dict[str, int], *, seed: int, mode: str, delay_s: float
) -> None:
    env, wrap_kwargs = KINDS[kind]
    creator = functools.partial(env, max_delay_s=delay_s)
    arguments: dict[str, Any] = dict(seed=seed, autoreset_mode=mode, wrap_kwargs=wrap_kwargs)
    with pufferlib.make(creator, num_envs=counts["num_envs"], **arguments) as vec:
        expected = trajectories(vec, 30)
    for backend in backends:
        with pufferlib.make(creator, backend=backend, **arguments, **counts) as vec:
            actual = trajectories(vec, 30)
        assert_same_prefixes(expected, actual)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_carry_their_ids(backend: str) -> None:
    with pufferlib.make(TagEnv, backend=backend, num_envs=5, num_workers=2, batch_size=3) as vec:
        vec.async_reset()
        for _ in range(20):
            batch = vec.recv()
            assert np.array_equal(batch.observations[:, 0], np.repeat(batch.env_ids, 2))
            assert np.array_equal(batch.observations[:, 1], batch.agent_ids % 2)
            assert np.array_equal(batch.masks, batch.observations[:, 2] > 0)
            assert np.array_equal(batch.terminations, batch.observations[:, 2] == 4)
            vec.send(batch.agent_ids % 3)
            assert batch.rewards.dtype == np.float32


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_is_valid_until_the_second_recv_after_it(backend: str) -> None:
    with pufferlib.make(TagEnv, backend=backend, num_envs=4, num_workers=2, batch_size=2, debug=True) as vec:
        vec.async_reset()
        old: list[tuple[Any, Any]] = []
        for _ in range(12):
            batch = vec.recv()
            old.append((batch.observations, batch.observations.copy()))
            for array, copy in old[-2:]:
                assert np.array_equal(array, copy)
            if len(old) > 2:
                assert np.isnan(old[-3][0]).all(), "debug=True must poison what has expired"
            vec.send(np.zeros(4, np.int64))


def test_the_compiled_path_is_in_use_wherever_it_can_be_built() -> None:
    can_build = sys.platform.startswith("linux") and shutil.which("cc") and os.environ.get("PUFFERLIB_NATIVE") != "0"
    assert _native.available or not can_build, _native.reason


if _native.available:

    def test_a_row_that_is_written_but_not_counted_yet_has_not_arrived() -> None:
        with pufferlib.make(HashEnv, num_envs=2, seed=1) as vec:
            vec.reset()
            step_loop, scheduler = vec._workers.backend._worker.step_loop, vec._scheduler
            for _ in range(8):  # more than there are blocks: a count once wrong would stay so
                for env_id, slot in enumerate(scheduler.mark_sent([0, 1])):
                    step_loop.commit(env_id, slot, False, [])
                assert scheduler.fast_path.landed() == [0, 1] and scheduler.num_ready == 2
                assert not scheduler.batch_ready() and not scheduler.settled
                step_loop.flush()
                assert scheduler.batch_ready() and scheduler.settled
                assert vec.recv().env_ids.tolist() == [0, 1]

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_actions_of_whole_batches_are_plain(backend: str) -> None:
        """Spaces come from workers, pickled: their dtypes equal NumPy's own, and are other objects."""
        with pufferlib.make(HashEnv, backend=backend, num_envs=4, num_workers=2, seed=1) as vec:
            vec.reset()
            for _ in range(3):
                assert vec._fast_path.send(vec.action_space.sample())
                vec.recv()
            for actions in (
                np.zeros(4, np.int32),
                np.ones(4, np.bool_),
                [0, 1, 1, 0],
                (1, 1, 1, 1),
                np.arange(8)[::2] % 2,
            ):
                assert vec._fast_path.send(actions)
                vec.recv()
            wrong = [
                np.zeros(4),
                np.zeros(3, int),
                [0, 1, 1, -1],
                [0, 1, 1, 0.5],
                ["0"] * 4,
                [[0], [1, 2]],
                None,
                2**70,
            ]
            for actions in wrong:
                assert not vec._fast_path.send(actions)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_pairs_of_actions_are_plain(backend: str) -> None:
        with pufferlib.make(NestedHashEnv, backend=backend, num_envs=4, num_workers=2, seed=1) as vec:
            vec.reset()
            discrete_actions, continuous_actions = vec.action_space.sample()
            for actions in (
                (discrete_actions, continuous_actions),
                [discrete_actions.astype(np.int32), continuous_actions.astype(np.float64)],
            ):
                assert vec._fast_path.send(actions)
                vec.recv()
            for actions in (
                (discrete_actions,),
                (discrete_actions, continuous_actions * np.nan),
                (discrete_actions, np.full(continuous_actions.shape, 1e300)),
                discrete_actions,
            ):
                assert not vec._fast_path.send(actions)

    def test_a_number_is_no_batch_of_actions() -> None:
        with pufferlib.make(HashEnv, num_envs=1, seed=1) as vec:
            vec.reset()
            for actions in (np.array(1), np.int64(1), 1):
                with pytest.raises(pufferlib.ActionError, match=r"shape \(\), expected \(1,\)"):
                    vec.send(actions)
            vec.step([1])

    class Quiet(HashEnv):
        """Tells nothing, and so is all plain case until its episode ends."""

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=seed)[0], {}

        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {}

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_the_plain_case_runs_no_python_of_ours_between_send_and_recv(backend: str) -> None:
        """In this process; on serial that is the workers' loop too."""
        package = os.path.join(os.path.dirname(pufferlib.__file__), "")
        expected, called = {"send", "recv"}, set[str]()

        def note(frame: Any, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(package):
                called.add(frame.f_code.co_name)

        creator = functools.partial(Quiet, mean_length=10**6)
        with pufferlib.make(creator, backend=backend, num_envs=4, num_workers=2, seed=1) as vec:
            vec.reset()
            actions = np.zeros(4, np.int64)
            for _ in range(10):
                vec.step(actions)
            for _ in range(1_000):  # ten times a second sockets are looked at, which is Python
                called.clear()
                sys.setprofile(note)
                try:
                    for _ in range(20):
                        vec.send(actions)
                        vec.recv()
                finally:
                    sys.setprofile(None)
                if called == expected:
                    break
        assert called == expected

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_pause_within_recv_ends_no_wait(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Here no message comes later on serial, and a look is due again at once."""
        kill = Dispatcher._kill_overdue

        def paused(self: Dispatcher) -> None:
            time.sleep(0.15)  # longer than nobody looks
            kill(self)

        with pufferlib.make(HashEnv, backend=backend, num_envs=2, num_workers=2, seed=1) as vec:
            vec.reset()
            vec._fast_path = None  # the general path
            monkeypatch.setattr(Dispatcher, "_kill_overdue", paused)
            assert vec.step(np.zeros(2, np.int64))[0].shape[0] == 2

    def test_after_a_pause_the_batch_comes_first_and_a_look_at_the_sockets_next() -> None:
        with pufferlib.make(functools.partial(Quiet, mean_length=10**6), num_envs=2) as vec:
            vec.reset()
            vec._fast_path.look()
            for comes in (True, False):
                time.sleep(0.15)  # longer than nobody looks
                vec.send(np.zeros(2, np.int64))
                assert (vec._fast_path.recv(math.inf) is not None) is comes
            assert vec.recv().observations.shape == (2, 16)
            vec.send(np.zeros(2, np.int64))
            assert vec._fast_path.recv(math.inf) is not None
