"""Every wrong call gets an error that names the values and a way out, and changes nothing.

docs/wrong_calls.md is the table of these cases; ``python tests/failures/test_wrong_calls.py`` writes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from mock_envs import HashEnv, TagEnv

import pufferlib

pytestmark = pytest.mark.beside

DOCS = Path(__file__).parents[2] / "docs" / "wrong_calls.md"
LongEnv = functools.partial(HashEnv, mean_length=10**6)
ShortEnv = functools.partial(TagEnv, num_agents=1, length=1)


class Case(NamedTuple):
    call: str
    """As the table shows it. ``vec`` has 4 environments of one agent, after reset, unless the call says otherwise."""
    run: Callable[[Any], Any]
    error: type[Exception]
    says: str


zeros = np.zeros(4, np.int64)


def make(env: Any = LongEnv, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda vec: pufferlib.make(env, **kwargs)


def twice(vec: pufferlib.VecEnv) -> None:
    vec.send(zeros)
    vec.send(zeros)


def partial_twice(vec: pufferlib.VecEnv) -> None:
    vec.send(zeros[:2], env_ids=[0, 1])
    vec.send(zeros[:2], env_ids=[1, 2])


def partial_then_recv(vec: pufferlib.VecEnv) -> None:
    vec.send(zeros[:2], env_ids=[0, 1])
    vec.recv()


def reset_in_flight(vec: pufferlib.VecEnv) -> None:
    vec.send(zeros)
    vec.async_reset(env_ids=[1])


def fresh(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(vec: Any) -> None:
        with pufferlib.make(LongEnv, num_envs=4) as new:
            method(new)

    return run


def closed(vec: pufferlib.VecEnv) -> None:
    vec.close()
    vec.step(zeros)


def ended(vec: Any) -> None:
    with pufferlib.make(ShortEnv, num_envs=2, autoreset_mode="disabled") as vec:
        vec.reset()
        vec.step(zeros[:2])
        vec.step(zeros[:2])


def partial_reset_of_a_pool(vec: Any) -> None:
    with pufferlib.make(LongEnv, num_envs=4, batch_size=2) as vec:
        vec.reset()
        vec.reset(env_ids=[0])


def continuous(vec: Any) -> None:
    with pufferlib.make("Pendulum-v1", num_envs=2) as vec:
        vec.reset()
        vec.step(np.zeros(2, np.float32))


def nan(vec: Any) -> None:
    with pufferlib.make("Pendulum-v1", num_envs=2) as vec:
        vec.reset()
        vec.step(np.array([[np.nan], [0]], np.float32))


class Unbounded(HashEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Dict(x=Box(0, 1, (2,), np.longdouble))


def different(env_index: int) -> Any:
    return TagEnv(env_index, num_agents=1 + env_index)


CASES = [
    Case("make(env, num_envs=0)", make(num_envs=0), pufferlib.PlanError, "num_envs=0 is impossible; use 1 or more"),
    Case("make(env, num_envs=2.5)", make(num_envs=2.5), pufferlib.PlanError,
         "num_envs=2.5 is not a whole number; use 1 or more"),
    Case("make(env, num_envs=4, num_workers=5)", make(num_envs=4, num_workers=5), pufferlib.PlanError,
         "num_workers=5 is more than num_envs=4; use 1 to 4"),
    Case("make(env, num_envs=64, batch_size=80)", make(num_envs=64, batch_size=80), pufferlib.PlanError,
         "batch_size=80 is more than num_envs=64; use 1 to 64"),
    Case('make(env, backend="threads")', make(backend="threads"), pufferlib.PlanError,
         "backend='threads' is not one of 'serial', 'multiprocessing', 'pool'"),
    Case('make(env, autoreset_mode="sometimes")', make(autoreset_mode="sometimes"), pufferlib.PlanError,
         "autoreset_mode='sometimes' is not one of 'next_step', 'same_step', 'disabled'"),
    Case('make(env, backend="pool", context="thread")', make(backend="pool", context="thread"), pufferlib.PlanError,
         "context='thread' is not one of"),
    Case('make(env, check="never")', make(check="never"), pufferlib.PlanError,
         "check='never' is not 'first' or 'always'"),
    Case('make(env, on_error="ignore")', make(on_error="ignore"), pufferlib.PlanError,
         "on_error='ignore' is not 'raise' or 'restart'"),
    Case("make(env, max_restarts=-1)", make(max_restarts=-1), pufferlib.PlanError,
         "max_restarts=-1 is impossible; use 0 or more, or None for no limit"),
    Case("make(env, step_timeout=0)", make(step_timeout=0), pufferlib.PlanError,
         "step_timeout=0 is impossible; use seconds, more than 0, or None for any time"),
    Case("make(env, seed=-1)", make(seed=-1), pufferlib.PlanError, "seed=-1 is negative; use None, or 0 or more"),
    Case('make(env, backend_kwargs={"address": "auto"})', make(backend_kwargs={"address": "auto"}),
         pufferlib.PlanError, "backend_kwargs has address, but backend 'serial' knows telemetry"),
    Case('make(env, backend_kwargs=["spin"])', make(backend_kwargs=["spin"]), pufferlib.PlanError,
         "backend_kwargs=['spin'] is no dict; backend 'serial' knows telemetry"),
    Case("make(env, env_args=3)", make(env_args=3), pufferlib.PlanError,
         "env_args=3 are no arguments; give a tuple, such as (3,)"),
    Case("make([env, env], num_envs=3)", make([LongEnv, LongEnv], num_envs=3), pufferlib.PlanError,
         "num_envs=3, but env lists 2 creators; leave num_envs out"),
    Case("make(env, num_envs=3, env_kwargs=[{}, {}])", make(num_envs=3, env_kwargs=[{}, {}]), pufferlib.PlanError,
         "env_kwargs lists 2 dicts for 3 environments; give one each"),
    Case("make(env, env_kwargs=[1])", make(env_kwargs=[1]), pufferlib.PlanError,
         "env_kwargs=[1] is no dict and no list of dicts; give one dict, or one each"),
    Case('make("ocean/sqared")', make("ocean/sqared"), pufferlib.RegistryError, "ocean/squared"),
    Case("make(env) with a longdouble leaf", make(Unbounded), pufferlib.WorkerError, "longdouble"),
    Case("make(env) with environments of different agents", make(different, num_envs=2), pufferlib.WorkerError,
         "environments 0 and 1 differ in their number of agents: 1 and 2"),
    Case("vec.send(actions) before reset", fresh(lambda vec: vec.send(zeros)), pufferlib.CallError,
         "there is no batch to act on yet; call reset, or async_reset and recv, first"),
    Case("vec.recv() before reset", fresh(lambda vec: vec.recv()), pufferlib.CallError,
         "0 environments are in flight, and a batch holds 4: recv could never return; "
         "call reset or async_reset first"),
    Case("vec.recv() twice", lambda vec: vec.recv(), pufferlib.CallError,
         "0 environments are in flight, and a batch holds 4: recv could never return; send actions for more"),
    Case(
        "vec.recv() after reset(env_ids=…)",
        lambda vec: (vec.reset(env_ids=[1]), vec.recv()),
        pufferlib.CallError,
        "0 environments are in flight, and a batch holds 4: recv could never return; send actions for more",
    ),
    Case("vec.recv() with too few in flight", partial_then_recv, pufferlib.CallError,
         "2 environments are in flight, and a batch holds 4: recv could never return; send actions for more"),
    Case('vec.recv(timeout="1")', lambda vec: vec.recv(timeout="1"), pufferlib.PlanError,
         "timeout='1' is no number of seconds; use one, or None for no limit"),
    Case('vec.recv(timeout=float("nan"))', lambda vec: vec.recv(timeout=float("nan")), pufferlib.PlanError,
         "timeout=nan is no number of seconds; use one, or None for no limit"),
    Case("vec.send(actions) twice", twice, pufferlib.CallError,
         "the last batch has been answered already; call recv"),
    Case("vec.send(actions, env_ids=…) for one in flight", partial_twice, pufferlib.CallError,
         "cannot send: environment 1 is in flight; name only environments whose rows have been received"),
    Case("vec.send(actions of 3 rows)", lambda vec: vec.send(zeros[:3]), pufferlib.ActionError,
         "actions have shape (3,), expected (4,): 1 row(s) for each of 4 environments"),
    Case("vec.send(float actions) to a Discrete space", lambda vec: vec.send(zeros + 0.5), pufferlib.ActionError,
         "actions have dtype float64, expected int64; convert them"),
    Case("vec.send(zeros - 1) to a Discrete space", lambda vec: vec.send(zeros - 1), pufferlib.ActionError,
         "action -1 of row 0 (environment 0) is not in Discrete(1000); use 0 to 999"),
    Case("vec.send(NaN) to a Box", nan, pufferlib.ActionError,
         "action [nan] of row 0 (environment 0) is not in Box(-2.0, 2.0, (1,), float32): element 0 is nan; use finite "
         "numbers"),
    Case("vec.send(actions of shape (n,)) to a Box of shape (1,)", continuous, pufferlib.ActionError,
         "actions have shape (2,), expected (2, 1)"),
    Case("vec.send(ragged lists)", lambda vec: vec.send([[0], [0, 1], 0, 0]), pufferlib.ActionError,
         "actions cannot be read as an array"),
    Case("vec.send(actions, env_ids=[4])", lambda vec: vec.send(zeros[:1], env_ids=[4]), pufferlib.CallError,
         "env_ids=[4] do not exist; use 0 to 3"),
    Case("vec.send(actions, env_ids=[1, 1])", lambda vec: vec.send(zeros[:2], env_ids=[1, 1]), pufferlib.CallError,
         "env_ids names [1] more than once; name each environment once"),
    Case("vec.async_reset(env_ids=[])", lambda vec: vec.async_reset(env_ids=[]), pufferlib.CallError,
         "env_ids is empty; name at least one environment, or leave it out for all"),
    Case("vec.async_reset(env_ids=…) for one in flight", reset_in_flight, pufferlib.CallError,
         "cannot reset: environment 1"),
    Case("vec.reset(env_ids=…) with batch_size < num_envs", partial_reset_of_a_pool, pufferlib.CallError,
         "use async_reset(env_ids=…), whose rows come by recv"),
    Case("vec.reset(seed=[1, 2])", lambda vec: vec.reset(seed=[1, 2]), pufferlib.PlanError,
         "2 seeds for 4 environments; give one each, or a single number"),
    Case('vec.reset(options="x")', lambda vec: vec.reset(options="x"), pufferlib.PlanError,
         "options='x' is neither a mapping nor a sequence of 4 of them"),
    Case("vec.step(actions) after an episode's end, autoreset_mode=\"disabled\"", ended, pufferlib.CallError,
         "the episodes of environments [0, 1] are over, and autoreset_mode is 'disabled'; "
         "call reset(env_ids=[0, 1]) first"),
    Case('vec.set_attr("x", [1, 2])', lambda vec: vec.set_attr("x", [1, 2]), pufferlib.PlanError,
         "2 values for 4 environments; give one each, or one for all"),
    Case('vec.call("no_such_method")', lambda vec: vec.call("no_such_method"), pufferlib.WorkerError,
         "no_such_method"),
    Case("vec.step(actions) after close", closed, pufferlib.ClosedError, "is closed; make a new one"),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.call)
def test_wrong_call(case: Case, backend: str) -> None:
    with pufferlib.make(LongEnv, backend=backend, num_envs=4, num_workers=2, seed=1) as vec:
        before = vec.reset()[0].copy()
        with pytest.raises(case.error) as caught:
            case.run(vec)
        assert case.says in str(caught.value)
        assert before.shape == (4, 16)
        if vec.closed:
            return
        observations, _ = vec.reset(seed=1)
        assert np.array_equal(observations, before), "a wrong call must change nothing"
        assert Discrete(1000) == vec.single_action_space


WRONG_ARGUMENTS: list[tuple[type[Exception], dict[str, Any]]] = [
    (pufferlib.CallError, {"env_ids": [[0], [1, 2]]}),
    (pufferlib.PlanError, {"seed": np.array(1.5)}),
    (pufferlib.PlanError, {"options": "four"}),
    (pufferlib.PlanError, {"options": [1, 2, 3, 4]}),
    (pufferlib.PlanError, {"seed": 3, "options": "x"}),
    (pufferlib.CallError, {"options": {"generator": (character for character in ())}}),
]


@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
@pytest.mark.parametrize("case", range(len(WRONG_ARGUMENTS)))
def test_a_refused_reset_leaves_what_is_in_flight(case: int, backend: str) -> None:
    """And the seeds that later restarts are to have."""
    error, arguments = WRONG_ARGUMENTS[case]
    if backend == "serial" and error is pufferlib.CallError and "options" in arguments:
        return  # nothing has to be sent anywhere
    with pufferlib.make(LongEnv, backend=backend, num_envs=4, num_workers=2, seed=1) as vec:
        vec.reset()
        vec.send(zeros)
        seeds = vec._recovery.seeds
        with pytest.raises(error):
            vec.async_reset(**arguments)
        assert vec.recv(timeout=30).masks.all()
        assert vec._recovery.seeds is seeds


def table() -> str:
    lines = ["| call | error | the message contains |", "| --- | --- | --- |"]
    for case in CASES:
        says = case.says.replace("|", "\\|")
        lines.append(f"| `{case.call}` | `{case.error.__name__}` | {says} |")
    return "\n".join(lines) + "\n"


def test_the_docs_have_this_table() -> None:
    assert table() in DOCS.read_text()


if __name__ == "__main__":
    DOCS.write_text(
        "# What each wrong call raises\n\n"
        "Each line is a test (`tests/failures/test_wrong_calls.py`, on every backend), which also checks that nothing "
        "has changed.\n"
        "`vec` has 4 environments with one agent and has been reset, unless the call says otherwise.\n"
        "Every error is a `PufferError` and also a builtin error: see `pufferlib/errors.py`.\n\n" + table()
    )


@pytest.mark.parametrize("backend", ["multiprocessing", "pool"])
def test_environments_of_two_workers_differ(backend: str) -> None:
    """Each worker compares its own; the VecEnv compares the workers'."""
    with pytest.raises(pufferlib.SpaceError, match="environments 0 and 1 differ in their number of agents: 1 and 2"):
        pufferlib.make(different, backend=backend, num_envs=2, num_workers=2)
