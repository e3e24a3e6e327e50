"""Hostile use: what cannot be pickled or read at the other end, deaths in the middle of resets, odd processes."""

from __future__ import annotations

import functools
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from mock_envs import HashEnv, TagEnv

import pufferlib
from pufferlib import _native
from pufferlib.vectorization.core.failure_summaries import failure_texts
from pufferlib.vectorization.core.messages import Died, Failed

pytestmark = pytest.mark.beside

PARALLEL = ("multiprocessing", "pool")
ROOT = Path(__file__).parents[2]


class Fickle(Exception):
    """Pickles, and cannot be unpickled, as an exception with more arguments than it hands on."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


class CountEnv(gymnasium.Env[Any, Any]):
    """Counts its steps. Action 1 sleeps, action 2 gives an info that cannot be unpickled."""

    observation_space = gymnasium.spaces.Box(-1, 1e9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, forbidden: Path | None = None) -> None:
        if forbidden is not None and forbidden.exists():
            raise RuntimeError("no more of these")
        self.count = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.count >= 0, "step before reset"
        time.sleep(0.5 if action == 1 else 0.0)
        self.count += 1
        info = {"fickle": Fickle("a", "b")} if action == 2 else {}
        return np.full(1, self.count, np.float32), 1.0, False, False, info

    def pid(self) -> int:
        return os.getpid()


def run(script: str) -> None:
    """Run a program that can use this file, and has to end well and quietly."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers"), str(ROOT / "tests/failures")]),
    }
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and not result.stderr, result.stderr


def zeros(num: int) -> Any:
    return np.zeros(num, np.int64)


@pytest.mark.parametrize("backend", PARALLEL)
def test_a_request_that_cannot_be_pickled_changes_nothing(backend: str) -> None:
    with pufferlib.make(CountEnv, backend=backend, num_envs=2, num_workers=2) as vec:
        vec.reset()
        for call in (
            lambda: vec.async_reset(options=[{}, {"lock": threading.Lock()}]),
            lambda: vec.set_attr("lock", [1, threading.Lock()]),
        ):
            with pytest.raises(pufferlib.CallError, match="cannot pickle"):
                call()
        assert vec.step(zeros(2))[0].tolist() == [[1], [1]]
        assert vec.get_attr("count") == [1, 1]


@pytest.mark.parametrize("backend", PARALLEL)
def test_what_cannot_be_unpickled_is_a_failure_of_its_environment(backend: str) -> None:
    with pufferlib.make(CountEnv, backend=backend, num_envs=2, num_workers=2) as vec:
        vec.reset()
        vec.send(np.array([0, 2]))
        with pytest.raises(pufferlib.WorkerError, match="environment 1 .*unpickling.*argument: 'second'"):
            vec.recv()
        vec.async_reset(env_ids=[1])
        assert vec.recv().observations.tolist() == [[1], [0]]
        with pytest.raises(pufferlib.WorkerError, match=r"worker \d .*unpickling.*argument: 'second'"):
            vec.set_attr("value", Fickle("a", "b"))  # the worker cannot read it, and lives
        with pytest.raises(pufferlib.WorkerError, match=r"environment \d .*unpickling"):
            vec.reset(options={"value": Fickle("a", "b")})
        with pytest.warns(RuntimeWarning, match=r"environment \d .*unpickling"):
            vec.reset()
        assert vec.step(zeros(2))[0].tolist() == [[1], [1]]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_what_main_defines_goes_to_workers_and_comes_back(context: str) -> None:
    script = f"""
import pufferlib, test_misuse as misuse
class Settings:
    pass
vec = pufferlib.make(misuse.CountEnv, backend="pool", num_envs=2, num_workers=2, context={context!r})
vec.reset(options={{"settings": Settings()}})
vec.set_attr("settings", Settings())
assert [type(value) for value in vec.get_attr("settings")] == [Settings, Settings]
vec.close()
"""
    run(script)


def kill(vec: pufferlib.VecEnv, env_id: int) -> None:
    """Kill an environment's worker, and wait until its end shows."""
    (pid,) = vec.call("pid", env_ids=[env_id])
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("backend", PARALLEL)
def test_a_partial_reset_revives_a_worker_while_others_step(backend: str) -> None:
    with pufferlib.make(CountEnv, backend=backend, num_envs=3, num_workers=3, batch_size=1) as vec:
        vec.async_reset()
        for _ in range(3):
            vec.recv()
        kill(vec, 0)
        with pytest.raises(pufferlib.WorkerError, match="SIGKILL"):
            vec.call("pid", env_ids=[0])
        vec.send(zeros(2), [1, 2])
        time.sleep(0.05)  # they finish, and say so while the new worker is awaited
        vec.async_reset(env_ids=[0])
        assert sorted(int(vec.recv(timeout=60).env_ids[0]) for _ in range(3)) == [0, 1, 2]


def test_a_row_outlives_its_worker_but_its_environment_does_not() -> None:
    with pufferlib.make(CountEnv, backend="pool", num_envs=4, num_workers=2, batch_size=2) as vec:
        vec.async_reset()
        vec.recv(), vec.recv()
        vec.send(zeros(1), [0])
        (pid,) = vec.call("pid", env_ids=[0])  # answered after the step, whose row has then arrived
        vec.send(np.ones(1, np.int64), [1])
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(pufferlib.WorkerError, match="SIGKILL"):
            vec.recv()
        vec.async_reset(env_ids=[1])  # revives the worker of both
        batch = vec.recv()
        assert dict(zip(batch.env_ids.tolist(), batch.observations[:, 0].tolist(), strict=True)) == {0: 1, 1: 0}
        with pytest.raises(pufferlib.CallError, match=r"environment 0 failed.*async_reset\(env_ids=\[0\]\)"):
            vec.send(zeros(2))
        vec.async_reset(env_ids=[0])
        vec.send(zeros(1), [1])
        assert sorted(vec.recv().env_ids.tolist()) == [0, 1]


@pytest.mark.parametrize("backend", PARALLEL)
def test_a_reset_whose_revival_fails_can_be_tried_again(backend: str, tmp_path: Path) -> None:
    forbidden = tmp_path / "forbidden"
    creator = functools.partial(CountEnv, forbidden)
    with pufferlib.make(creator, backend=backend, num_envs=2, num_workers=2) as vec:
        vec.reset()
        kill(vec, 0)
        forbidden.touch()
        with pytest.raises(pufferlib.WorkerError, match="SIGKILL"):
            vec.call("pid", env_ids=[0])
        for _ in range(2):
            with pytest.raises(pufferlib.WorkerError, match="no more of these"):
                vec.reset()
        forbidden.unlink()
        vec.reset()
        assert vec.step(zeros(2))[0].tolist() == [[1], [1]]


def test_a_vec_that_is_dropped_unclosed_leaves_no_descriptor() -> None:
    def drop() -> int:
        pufferlib.make(CountEnv, backend="pool", num_envs=2, num_workers=2).reset()
        gc.collect()
        return len(os.listdir("/dev/fd"))

    assert drop() == drop()


def test_descriptors_above_1023_do_no_harm() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        with pufferlib.make(CountEnv, backend="pool", num_envs=2, num_workers=2) as vec:
            vec.reset()
            vec.step(zeros(2))
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_ignores_the_death_of_children_can_close() -> None:
    run("""
import signal, numpy, pufferlib, test_misuse as misuse
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
vec = pufferlib.make(misuse.CountEnv, backend="pool", num_envs=2, num_workers=2)
vec.reset()
vec.step(numpy.zeros(2, int))
vec.close()
""")


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("backend", ["serial", *PARALLEL])
def test_rows_ids_infos_and_leases_hold_in_any_order_of_sending(backend: str, debug: bool) -> None:
    """Random subsets in random order against a model; batches of two agents each, some gathered and some views."""
    random = np.random.default_rng(0)
    num_envs, batch_size, length = 5, 2, 3
    with pufferlib.make(functools.partial(TagEnv, length=length), backend=backend, num_envs=num_envs, num_workers=2,
                        batch_size=batch_size, debug=debug) as vec:  # fmt: skip
        vec.async_reset()
        ticks = [-1] * num_envs  # the model: steps into the episode, and the actions on their way
        sent: dict[int, Any] = {}
        waiting: set[int] = set()
        leased: list[tuple[pufferlib.Batch, list[Any]]] = []
        for _ in range(120):
            vec.get_attr("length")  # answered once all that was sent is done
            for old, copies in leased:  # both are valid still, whatever was stepped meanwhile
                for now, copy in zip(old, copies, strict=True):
                    np.testing.assert_array_equal(now, copy)
            batch = vec.recv(timeout=60)
            if debug and len(leased) > 1:
                assert np.isnan(leased[-2][0].rewards).all()
            ids = batch.env_ids.tolist()
            assert batch.agent_ids.tolist() == [2 * env_id + agent_index for env_id in ids for agent_index in (0, 1)]
            expected_infos = set()
            for slot, env_id in enumerate(ids):
                rows = slice(2 * slot, 2 * slot + 2)
                first = ticks[env_id] in (-1, length)  # next_step: the action after an ending starts an episode
                ticks[env_id] = 0 if first else ticks[env_id] + 1
                assert batch.observations[rows].tolist() == [
                    [env_id, agent_index, ticks[env_id]] for agent_index in (0, 1)
                ]
                assert batch.rewards[rows].tolist() == ([0, 0] if first else sent[env_id].tolist())
                assert batch.masks[rows].tolist() == [not first] * 2
                assert batch.terminations[rows].tolist() == [ticks[env_id] == length] * 2
                if ticks[env_id] == length:
                    expected_infos |= {(env_id, None), (env_id, 2 * env_id), (env_id, 2 * env_id + 1)}
            assert {(info["env_id"], info.get("agent_id")) for info in batch.infos} == expected_infos
            leased = [*leased[-1:], (batch, [np.copy(array) for array in batch if isinstance(array, np.ndarray)])]
            leased[-1] = (batch._replace(infos=[]), [*leased[-1][1][:4], [], *leased[-1][1][4:]])
            waiting |= set(ids)
            chosen = random.permutation(sorted(waiting))[: random.integers(1, len(waiting) + 1)].tolist()
            if num_envs - len(waiting) + len(chosen) < batch_size:
                chosen = sorted(waiting)[::-1]
            actions = random.integers(0, 3, 2 * len(chosen))
            vec.send(actions, chosen)
            sent.update({env_id: actions[2 * index : 2 * index + 2].copy() for index, env_id in enumerate(chosen)})
            waiting -= set(chosen)


@pytest.mark.parametrize("backend", ["serial", *PARALLEL])
def test_infos_of_dropped_rows_are_dropped_too(backend: str) -> None:
    with pufferlib.make(functools.partial(TagEnv, length=1), backend=backend, num_envs=2, num_workers=2) as vec:
        vec.reset()
        vec.send(zeros(4))  # ends both episodes
        assert vec.reset()[1] == []
        assert len(vec.step(zeros(4))[4]) == 6


@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_ctrl_c_in_the_middle_of_a_send_closes_and_leaves_nothing(
    backend: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """error: what a signal handler raises."""
    with pufferlib.make(HashEnv, backend=backend, num_envs=4, num_workers=2, batch_size=2, seed=3) as vec:
        vec.async_reset()
        batch = vec.recv()
        pids = [pid for pid in vec._workers.pids if pid]

        def depart(env_ids: Any) -> None:
            raise error

        vec._fast_path = None  # the general path
        monkeypatch.setattr(vec._scheduler, "mark_sent", depart)
        with pytest.raises(error):
            vec.send(np.zeros(2, np.int64), env_ids=batch.env_ids)
        assert vec.closed
        assert not any(psutil.pid_exists(pid) for pid in pids)
        reason = f"is closed, because {error.__name__} ended a call in the middle; make a new one"
        for call in (vec.recv, vec.reset, lambda: vec.send(np.zeros(2, np.int64)), lambda: vec.call("pid")):
            with pytest.raises(pufferlib.errors.ClosedError, match=reason):
                call()


class Unreadable:
    """Raises whatever is asked of it."""

    def _raise(self, *_: Any) -> Any:
        raise ValueError("unreadable")

    __index__ = __array__ = __iter__ = __len__ = __reduce__ = _raise


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_arguments_that_cannot_be_read_are_refused_and_close_nothing(backend: str) -> None:
    calls: list[Callable[[Any, Any], Any]] = [
        lambda vec, value: vec.send(value),
        lambda vec, value: vec.send(np.zeros(2, np.int64), env_ids=value),
        lambda vec, value: vec.async_reset(seed=value),
        lambda vec, value: vec.async_reset(seed=[value, value]),
        lambda vec, value: vec.async_reset(options=value),
        lambda vec, value: vec.async_reset(env_ids=value),
        lambda vec, value: vec.call("pid", env_ids=value),
        lambda vec, value: vec.get_attr("tick", env_ids=[value]),
        lambda vec, value: vec.set_attr("tick", 1, env_ids=value),
    ]
    with pufferlib.make(HashEnv, backend=backend, num_envs=2, num_workers=2, seed=3) as vec:
        vec.reset()
        for call in calls:
            with pytest.raises(pufferlib.errors.PufferError):
                call(vec, Unreadable())
            assert not vec.closed
        assert vec.step(np.zeros(2, np.int64))[1].shape == (2,)


def test_arguments_that_make_does_not_have_are_answered_with_those_that_it_has():
    with pytest.raises(TypeError, match=r"no argument backnd; did you mean backend\? An .* env_kwargs="):
        pufferlib.make(HashEnv, backnd="serial")
    with pytest.raises(TypeError, match=r"no argument length; an argument .* goes in env_kwargs=\{'length': 3\}"):
        pufferlib.make(HashEnv, length=3)
    with pytest.raises(TypeError, match=r"wrap\(\) has no argument max_agent; did you mean max_agents\?$"):
        pufferlib.wrap(HashEnv(), max_agent=3)
    with pytest.raises(TypeError, match=r"wrap\(\) has no argument x; there are env, max_length, "):
        pufferlib.wrap(HashEnv(), x=3)
    with pytest.raises(pufferlib.WorkerError, match=r"did you mean max_agents\?"):
        pufferlib.make(HashEnv, wrap_kwargs={"max_agent": 3})
    with (
        pufferlib.make(HashEnv, num_envs=2) as vec,
        pytest.raises(pufferlib.ActionError, match=r"vec\.action_layout\.flatten"),
    ):
        vec.reset()
        vec.step([{"a": 1}] * 2)


def test_the_warning_of_the_portable_path_names_who_called_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUFFERLIB_NATIVE", raising=False)
    monkeypatch.setattr(_native, "reason", "it was not built")
    monkeypatch.setattr(sys, "platform", "linux")
    _native.warn_of_portable_path.cache_clear()
    with pytest.warns(UserWarning, match="portable path") as seen:
        pufferlib.make("ocean/squared").close()
    assert seen[0].filename == __file__


def test_a_fault_of_many_environments_is_reported_once():
    failures = [Failed.of(env_id, 0, "step", ValueError("jammed")) for env_id in (0, 4, 5)]
    first, other = failure_texts([*failures, Failed.of(2, 0, "step", ValueError("lost"))])
    assert first.startswith("environment 0 (worker 0) raised in step: ValueError: jammed")
    assert first.endswith("and so did environments 4, 5")
    assert "environments" not in other


def test_a_death_whose_exit_code_other_code_has_taken_is_told_in_words() -> None:
    assert Died(0, None, range(2)).text == "worker 0, with environments 0 to 1, ended with an unknown exit code"
