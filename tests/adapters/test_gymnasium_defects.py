"""What the Gymnasium face does when things go wrong or take their time.

Each defect of Gymnasium's vector environments that the face must not have is a test that takes the vectorizer as an
argument, and runs against those of Gymnasium 1.4 too, as a strict xfail.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium_peers import HAS_MODES, KINDS, contenders, ours, quiet, running
from matrix import covering
from mock_envs import HashEnv, TagEnv, fails_in_init

import pufferlib
from pufferlib.adapters.gymnasium_vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, WaitTimeout

pytestmark = pytest.mark.beside

DISABLED: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}


class Counter(gymnasium.Env[Any, Any]):
    """Observes its tick; the reward is the action; over after ``length`` ticks. Actions from 7 on misbehave."""

    observation_space = spaces.Discrete(100)
    action_space = spaces.Discrete(10)

    def __init__(self, length: int = 100, gate: Path | None = None, slow_reset: bool = False) -> None:
        self.length, self.gate, self.slow_reset = length, gate, slow_reset

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick = 0
        if self.slow_reset:
            self.wait(0)
        return 0, {}

    def wait(self, answer: int) -> int:
        while self.gate is not None and not self.gate.exists():
            time.sleep(0.002)
        return answer

    def step(self, action: Any) -> Any:
        if action == 9:
            self.wait(0)
        if action == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 7:
            raise ValueError("only 50% done")
        self.tick += 1
        return self.tick, float(action), self.tick == self.length, False, {}


# -------------------------------------------------------------------------------------- defects of Gymnasium 1.4


@contenders(broken={"gymnasium-async-pipes": "the worker's flag survives an explicit reset, and the action is eaten"})
def test_a_reset_after_an_end_leaves_nothing_to_reset(vectorizer: Any) -> None:
    mode = {"autoreset_mode": AutoresetMode.NEXT_STEP} if HAS_MODES else {}
    with running(vectorizer, [functools.partial(Counter, length=2)] * 2, **mode) as envs:
        envs.reset()
        envs.step([1, 2])
        assert envs.step([1, 2])[2].all()
        envs.reset()
        observations, rewards, *_ = envs.step([3, 4])
        assert (observations.tolist(), rewards.tolist()) == ([1, 1], [3, 4])


@contenders(broken=dict.fromkeys(["gymnasium-async", "gymnasium-async-pipes"], "only Sync refuses; Async steps on"))
def test_an_episode_that_is_over_cannot_be_stepped_where_autoreset_is_disabled(vectorizer: Any) -> None:
    with running(vectorizer, [functools.partial(Counter, length=1)] * 2, **DISABLED) as envs:
        envs.reset()
        envs.step([1, 2])
        with pytest.raises((pufferlib.errors.CallError, AssertionError)):
            envs.step([3, 4])


popped = dict.fromkeys(["gymnasium-sync", "gymnasium-async", "gymnasium-async-pipes"], "pops it from the caller's dict")


@contenders(broken=popped)
def test_reset_leaves_the_callers_options_as_they_are(vectorizer: Any) -> None:
    with running(vectorizer, [Counter] * 2, **(DISABLED if HAS_MODES else {})) as envs:
        envs.reset()
        options = {"reset_mask": np.array([True, False]), "level": 3}
        envs.reset(options=options)
        assert set(options) == {"reset_mask", "level"}


if HAS_MODES:

    @contenders(broken=popped)
    def test_a_partial_reset_keeps_the_statistics_of_the_others(vectorizer: Any) -> None:
        with running(vectorizer, [Counter] * 2, **DISABLED) as envs:
            wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
            wrapped.reset()
            wrapped.step([1, 2])
            wrapped.reset(options={"reset_mask": np.array([True, False])})
            assert wrapped.episode_lengths.tolist() == [0, 1]


dead = dict.fromkeys(["gymnasium-async", "gymnasium-async-pipes"], "a bare EOFError or BrokenPipeError")


@contenders(broken=dead, only="async")
def test_a_killed_worker_is_an_error_that_says_so(vectorizer: Any) -> None:
    with running(vectorizer, [Counter] * 3) as envs:
        envs.reset()
        with quiet(), pytest.raises(Exception, match="SIGKILL") as caught:
            envs.step([0, 0, 8])
        assert isinstance(caught.value, pufferlib.WorkerError)
        envs.reset()
        assert envs.step([1, 2, 3])[1].tolist() == [1, 2, 3]


lost = dict.fromkeys(
    ["gymnasium-async", "gymnasium-async-pipes"], "forgets that it waits; the next call reads the rest"
)


@covering({"vectorizer": contenders(broken=lost, only="async").args[1], "call": ["reset", "step", "call"]})
def test_a_wait_that_timed_out_may_be_tried_again(vectorizer: Any, call: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    env_fns = [Counter, functools.partial(Counter, gate=gate, slow_reset=True)]
    with running(vectorizer, env_fns) as envs:
        if call == "reset":
            envs.reset_async()
        else:
            gate.touch()
            envs.reset()
            gate.unlink()
            envs.step_async([4, 9]) if call == "step" else envs.call_async("wait", 5)
        wait = getattr(envs, f"{call}_wait")
        for _ in range(2):
            with pytest.raises(multiprocessing.TimeoutError) as caught:
                wait(timeout=0.02)
            assert f"`{call}_wait`" in str(caught.value)
        gate.touch()
        result = wait(timeout=60)
        assert result == (5, 5) if call == "call" else result[0].tolist() == ([0, 0] if call == "reset" else [1, 1])
        assert envs.step([1, 2])[1].tolist() == [1, 2]  # and not what was left of the last call


class Custom(spaces.Space[str]):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom)


dynamic = "has no fixed size, so shared memory does not take it"


@covering({
    "vectorizer": contenders(broken={"gymnasium-async": dynamic}, only="async").args[1],
    "name": ["Graph", "Sequence", "custom"],
})  # fmt: skip
def test_spaces_without_a_size_work_whatever_shared_memory_is(vectorizer: Any, name: str) -> None:
    class Env(Counter):
        observation_space = {
            "Graph": spaces.Graph(spaces.Box(-1, 1, (2,)), None),
            "Sequence": spaces.Sequence(spaces.Discrete(4)),
            "custom": Custom(None, None),
        }[name]

        def sample(self) -> Any:
            return "x" * (self.tick + 1) if name == "custom" else self.observation_space.sample()

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return self.sample(), {}

        def step(self, action: Any) -> Any:
            return self.sample(), *super().step(action)[1:]

    with running(vectorizer, [Env] * 2) as envs:
        for observations in (envs.reset()[0], envs.step([0, 0])[0]):
            assert isinstance(observations, tuple) and len(observations) == 2
            assert name == "custom" or all(observation in envs.single_observation_space for observation in observations)


percent = dict.fromkeys(["gymnasium-async", "gymnasium-async-pipes"], "takes the % in a message for a format")


@contenders(broken=percent)
def test_an_environments_own_exception_is_raised(vectorizer: Any) -> None:
    with running(vectorizer, [Counter] * 3) as envs:
        envs.reset()
        with quiet(), pytest.raises(ValueError, match="only 50% done") as caught:
            envs.step([0, 7, 0])
        assert type(caught.value) is ValueError
        if not type(envs).__module__.startswith("gymnasium"):
            cause = caught.value.__cause__
            assert isinstance(cause, pufferlib.WorkerError) and cause.env_id == 1
            with pytest.raises(pufferlib.errors.CallError, match="environment 1 failed"):
                envs.step([1, 2, 3])
            envs.reset()
            assert envs.step([1, 2, 3])[1].tolist() == [1, 2, 3]


# ----------------------------------------------------------------------------------------------- ours alone


def test_the_errors_of_all_environments_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with running(AsyncVectorEnv, [Counter] * 3) as envs:
        envs.reset()
        with warnings.catch_warnings(record=True) as logged, pytest.raises(ValueError, match="only 50% done"):
            warnings.simplefilter("always")
            envs.step([7, 0, 7])
        text = "".join(str(record.message) for record in logged) + capsys.readouterr().err  # where Gymnasium 0.29 logs
        assert all(f"Received the following error from Worker-{env_id}" in text for env_id in (0, 2))
        assert text.count("ValueError: only 50% done") == 2


def test_an_error_does_not_wait_for_slow_environments(tmp_path: Path) -> None:
    with running(AsyncVectorEnv, [Counter, functools.partial(Counter, gate=tmp_path / "gate")]) as envs:
        envs.reset()
        with quiet(), pytest.raises(ValueError, match="only 50% done"):
            envs.step([7, 9])  # the gate never opens
        with quiet():
            envs.close(terminate=True)


PENDING = {
    "reset": lambda envs: envs.reset_async(),
    "step": lambda envs: envs.step_async([0, 0]),
    "call": lambda envs: envs.call_async("length"),
}


@covering({"vectorizer": KINDS, "pending": [*PENDING]})
def test_calls_out_of_order_are_refused_and_change_nothing(vectorizer: Any, pending: str) -> None:
    with running(vectorizer, [Counter] * 2) as envs:
        envs.reset()
        for name in PENDING:
            with pytest.raises(NoAsyncCallError, match=f"Calling `{name}_wait` without any prior call") as early:
                getattr(envs, f"{name}_wait")()
            assert early.value.name == name
        PENDING[pending](envs)
        refused: list[Callable[[Any], Any]] = [*PENDING.values(), lambda envs: envs.set_attr("length", 5)]
        for call in refused:
            with pytest.raises(AlreadyPendingCallError, match=f"pending call to `{pending}`") as twice:
                call(envs)
            assert twice.value.name == pending
        for name in set(PENDING) - {pending}:
            with pytest.raises(NoAsyncCallError):
                getattr(envs, f"{name}_wait")()
        getattr(envs, f"{pending}_wait")()
        assert envs.step([1, 2])[1].tolist() == [1, 2]
        envs.close()
        for call in (*refused, lambda envs: envs.render(), lambda envs: envs.reset(), lambda envs: envs.step([0, 0])):
            with pytest.raises(ClosedEnvironmentError):
                call(envs)
        envs.close()


@covering({"pending": [*PENDING], "how": [{}, {"timeout": 0.01}, {"terminate": True}]})
def test_close_while_a_call_is_pending(pending: str, how: dict[str, Any]) -> None:
    envs = AsyncVectorEnv([Counter] * 2)
    envs.reset()
    PENDING[pending](envs)
    with pytest.warns(UserWarning, match=f"Calling `close` while waiting for a pending call to `{pending}`"):
        envs.close(**how)
    assert envs.closed


def test_close_does_not_wait_for_what_hangs(tmp_path: Path) -> None:
    envs = AsyncVectorEnv([functools.partial(Counter, gate=tmp_path / "gate")])
    envs.reset()
    envs.step_async([9])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        envs.close(timeout=0.01)
    assert [warning.category for warning in caught] == [
        UserWarning
    ]  # and none that a process was killed: that was asked for


def mask(*values: Any) -> dict[str, Any]:
    return {"options": {"reset_mask": np.array(values)}}


@covering({"vectorizer": KINDS, "run,error,says": [
    (lambda envs: envs.reset(**mask(True)), ValueError, r"must have shape `\(2,\)`, got \(1,\)"),
    (lambda envs: envs.reset(**mask(1, 0)), TypeError, "must have `dtype=np.bool_`, got int64"),
    (lambda envs: envs.reset(**mask(False, False)), ValueError, "at least one"),
    (lambda envs: envs.reset(options={"reset_mask": [True, False]}), TypeError, "must be a numpy array"),
    (lambda envs: envs.reset(seed=-1), ValueError, "seed=-1 is negative"),
    (lambda envs: envs.reset(seed="x"), ValueError, "2 seeds|not a whole number|1 seeds"),
    (lambda envs: envs.step([1]), ValueError, "1 actions for 2 environments"),
    (lambda envs: envs.step([1, 2, 3]), ValueError, "3 actions for 2 environments"),
    (lambda envs: envs.step(0), TypeError, "0"),
]})  # fmt: skip
def test_wrong_arguments_are_refused_and_change_nothing(
    vectorizer: Any, run: Callable[[Any], Any], error: type[Exception], says: str
) -> None:
    with running(vectorizer, [Counter] * 2) as envs:
        envs.reset()
        envs.step([1, 2])
        with pytest.raises(error, match=says):
            run(envs)
        observations, rewards, *_ = envs.step([3, 4])
        assert (observations.tolist(), rewards.tolist()) == ([2, 2], [3, 4])


@ours
def test_a_partial_reset_comes_after_a_whole_one(vectorizer: Any) -> None:
    with running(vectorizer, [Counter] * 2) as envs:
        with pytest.raises(pufferlib.errors.CallError, match="before the first reset"):
            envs.reset(**mask(True, False))
        envs.reset(**mask(True, True))
        assert envs.step([1, 2])[1].tolist() == [1, 2]


@ours
def test_after_an_error_a_reset_brings_all_back(vectorizer: Any) -> None:
    with running(vectorizer, [Counter] * 3) as envs:
        for partial in ([1], [1, 2], None):
            envs.reset()
            with quiet(), pytest.raises(ValueError, match="only 50% done"):
                envs.step([0, 7, 7])
            if partial == [1]:  # environment 2 has failed too
                with quiet(), pytest.raises((pufferlib.errors.CallError, ValueError)):
                    envs.reset(**mask(False, True, False))
            if partial == [1, 2]:
                with quiet():
                    envs.reset(**mask(False, True, True))
                assert envs.step([1, 2, 3])[0].tolist() == [2, 1, 1]
        with quiet():
            envs.reset()
        assert envs.step([1, 2, 3])[1].tolist() == [1, 2, 3]


@pytest.mark.parametrize(("kwargs", "error", "says"), [
    (dict(worker=print), ValueError, "worker=.* cannot be honoured"),
    (dict(max_concurrency=2.5), ValueError, "`max_concurrency` must be an integer or None, got 2.5"),
    (dict(max_concurrency=0), ValueError, "`max_concurrency` must be a positive or None, got 0"),
    (dict(observation_mode="alike"), ValueError, "Invalid `observation_mode`, expected: 'same' or 'different'"),
    (dict(observation_mode=(1, 2)), TypeError, "not a pair of spaces"),
    (dict(autoreset_mode="Never"), ValueError, "Never"),
    (dict(context="thread"), ValueError, "context='thread' is not one of"),
])  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(kwargs: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        AsyncVectorEnv([Counter] * 2, **kwargs)


@ours
def test_spaces_that_differ_are_refused(vectorizer: Any) -> None:
    class Other(Counter):
        observation_space = spaces.Discrete(50)

    class Wider(Counter):
        observation_space = spaces.Box(0, 1, (3,))

    class OtherActions(Counter):
        action_space = spaces.Discrete(4)

    for env_fns in ([Counter, Other], [Counter, Wider], [Counter, OtherActions]):
        with pytest.raises(RuntimeError, match="differ|are not equivalent"):
            vectorizer(env_fns)


@ours
def test_an_exception_of_a_creator_is_raised(vectorizer: Any) -> None:
    with pytest.raises(RuntimeError, match="no such ROM") as caught:
        vectorizer([functools.partial(fails_in_init, 0), functools.partial(fails_in_init, 1)])
    assert type(caught.value) is RuntimeError and isinstance(caught.value.__cause__, pufferlib.WorkerError)


@pytest.mark.parametrize(("max_concurrency", "count"), [(None, 3), (2, 2), (9, 3)])
def test_max_concurrency_is_the_number_of_processes(max_concurrency: Any, count: int) -> None:
    class Tell(Counter):
        def pid(self) -> int:
            return os.getpid()

    with running(AsyncVectorEnv, [Tell] * 3, max_concurrency=max_concurrency) as envs:
        assert len(set(envs.call("pid"))) == count


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_start_methods_take_local_classes_and_large_spaces(context: str) -> None:
    class Large(Counter):
        observation_space = spaces.Box(0, 255, (256, 256, 3), np.uint8)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.zeros((256, 256, 3), np.uint8), {}

    with running(AsyncVectorEnv, [lambda: Large()], context=context, shared_memory=False, daemon=False) as envs:
        assert envs.reset()[0].shape == (1, 256, 256, 3)


@ours
def test_a_puffer_env_of_one_agent_is_taken_and_one_of_several_refused(vectorizer: Any) -> None:
    with running(vectorizer, [functools.partial(TagEnv, index, num_agents=1) for index in range(2)]) as envs:
        assert envs.reset()[0][:, 0].tolist() == [0, 1]
    with pytest.raises(
        pufferlib.WorkerError, match=r"TagEnv has several agents.*use .*agents=\"rows\"\), or pufferlib\.make"
    ):
        vectorizer([TagEnv])


def test_sync_and_async_go_the_same_way() -> None:
    env_fns = [functools.partial(HashEnv, index) for index in range(4)]
    with running(SyncVectorEnv, env_fns) as one, running(AsyncVectorEnv, env_fns) as other:
        assert isinstance(WaitTimeout("x"), TimeoutError)
        first, second = one.reset(seed=1)[0], other.reset(seed=1)[0]
        for _ in range(40):
            assert np.array_equal(first, second)
            actions = first[:, 0] % 7
            first, second = one.step(actions)[0], other.step(actions)[0]
