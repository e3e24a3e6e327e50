"""on_error="restart": only what fails is restarted; every other row is what it would have been."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from matrix import covering
from mock_envs import FaultyEnv, HashEnv
from shadow import Shadow

import pufferlib
from pufferlib.vectorization.driver.dispatcher import Dispatcher

# An error that came behind the last batch is told by close.
pytestmark = [pytest.mark.beside, pytest.mark.filterwarnings("ignore:environment . .* raised in:RuntimeWarning")]

BACKENDS = ("serial", "multiprocessing", "pool")
PARALLEL = ("multiprocessing", "pool")
ARRANGEMENTS = [("serial", 6), ("serial", 4), ("multiprocessing", 6), ("multiprocessing", 4), ("pool", 6), ("pool", 4)]
NUM_WORKERS = 3
STEP_TIMEOUT_S = 0.25
RAISES, KILLS, EXITS, UNPICKLABLE, HANGS = 991, 992, 993, 994, 996


def make(backend: str, **kwargs: Any) -> pufferlib.VecEnv:
    defaults = {"num_envs": 6, "num_workers": NUM_WORKERS, "seed": 5, "on_error": "restart", "max_restarts": None}
    kwargs = {**defaults, **kwargs}
    return pufferlib.make(kwargs.pop("env", FaultyEnv), backend=backend, **kwargs)


def some_actions(random: Any, num: int, **faults: float) -> Any:
    """Draw actions, some of which are faults, each with its probability."""
    actions = random.integers(0, 900, num)
    for name, chance in faults.items():
        actions[random.random(num) < chance] = globals()[name]
    return actions


@covering({"backend,batch_size": ARRANGEMENTS, "mode": ["next_step", "same_step"]})
def test_only_an_environment_that_raises_is_restarted(backend: str, batch_size: int, mode: str) -> None:
    """All rows of all others are bit-identical to what they would have been, given their actions."""
    random = np.random.default_rng(1)
    with make(backend, batch_size=batch_size, autoreset_mode=mode) as vec:
        shadow = Shadow(vec, HashEnv, seed=5, lethal=frozenset({RAISES, EXITS, UNPICKLABLE}))
        shadow.async_reset()
        for _ in range(300):
            num = len(shadow.recv().env_ids)
            shadow.send(some_actions(random, num, RAISES=0.02, EXITS=0.02, UNPICKLABLE=0.01))
        assert shadow.num_crashes == sum(vec.restarts) > 30
        assert shadow.num_steps > 500


@pytest.mark.slow
@covering({"backend": PARALLEL, "batch_size": [6, 4], "mode": ["next_step", "same_step"]})
def test_a_worker_that_dies_takes_only_its_own_environments_with_it(backend: str, batch_size: int, mode: str) -> None:
    """By its own environment's hand, or at any moment by another's."""
    random = np.random.default_rng(2)
    killed = [0, 0, 0]
    with make(backend, batch_size=batch_size, autoreset_mode=mode) as vec:
        shadow = Shadow(
            vec, HashEnv, seed=5, lethal=frozenset({RAISES, KILLS}), may_crash=lambda id: killed[id // 2] > 0
        )
        shadow.async_reset()
        num_suicides = num_kills = 0
        for _ in range(250):
            batch = shadow.recv()
            actions = some_actions(random, len(batch.env_ids), RAISES=0.01, KILLS=0.01)
            for env_id in batch.env_ids[actions == KILLS].tolist():
                killed[env_id // 2] += 1
                num_suicides += 1
            shadow.send(actions)
            if random.random() < 0.05:
                worker = int(random.integers(3))
                killed[worker] += 1
                num_kills += 1
                with contextlib.suppress(ProcessLookupError):  # it has just killed itself
                    os.kill(vec._workers.pids[worker], signal.SIGKILL)
        assert num_suicides > 3 and num_kills > 3
        assert 3 < shadow.num_crashes <= sum(vec.restarts)
        assert vec._scheduler.stuck_reason == ""
        # Once the last death has been noticed, nothing stands in the way of the short way any more, where there is one.
        since_s = time.monotonic()
        while time.monotonic() - since_s < 0.3 or not getattr(vec._fast_path, "clear", True):
            assert time.monotonic() - since_s < 60
            shadow.recv()
            shadow.send(some_actions(random, len(vec.batch.env_ids)))  # type: ignore[union-attr]
        shadow.recv()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_crash_row_names_the_cause(backend: str) -> None:
    with make(backend, env=functools.partial(FaultyEnv, mean_length=1000)) as vec:
        vec.reset()
        vec.step(np.zeros(6, np.int64))
        vec.step(np.array([0, RAISES, 0, 0, 0, 0]))
        batch = vec.batch
        assert batch is not None
        (info,) = [info for info in batch.infos if "restarted" in info]
        assert info["env_id"] == 1
        assert f"environment 1 (worker {0}) raised in step: ValueError: the emulator caught fire" in info["restarted"]
        assert "mock_envs.py" in info["restarted"]
        assert not batch.observations[1].any()
        assert (batch.truncations.tolist(), batch.masks.tolist()) == (
            [False, True, *[False] * 4],
            [True, False, *[True] * 4],
        )
        assert vec.restarts == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("backend", PARALLEL)
@pytest.mark.alone
@pytest.mark.flaky(reruns=4)
def test_a_crash_row_of_a_dead_worker_names_how_it_ended_and_where(backend: str) -> None:
    with make(backend, env=functools.partial(FaultyEnv, mean_length=1000)) as vec:
        vec.reset()
        start_s = time.monotonic()
        vec.step(np.array([0, 0, 0, KILLS, 0, 0]))
        assert time.monotonic() - start_s < 1
        batch = vec.batch
        assert batch is not None
        cause = next(info["restarted"] for info in batch.infos if info.get("env_id") == 3)
        assert "worker 1, with environments 2 to 3, was killed by signal 9 (SIGKILL)" in cause
        assert "while environment 3 was in its step" in cause
        assert batch.masks.tolist()[4:] == [True, True]


@covering({"backend": PARALLEL, "batch_size": [6, 4]})
def test_environments_that_waited_while_their_worker_died_crash_at_their_next_action(
    backend: str, batch_size: int
) -> None:
    with make(backend, env=functools.partial(HashEnv, mean_length=1000), batch_size=batch_size) as vec:
        shadow = Shadow(
            vec, functools.partial(HashEnv, mean_length=1000), seed=5, may_crash=lambda env_id: env_id // 2 == 1
        )
        shadow.async_reset()
        for _ in range(5):
            shadow.send(np.zeros(len(shadow.recv().env_ids), np.int64))
        shadow.recv()
        os.kill(vec._workers.pids[1], signal.SIGKILL)
        deadline = time.monotonic() + 60
        while shadow.num_crashes < 2 and time.monotonic() < deadline:
            shadow.send(np.zeros(batch_size, np.int64))
            shadow.recv()
        assert vec.restarts == [0, 0, 1, 1, 0, 0]


def test_a_reset_sleeps_while_a_new_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in flight, and the starting worker is not asleep yet; the VecEnv must leave it the core."""
    pump, num_pumps = Dispatcher.pump, 0

    def counted(self: Dispatcher, *args: Any, **kwargs: Any) -> bool:
        nonlocal num_pumps
        num_pumps += 1
        return pump(self, *args, **kwargs)

    with make("pool", env=HashEnv, num_envs=2, num_workers=2, context="spawn") as vec:
        vec.reset()
        os.kill(vec._workers.pids[0], signal.SIGKILL)
        with contextlib.suppress(pufferlib.CallError):  # how it is noticed
            vec.call("pid")
        monkeypatch.setattr(Dispatcher, "pump", counted)
        began_s = time.monotonic()
        vec.reset()
        assert num_pumps < 100 + 2000 * (time.monotonic() - began_s)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_row_after_an_episodes_end_is_a_reset_row_even_if_the_worker_died_between(backend: str) -> None:
    """There is no open episode that a crash row would have to end."""
    with make(backend, env=functools.partial(FaultyEnv, mean_length=1), num_envs=2, num_workers=1) as vec:
        vec.reset()
        _, _, terminations, truncations, _ = vec.step(np.zeros(2, np.int64))
        assert (terminations | truncations).all()
        if backend == "serial":
            return
        os.kill(vec._workers.pids[0], signal.SIGKILL)
        with pytest.raises(pufferlib.CallError, match="SIGKILL"):
            vec.call("pid")  # it is noticed before the next action is sent, which a crash row would answer at once
        vec.step(np.zeros(2, np.int64))
        assert not vec.batch.truncations.any()  # type: ignore[union-attr]
        seeds = pufferlib.vectorization.core.plan.Seeds(5, 2)
        assert vec.get_attr("last_seed") == [seeds.draw(env_id, 1) for env_id in range(2)]


class FailsInReset(HashEnv):
    """Raises in every third reset; a file counts them, over all lives."""

    def __init__(self, env_index: int, folder: str, phase: str) -> None:
        self.path, self.phase = f"{folder}/{env_index}", phase
        if phase == "__init__":
            self.count()
        super().__init__(env_index, mean_length=3)

    def count(self) -> None:
        with open(self.path, "a") as file:
            file.write("x")
        if os.path.getsize(self.path) % 3 == 2:
            raise OSError("the level file is gone")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.phase == "reset":
            self.count()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if action == RAISES:
            raise ValueError("again")
        return super().step(action)


@covering({"backend": BACKENDS, "mode": ["next_step", "same_step"], "phase": ["reset", "__init__"]})
def test_failing_resets_and_failing_inits_are_tried_again(backend: str, mode: str, phase: str, tmp_path: Any) -> None:
    creator = functools.partial(FailsInReset, folder=str(tmp_path), phase=phase)
    with make(backend, env=creator, num_envs=4, num_workers=2, autoreset_mode=mode) as vec:
        vec.async_reset()
        causes: list[str] = []
        rows = np.zeros(4, np.int64)
        for step in range(60):
            batch = vec.recv(timeout=30)
            causes += [info["restarted"] for info in batch.infos if "restarted" in info]
            rows += batch.masks
            vec.send(np.full(4, RAISES if phase == "__init__" and step % 5 == 4 else 0))
        assert sum("raised in " + phase in cause for cause in causes) >= 8
        assert (rows > 10).all(), rows


@pytest.mark.parametrize("backend", BACKENDS)
def test_after_max_restarts_it_raises(backend: str) -> None:
    with make(backend, env=functools.partial(FaultyEnv, mean_length=1000), max_restarts=2) as vec:
        vec.reset()
        for life in range(3):
            vec.send(np.array([0, 0, RAISES, 0, 0, 0]))
            if life == 2:
                break
            assert not vec.recv().masks[2]
            vec.step(np.zeros(6, np.int64))
        with pytest.raises(
            pufferlib.WorkerError, match=r"caught fire(.|\n)*environment 2 has been restarted 2 times"
        ) as caught:
            vec.recv()
        assert caught.value.env_id == 2
        with pytest.raises(pufferlib.CallError, match=r"environment 2 failed.*async_reset\(env_ids=\[2\]\)"):
            vec.send(np.zeros(6, np.int64))
        vec.async_reset(env_ids=[2])
        assert vec.recv().masks.tolist() == [True, True, False, True, True, True]
        vec.step(np.zeros(6, np.int64))


@pytest.mark.parametrize("backend", PARALLEL)
def test_after_max_restarts_a_death_raises(backend: str) -> None:
    with make(backend, env=functools.partial(FaultyEnv, mean_length=1000), max_restarts=1) as vec:
        vec.reset()
        vec.step(np.array([0, 0, 0, KILLS, 0, 0]))
        vec.step(np.zeros(6, np.int64))
        vec.step(np.zeros(6, np.int64))
        vec.send(np.array([0, 0, KILLS, 0, 0, 0]))
        with pytest.raises(pufferlib.WorkerError, match=r"SIGKILL.*environments \[2, 3\] have been restarted 1 times"):
            vec.recv()
        vec.reset()
        assert vec.step(np.zeros(6, np.int64))[1].shape == (6,)


@covering({"backend": BACKENDS, "mode": ["next_step", "same_step", "disabled"]})
def test_a_user_may_reset_at_any_time(backend: str, mode: str) -> None:
    random = np.random.default_rng(3)
    with make(backend, autoreset_mode=mode, env=functools.partial(FaultyEnv, mean_length=10_000)) as vec:
        for _ in range(10):
            vec.reset()
            for _ in range(int(random.integers(4))):
                vec.send(some_actions(random, 6, RAISES=0.2))
                vec.recv(timeout=30)
            if random.random() < 0.5:
                vec.send(some_actions(random, 6, RAISES=0.5))
            elif vec.batch.masks.sum() < 6:  # type: ignore[union-attr]
                lost = np.flatnonzero(~vec.batch.masks).tolist()  # type: ignore[union-attr]
                vec.reset(env_ids=lost)
                vec.step(np.zeros(6, np.int64))
                assert vec.batch.masks.all()  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_disabled_mode_too_a_crash_row_is_followed_by_a_reset_row(backend: str) -> None:
    with make(backend, autoreset_mode="disabled", env=functools.partial(FaultyEnv, mean_length=10_000)) as vec:
        vec.reset()
        vec.step(np.array([0, RAISES, 0, 0, 0, 0]))
        observations, *_ = vec.step(np.zeros(6, np.int64))
        shadow = HashEnv(1, mean_length=10_000)
        assert np.array_equal(
            observations[1], shadow.reset(seed=pufferlib.vectorization.core.plan.Seeds(5, 6).draw(1, 1))[0]
        )


# ---------------------------------------------------------------------------------------------------- timeouts


class Slow(HashEnv):
    """Steps take as many milliseconds as the action says, and resets as the option says."""

    def __init__(self, *arguments: Any, **kwargs: Any) -> None:
        super().__init__(*arguments, **kwargs)
        self.action_space = gymnasium.spaces.Discrete(100_000)

    def step(self, action: Any) -> Any:
        time.sleep(action / 1000)
        return super().step(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        time.sleep((options or {}).get("ms", 0) / 1000)
        return super().reset(seed=seed)


@covering({"backend": BACKENDS, "check": ["first", "always"]})  # the latter has every step played the careful way
@pytest.mark.alone
@pytest.mark.flaky(reruns=4)
def test_a_step_that_takes_too_long_crashes(backend: str, check: str) -> None:
    slow = functools.partial(Slow, mean_length=10_000)
    with make(backend, env=slow, num_envs=4, num_workers=2, step_timeout=STEP_TIMEOUT_S, check=check) as vec:
        vec.reset()
        for _ in range(3):
            vec.step(np.full(4, 60))  # twice that in one worker, behind each other
            assert vec.batch.masks.all()  # type: ignore[union-attr]
        start_s = time.monotonic()
        vec.send(np.array([0, 0, 400 if backend == "serial" else 60_000, 0]))
        batch = vec.recv(timeout=30)
        assert time.monotonic() - start_s < 5
        assert batch.masks.tolist()[:3] == [True, True, False]
        cause = next(info["restarted"] for info in batch.infos if info.get("env_id") == 2)
        assert f"step_timeout={STEP_TIMEOUT_S:g} s" in cause and "environment 2" in cause
        for _ in range(3):
            vec.step(np.zeros(4, np.int64))
        assert vec.batch.masks.all()  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.alone
@pytest.mark.flaky(reruns=4)
def test_a_timeout_raises_where_errors_do(backend: str) -> None:
    with make(backend, env=Slow, num_envs=2, num_workers=2, step_timeout=0.1, on_error="raise") as vec:
        vec.reset()
        vec.send(np.array([0, 300 if backend == "serial" else 60_000]))
        with pytest.raises(pufferlib.WorkerError, match=r"step_timeout=0\.1 s") as caught:
            vec.recv()
        assert caught.value.env_id == 1
        vec.reset()
        vec.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.alone
@pytest.mark.flaky(reruns=4)
def test_a_reset_that_takes_too_long_crashes_and_has_a_limit_of_its_own(backend: str) -> None:
    with make(
        backend, env=functools.partial(Slow, mean_length=10_000), num_envs=2, num_workers=2, reset_timeout=0.2
    ) as vec:
        vec.reset()
        vec.step(np.array([500, 0]))  # only resets are limited
        assert vec.batch.masks.all()  # type: ignore[union-attr]
        vec.async_reset(options=[{}, {"ms": 400 if backend == "serial" else 60_000}])
        batch = vec.recv(timeout=30)
        cause = next(info["restarted"] for info in batch.infos if info.get("env_id") == 1)
        assert "reset_timeout=0.2 s" in cause
        vec.step(np.zeros(2, np.int64))
        vec.step(np.zeros(2, np.int64))
        assert vec.batch.masks.all()  # type: ignore[union-attr]


class SlowEnd(gymnasium.Env[Any, Any]):
    """Ends where its action is not 0, and then takes as many milliseconds to reset."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(10**6)
    ms = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        time.sleep(self.ms / 1000)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.ms = action
        return np.zeros(1, np.float32), 1.0, bool(action), False, {}


@pytest.mark.slow
@pytest.mark.parametrize("backend", PARALLEL)
@pytest.mark.flaky(reruns=4)
def test_a_reset_within_a_step_has_the_limit_of_resets(backend: str) -> None:
    with make(
        backend,
        env=SlowEnd,
        num_envs=2,
        num_workers=2,
        autoreset_mode="same_step",
        step_timeout=0.3,
        reset_timeout=1.2,
    ) as vec:
        vec.reset()
        for actions in ([0, 0], [0, 1], [600, 0], [0, 0]):
            vec.step(np.array(actions))
            assert vec.batch.masks.all()  # type: ignore[union-attr]
        vec.send(np.array([60_000, 0]))
        batch = vec.recv(timeout=30)
        cause = next(info["restarted"] for info in batch.infos if info.get("env_id") == 0)
        assert "reset_timeout=1.2 s" in cause and batch.masks.tolist() == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize("backend", PARALLEL)
@pytest.mark.alone
@pytest.mark.flaky(reruns=4)
def test_the_learners_own_time_does_not_count(backend: str) -> None:
    with make(
        backend, env=functools.partial(Slow, mean_length=10_000), num_envs=2, num_workers=2, step_timeout=0.4
    ) as vec:
        vec.reset()
        vec.send(np.array([900, 0]))
        time.sleep(0.85)
        assert vec.recv().masks.all()


@pytest.mark.alone
@pytest.mark.flaky(reruns=4)
def test_a_pool_that_never_waits_notices_a_step_that_hangs() -> None:
    with make(
        "pool",
        env=functools.partial(Slow, mean_length=10_000),
        num_envs=4,
        num_workers=2,
        batch_size=1,
        step_timeout=0.3,
    ) as vec:
        vec.async_reset()
        hung, deadline = None, time.monotonic() + 20
        while time.monotonic() < deadline:
            batch = vec.recv(timeout=30)
            env_id = int(batch.env_ids[0])
            if any("step_timeout" in info.get("restarted", "") for info in batch.infos):
                assert hung is not None and env_id // 2 == hung // 2
                return
            slow = hung is None and batch.masks.all()
            hung = env_id if slow else hung
            vec.send(np.array([60_000 if slow else 1]))
        pytest.fail("nobody noticed")


@covering({"backend": PARALLEL, "busy": [True, False]})
@pytest.mark.alone
@pytest.mark.flaky(reruns=4)
def test_a_worker_that_was_stopped_is_noticed_whatever_it_did(backend: str, busy: bool) -> None:
    slow = functools.partial(Slow, mean_length=10_000)
    with make(backend, env=slow, num_envs=4, num_workers=2, step_timeout=0.3) as vec:
        vec.reset()
        if busy:
            vec.send(np.array([0, 0, 100, 0]))
            time.sleep(0.05)
        os.kill(vec._workers.pids[1], signal.SIGSTOP)
        if not busy:
            vec.send(np.zeros(4, np.int64))
        assert vec.recv(timeout=20).masks.tolist() == [True, True, False, False]
        vec.step(np.zeros(4, np.int64))
        vec.step(np.zeros(4, np.int64))
        assert vec.batch.masks.all()  # type: ignore[union-attr]


def test_a_parent_that_was_stopped_kills_nobody() -> None:
    """Waking up after a suspension, it finds that long has passed; its workers were suspended as well."""
    from pufferlib.vectorization.core import step_watchdog

    words = np.array([2, 0])
    seen = step_watchdog.StepWatchdog(words, 2, step_watchdog.Limits(1.0, None))
    assert not seen.look(lambda worker: None)
    for _ in range(3):
        seen._looked_s -= 1000
        assert not seen.look(lambda worker: None)
    for _ in range(3):
        seen._looked_s -= 1000
    seen._taken_s[0] = 0.9
    assert seen.look(lambda worker: None) == [(0, "the step of environment 0 took longer than step_timeout=1 s")]


# --------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(("argument", "value"), [("on_error", "ignore"), ("on_error", None), ("max_restarts", -1),
                                                 ("max_restarts", 1.5), ("max_restarts", True), ("step_timeout", 0),
                                                 ("step_timeout", "1"), ("reset_timeout", float("nan")),
                                                 ("reset_timeout", float("inf")), ("reset_timeout", True)])  # fmt: skip
def test_impossible_arguments_are_named(argument: str, value: Any) -> None:
    with pytest.raises(pufferlib.PlanError, match=f"{argument}={value!r}"):
        pufferlib.make(HashEnv, **{argument: value})


def test_counts_may_be_numpys() -> None:
    kwargs = {"worker_threads": np.int64(1), "spin": np.int32(0)}
    with make("pool", max_restarts=np.int16(1), batch_size=np.int64(2), backend_kwargs=kwargs) as vec:
        vec.reset()
        assert type(vec._workers.backend.spin) is int


@pytest.mark.parametrize(
    ("argument", "value"),
    [("worker_threads", 0), ("worker_threads", 1.5), ("worker_threads", True), ("spin", -1), ("spin", np.bool_(True))],
)
def test_impossible_settings_of_processes_are_named(argument: str, value: Any) -> None:
    with pytest.raises(pufferlib.PlanError, match=re.escape(f"{argument}={value!r}")):
        make("pool", backend_kwargs={argument: value})


@pytest.mark.parametrize("backend", PARALLEL)
def test_calls_reach_environments_that_are_being_restarted(backend: str) -> None:
    with make(backend, env=functools.partial(FaultyEnv, mean_length=1000)) as vec:
        vec.reset()
        os.kill(vec._workers.pids[1], signal.SIGKILL)
        with pytest.raises(pufferlib.CallError, match=r"worker 1, .*SIGKILL.*call again"):
            vec.call("pid")
        assert vec.call("pid")[2] == vec._workers.pids[1]
        vec.step(np.zeros(6, np.int64))  # crash rows of two
        vec.step(np.zeros(6, np.int64))
        vec.step(np.zeros(6, np.int64))
        assert vec.batch.masks.all()  # type: ignore[union-attr]


class Fickle(HashEnv):
    """Has another observation space from its second life on, and leaves a line in a file when it is closed."""

    def __init__(self, env_index: int, folder: str) -> None:
        super().__init__(env_index, mean_length=1000)
        self.path = Path(folder) / str(env_index)
        if self.path.exists():
            self.observation_space = gymnasium.spaces.Box(0, 255, (17,), np.uint8)

    def step(self, action: Any) -> Any:
        if action == KILLS:
            self.close()
            os.kill(os.getpid(), signal.SIGKILL)
        if action == RAISES:
            raise ValueError("enough")
        return super().step(action)

    def close(self) -> None:
        with self.path.open("a") as file:
            file.write("closed\n")


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_environment_that_comes_back_as_another_is_refused_and_closed(backend: str, tmp_path: Path) -> None:
    with make(
        backend, env=functools.partial(Fickle, folder=str(tmp_path)), num_envs=2, num_workers=1, max_restarts=3
    ) as vec:
        vec.reset()
        vec.step(np.array([0, RAISES]))
        causes = [info["restarted"] for info in vec.batch.infos if "restarted" in info]  # type: ignore[union-attr]
        assert "ValueError: enough" in causes[0]
        for life in range(2):
            vec.step(np.zeros(2, np.int64))
            (cause,) = [info["restarted"] for info in vec.batch.infos if "restarted" in info]  # type: ignore[union-attr]
            assert "differ in their observations: ((16,), dtype('uint8')) and ((17,), dtype('uint8'))" in cause
            assert (tmp_path / "1").read_text() == "closed\n" * (2 + life)
        vec.send(np.zeros(2, np.int64))
        with pytest.raises(pufferlib.WorkerError, match="differ in their observations"):
            vec.recv()
    assert (tmp_path / "0").read_text() == "closed\n"


def test_several_agents_crash_together() -> None:
    from mock_envs import HashPopulation

    class Faulty(HashPopulation):
        def step(self, actions: Any) -> Any:
            if any(int(action) == 3 and self.tick > 2 for action in actions.values()):
                raise ValueError("no")
            return super().step(actions)

    with make("pool", env=Faulty, num_envs=4, num_workers=2, batch_size=2, wrap_kwargs={"max_agents": 3}) as vec:
        vec.async_reset()
        random, crashes = np.random.default_rng(0), 0
        for _ in range(200):
            batch = vec.recv(timeout=30)
            n = vec.agents_per_env
            for info in batch.infos:
                if "restarted" in info:
                    crashes += 1
                    env_index = batch.env_ids.tolist().index(info["env_id"])
                    rows = slice(env_index * n, (env_index + 1) * n)
                    assert batch.truncations[rows].all() and not batch.masks[rows].any()
                    assert not batch.observations[rows].any() and not batch.rewards[rows].any()
                    assert batch.agent_ids[rows].tolist() == list(range(info["env_id"] * n, (info["env_id"] + 1) * n))
            vec.send(random.integers(0, 9, len(batch.masks)))
        assert crashes > 5


def test_the_examples_in_the_docs_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == page.count("```python") == 2
    names: dict[str, Any] = {}
    for program, _ in blocks:
        exec(compile(program, "failures.md", "exec"), names)
    assert capsys.readouterr().out == "".join(printed for _, printed in blocks)


@covering({"backend": PARALLEL, "moment": ["as one starts", "as one ends"]})
def test_ctrl_c_while_a_process_starts_or_ends_leaves_none(
    backend: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pufferlib.vectorization.processes import start

    name = "__init__" if moment == "as one starts" else "end"
    original = getattr(start.Process, name)

    def interrupted(process: Any, *arguments: Any) -> Any:
        monkeypatch.undo()
        if name == "__init__":
            original(process, *arguments)
        signal.raise_signal(signal.SIGINT)
        return original(process, *arguments) if name == "end" else None

    before = set(psutil.Process().children())
    with make(backend) as vec:
        vec.reset()
        monkeypatch.setattr(start.Process, name, interrupted)
        os.kill(vec._workers.pids[1], signal.SIGKILL)
        with pytest.raises(KeyboardInterrupt):
            for _ in range(1000):
                vec.step(np.zeros(6, np.int64))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert vec.closed
        assert set(psutil.Process().children()) <= before


@pytest.mark.parametrize("backend", PARALLEL)
def test_ctrl_c_is_not_for_a_worker_that_has_no_group_of_its_own_yet(
    backend: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    setpgid = os.setpgid

    def interrupted(*arguments: int) -> None:
        signal.raise_signal(signal.SIGINT)
        setpgid(*arguments)

    monkeypatch.setattr(os, "setpgid", interrupted)  # which only workers call
    with make(backend, context="fork", on_error="raise") as vec:
        vec.reset()
        assert vec.step(np.zeros(6, np.int64))[1].shape == (6,)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("backend", PARALLEL)
def test_restarts_are_counted_by_whose_fault_they_were(backend: str) -> None:
    with make(backend, num_envs=4, num_workers=2, step_timeout=STEP_TIMEOUT_S) as vec:
        vec.reset()
        for fault in (RAISES, KILLS, HANGS):
            vec.step(np.array([fault, 1, 1, 1]))
            vec.reset()
        assert vec.restarts == [3, 2, 0, 0] and vec.failures == ([3, 0, 0, 0], [0] * 4)
        (worker,) = {*vec.call("pid", env_ids=[2, 3])}
        os.kill(worker, signal.SIGKILL)  # while it waits
        vec.step(np.ones(4, np.int64))
        assert vec.restarts == [3, 2, 1, 1] and vec.failures == ([3, 0, 0, 0], [0, 0, 1, 1])
