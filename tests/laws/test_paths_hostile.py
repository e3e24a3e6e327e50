"""What hostile environments and learners do to the compiled path: each was a fault once."""

from __future__ import annotations

import inspect
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from matrix import covering
from test_paths import Errs, NativeErrs, on_both, plain

import pufferlib
from pufferlib import _native

pytestmark = pytest.mark.beside


class Count(gymnasium.Env[Any, Any]):
    """Observes how often it was stepped; an action is how many hundredths of a second that takes."""

    observation_space = Box(0, 1e6, (1,), np.float32)
    action_space = Discrete(10**6)

    def __init__(self, with_infos: bool = False) -> None:
        self.with_infos = with_infos

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        if action:
            time.sleep(action / 100)
        self.tick += 1
        return np.full(1, self.tick, np.float32), 0.0, False, False, {"tick": self.tick} if self.with_infos else {}


@pytest.mark.alone
@pytest.mark.flaky(reruns=4)
def test_a_death_is_seen_while_others_go_on() -> None:
    """In a pool the others fill one batch after another, so that nobody ever waits for the dead."""
    with pufferlib.make(Count, backend="pool", num_envs=8, num_workers=4, batch_size=2) as vec:
        vec.async_reset()
        for _ in range(4):
            vec.recv()
            vec.send(np.zeros(2, np.int64))
        os.kill(vec._workers.pids[3], signal.SIGKILL)
        deadline = time.monotonic() + 1
        with pytest.raises(pufferlib.WorkerError, match="SIGKILL"):
            while time.monotonic() < deadline:
                vec.recv()
                vec.send(np.zeros(2, np.int64))


@pytest.mark.parametrize("timeout", [-1.0, -1e-9, 0.0, 0.08])
@pytest.mark.alone
def test_a_timeout_is_as_long_as_it_says(timeout: float) -> None:
    with pufferlib.make(Count, backend="multiprocessing") as vec:
        vec.reset()
        for _ in range(100):  # until one is: on a busy machine anything may take a while
            vec.send(np.full(1, 20))
            start_s = time.monotonic()
            try:
                vec.recv(timeout=timeout)
                continue  # the step was over before that began
            except pufferlib.RecvTimeout:
                waited_s = time.monotonic() - start_s
            vec.recv()
            if waited_s < max(0.0, timeout) + 0.05:
                break
        else:
            raise AssertionError(f"recv(timeout={timeout}) never took about as long")


def test_more_infos_than_a_socket_holds_wait_for_no_clock() -> None:
    """This thread and the worker never sleep both; on a busy machine they wait for a core instead."""
    with pufferlib.make(lambda: Count(True), backend="multiprocessing", num_envs=2000, num_workers=1) as vec:
        vec.reset()
        vec.step(np.zeros(2000, np.int64))  # which is checked fully, and takes long
        tasks = [Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}"), Path(f"/proc/{vec._workers.pids[0]}")]
        done, seen = threading.Event(), Counter[bool]()

        def look() -> None:
            while not done.wait(0.002):
                states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
                seen[states == ["S", "S"]] += 1

        with ThreadPoolExecutor(1) as threads:
            looking = threads.submit(look)
            try:
                while seen.total() < 100:
                    for _ in range(4):
                        vec.step(np.zeros(2000, np.int64))
            finally:
                done.set()
            looking.result()
        # A stall is a slice of 0.1 s. With one or more a step, which takes both some 0.03 s, most looks find one.
        assert seen[True] < 0.2 * seen.total(), seen
        assert len(vec.batch.infos) == 2000


class Changing(pufferlib.PufferEnv):
    """Replaces its own step."""

    single_observation_space = Box(0, 999, (1,), np.float32)
    single_action_space = Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.tick = 0
        self.step = self.first  # type: ignore[method-assign]

    def first(self, actions: Any) -> None:
        self.tick += 1
        self.observations[:] = 100 + self.tick
        if self.tick == 3:
            self.step = self.second  # type: ignore[method-assign]

    def second(self, actions: Any) -> None:
        self.observations[:] = 200


def test_a_step_that_is_replaced_is_played() -> None:
    def play() -> Any:
        with pufferlib.make(Changing) as vec:
            vec.reset()
            return [vec.step(np.zeros(1, np.int64))[0].item() for _ in range(5)]

    compiled, portable = on_both(play)
    assert compiled == portable == [101, 102, 103, 200, 200]


if "dtype" in inspect.signature(Discrete).parameters:  # since Gymnasium 1.0

    def test_actions_of_a_discrete_space_are_ints_whatever_its_dtype() -> None:
        class Narrow(Count):
            def __init__(self) -> None:
                super().__init__()
                self.action_space = Discrete(5, start=1, dtype=np.int32)
                self.seen: list[Any] = []

            def step(self, action: Any) -> Any:
                self.seen.append(plain(action))
                return super().step(0)

        def play() -> Any:
            with pufferlib.make(Narrow) as vec:
                vec.reset()
                for _ in range(3):
                    vec.step(np.full(1, 3, np.int32))
                return vec.get_attr("seen")

        compiled, portable = on_both(play)
        assert compiled == portable == [[("int", 3)] * 3]


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_observations_of_nothing_are_observations(backend: str) -> None:
    class Nothing(Count):
        observation_space = Box(0, 1, (0,), np.float32)

        def reset(self, **kwargs: Any) -> Any:
            super().reset()
            return np.zeros(0, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(0, np.float32), *super().step(action)[1:]

    def play() -> Any:
        with pufferlib.make(Nothing, backend=backend, num_envs=2) as vec:
            vec.reset()
            return plain(vec.step(np.zeros(2, np.int64)))

    compiled, portable = on_both(play)
    assert compiled == portable


@covering({"name": ["rewards", "terminations", "truncations", "alive"], "how": ["resize", "shape", "freeze"]})
def test_buffers_that_are_changed_in_place_are_seen_alike(name: str, how: str) -> None:
    def err(env: Any) -> None:
        array = getattr(env, name)
        if how == "resize":
            array.resize(0, refcheck=False)
        elif how == "shape":
            array.shape = (1, 1)
        else:
            array.flags.writeable = False

    def play() -> Any:
        seen: list[Any] = []
        with pufferlib.make(lambda: NativeErrs(err)) as vec:
            vec.reset()
            for _ in range(5):
                try:
                    seen.append(plain(vec.step(np.zeros(1, np.int64))))
                except pufferlib.WorkerError as error:
                    return seen, str(error).partition("\n")[0]
        return seen, ""

    compiled, portable = on_both(play)
    assert compiled == portable


@pytest.mark.parametrize("what", ["recv", "async_reset"])
def test_a_wait_for_oneself_is_an_error(what: str) -> None:
    """An environment on serial that waits for its own VecEnv."""
    with pufferlib.make(lambda: Errs(lambda *result: getattr(vec, what)() or result), num_envs=2) as vec:
        vec.reset()
        with pytest.raises((pufferlib.WorkerError, pufferlib.CallError)):
            for _ in range(4):
                vec.step(np.zeros(2, np.int64))


class Interrupting:
    """Is interrupted where it is unpickled, the first time."""

    times = 0

    def __reduce__(self) -> Any:
        return interrupt, ()


def interrupt() -> str:
    Interrupting.times += 1
    if Interrupting.times == 1:
        raise KeyboardInterrupt
    return "read"


@pytest.mark.parametrize("pause_s", [0.0, 0.25])
def test_ctrl_c_among_infos_closes_rather_than_losing_some(pause_s: float) -> None:
    """pause_s: after a pause, and another, rows are received the careful way."""

    class CountWithInfos(Count):
        def step(self, action: Any) -> Any:
            return *super().step(0)[:4], {"mine": Interrupting() if action == 1 else "plain"}

    Interrupting.times = 0
    with pufferlib.make(CountWithInfos, backend="multiprocessing", num_envs=3, num_workers=1) as vec:
        vec.reset()
        time.sleep(pause_s)
        vec.step(np.zeros(3, np.int64))
        time.sleep(pause_s)
        vec.send(np.array([0, 1, 0]))
        with pytest.raises(KeyboardInterrupt):
            vec.recv()
        assert vec.closed
        with pytest.raises(pufferlib.errors.ClosedError, match="closed, because KeyboardInterrupt ended a call"):
            vec.recv(timeout=2)


@pytest.mark.skipif(not _native.available, reason="the portable path has no mailboxes")
def test_close_waits_no_longer_than_it_may_for_a_worker_that_reads_nothing() -> None:
    vec = pufferlib.make(Count, backend="multiprocessing")
    vec.reset()
    vec.send(np.full(1, 60_000))
    time.sleep(0.1)  # it has taken that
    for _ in range(128):  # as many words as its mailbox holds
        vec._ask("get", "tick", None, (), {})
    start_s = time.monotonic()
    with pytest.warns(RuntimeWarning, match="was killed"):
        vec.close(grace_s=0.5)
    assert time.monotonic() - start_s < 100  # seconds; the step takes 600
