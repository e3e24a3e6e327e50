"""The conformance suite: each fault is found by the check of its name and by no other; good environments pass."""

from __future__ import annotations

import datetime
import faulthandler
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import broken_envs
import hypothesis
import numpy as np
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from mock_envs import HashEnv, TagEnv
from pettingzoo import ParallelEnv

import pufferlib
from pufferlib.errors import PlanError
from pufferlib.testing import CHECKS, Report, check_env, isolation
from pufferlib.testing.clocks import fake_clock
from pufferlib.testing.faults import find_fault
from pufferlib.testing.isolation import check_isolated
from pufferlib.testing.report import Result

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
# Starts processes, which takes a second; the faults that these find are looked for separately.
IN_PROCESSES = ("pickles", "processes", "backends", "step_after_end")
HERE = [name for name in CHECKS if name not in IN_PROCESSES]


def verdicts(report: Report) -> dict[str, str]:
    """The checks that had something to say against an environment."""
    return {result.name: result.status for result in report if result.status in ("failed", "warning")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "creator",
    [
        broken_envs.Walk,
        pytest.param(HashEnv, marks=pytest.mark.long),
        pytest.param("ocean/squared", marks=pytest.mark.long),
    ],
)
def test_a_good_environment_passes_all(creator: Any) -> None:
    report = check_env(creator, num_steps=200)
    assert not verdicts(report), str(report)
    assert [result.name for result in report] == list(CHECKS)
    assert {result.name for result in report if result.status == "not applicable"} <= {"agents"}, str(report)


@pytest.mark.parametrize(
    ("creator", "name", "status", "says"),
    [
        (broken_envs.DrawsGlobally, "global_generators", "failed", "of random (in reset, step)"),
        (broken_envs.SeedsGlobally, "global_generators", "failed", "numpy.random (in reset, step)"),
        (broken_envs.DrawsFromTorch, "global_generators", "failed", "torch (in reset, step)"),
        (broken_envs.Float64, "types", "warning", "observation.position is float64, and its space says float32"),
        (broken_envs.LongerShape, "types", "warning", "has shape (1, 2), and its space says (2,)"),
        (broken_envs.WrongShape, "types", "failed", "observation.position should be float32 of shape (2,)"),
        (broken_envs.Words, "types", "failed", "observation.side should be int64 of shape (), and is str 'left'"),
        (broken_envs.OutOfRange, "ranges", "failed", "and its space goes from -1.0 to 1.0"),
        (broken_envs.LiveViews, "live_buffers", "warning", "return a copy"),
        (broken_envs.Unseeded, "seeding", "failed", "observations differ at the first reset"),
        (broken_envs.ForgetsSeed, "seeding", "failed", "at a reset without seed; go on with the same generator"),
        (broken_envs.SeedsByClock, "clock", "failed", "seed from reset(seed) alone"),
        (broken_envs.EndsByClock, "clock", "failed", "count steps instead of seconds"),
        (broken_envs.Leftovers, "reseeding", "warning", "reset all state in reset(seed)"),
        (broken_envs.NoChance, "other_seeds", "warning", "right if nothing is random"),
        (broken_envs.InfiniteReward, "outcomes", "failed", "reward is inf, 3 steps into episode 1"),
        (broken_envs.LockInInfo, "outcomes", "failed", 'info["lock"] cannot travel to another process'),
        (broken_envs.Raises, "runs", "failed", "ZeroDivisionError: the walker tripped (broken_envs.py, line"),
        (broken_envs.CloseRaises, "close", "failed", "RuntimeError: there is no window to close"),
        (broken_envs.CloseTwiceRaises, "close", "warning", "close() a second time raises AttributeError"),
        (lambda: 3, "wraps", "failed", "expected a Gymnasium or PettingZoo environment"),
        (lambda: 1 / 0, "make", "failed", "making it raises ZeroDivisionError: division by zero (test_testing.py"),
    ],
)
def test_a_fault_is_found_by_its_check_alone(creator: Any, name: str, status: str, says: str) -> None:
    report = check_env(creator, num_steps=100, only=HERE)
    assert verdicts(report) == {name: status}, str(report)
    assert says in report[name].text
    assert report.passed == (status == "warning")


def test_collections_that_hypothesis_times_are_nothing_that_an_environment_does() -> None:
    """Once it has run, it looks at a clock in each, for good."""
    hypothesis.given(hypothesis.strategies.none())(lambda _: None)()
    thresholds = gc.get_threshold()
    gc.set_threshold(50)
    try:
        assert verdicts(check_env(broken_envs.SeedsByClock, num_steps=100, only=HERE)) == {"clock": "failed"}
    finally:
        gc.set_threshold(*thresholds)


def holds_a_lock() -> Callable[[], Any]:
    lock = threading.Lock()
    return lambda: lock and broken_envs.Walk()


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.long)], ids=["alone", "among all"])
@pytest.mark.parametrize(
    ("creator", "name", "status", "says"),
    [
        (broken_envs.HashOrder, "processes", "failed", "it depends on the order of a set or on hash()"),
        pytest.param(
            broken_envs.ProcessNumber,
            "processes",
            "failed",
            "something that differs between them",
            marks=pytest.mark.long,
        ),
        (broken_envs.SharesState, "backends", "failed", "environments in one process share something"),
        (broken_envs.DiesAfterEnd, "step_after_end", "warning", "exit code 3"),
        (holds_a_lock(), "pickles", "failed", "the creator cannot be pickled (TypeError"),
    ],
)
def test_a_fault_that_shows_elsewhere_is_found_by_its_check_alone(
    creator: Any, name: str, status: str, says: str, alone: bool
) -> None:
    """alone: among the checks that start no processes. What cannot be pickled cannot go through the others."""
    only = [*HERE, name] if alone or name == "pickles" else CHECKS
    report = check_env(creator, num_steps=100, only=only)
    assert verdicts(report) == {name: status}, str(report)
    assert says in report[name].text


class Herd(ParallelEnv[Any, Any, Any]):
    """Agents that come and go in order: each has an id, and leaves after five steps; a new one comes every other."""

    metadata = {"name": "herd"}

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.render_mode = None
        self.spaces = Box(0, 1000, (3,), np.int32), Discrete(4)
        if fault == "mask":
            self.spaces = Dict({"observation": self.spaces[0], "action_mask": MultiBinary(3)}), self.spaces[1]

    def observation_space(self, agent: Any) -> Any:
        return Box(0, 1000, (3,), np.int32) if self.fault == "spaces" else self.spaces[0]

    def action_space(self, agent: Any) -> Any:
        return self.spaces[1]

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.zeros(4, np.int8)} if self.fault == "no action" else {}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None or not hasattr(self, "generator"):
            self.generator = np.random.default_rng(seed)
        self.tick = 0
        self.born = {0: 0, 1: 0}
        self.agents = [0, 1]
        return self.observe(self.agents), {agent: self.info() for agent in self.agents}

    def observe(self, agents: list[int]) -> Any:
        luck = int(self.generator.integers(100))
        observations = {agent: np.array([agent, self.tick, luck], np.int32) for agent in agents}
        if self.fault != "mask":
            return observations
        return {agent: {"observation": observations[agent], "action_mask": np.ones(3, np.int8)} for agent in agents}

    def step(self, actions: Any) -> Any:
        self.tick += 1
        before = self.agents
        ended = [agent for agent in before if self.tick - self.born[agent] == 5 or self.tick == 20]
        self.agents = [agent for agent in before if agent not in ended]
        if self.tick % 2 == 0 and self.tick < 20:
            new = 0 if self.fault == "revived" and self.tick > 10 and 0 not in before else len(self.born)
            self.born[new] = self.tick
            self.agents.append(new)
        if self.fault == "lingers":
            self.agents += ended
        agents = before + [agent for agent in self.agents if agent not in before]
        flags = {agent: agent in ended and self.fault != "vanishes" for agent in agents}
        rewards = {agent: float(actions.get(agent, 0)) for agent in agents}
        infos = {agent: self.info() for agent in agents}
        return self.observe(agents), rewards, flags, dict.fromkeys(agents, False), infos


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        ("", "passed", "2 to 4 alive at once, 27 spawned"),
        ("spaces", "warning", "observation_space(agent) makes a new space at each call"),
        ("mask", "failed", "agent 0: action_mask has shape (3,), not (4,), 0 steps into episode 1"),
        ("no action", "failed", "no agent is allowed any action by its action_mask"),
        ("revived", "failed", "agent 0 came back after its end"),
        ("lingers", "failed", "agent 0 ended, and is still in agents"),
        ("vanishes", "warning", "agent 0 left agents without a termination or truncation"),
    ],
)
def test_agents(fault: str, status: str, says: str) -> None:
    report = check_env(Herd, env_kwargs={"fault": fault}, wrap_kwargs={"max_agents": 5}, num_steps=60, only=HERE)
    assert report["agents"].status == status
    assert says in report["agents"].text
    assert not set(verdicts(report)) - {"agents", "rows"}, str(report)


def test_a_report_reads_well() -> None:
    report = check_env(broken_envs.Unseeded, num_steps=100, only=["types", "ends", "seeding", "reseeding", "agents"])
    lines = str(report).splitlines()
    assert lines[0] == "passed          types      observations have the shapes and dtypes of their space"
    assert lines[-2] == "not applicable             until seeding passes: reseeding"
    assert lines[-1] == report.summary == "2 passed, 1 failed, 2 not applicable"
    assert max(map(len, lines)) <= 120
    assert [result.name for result in report.failures] == ["seeding"]
    assert report.seconds > 0
    with pytest.raises(KeyError, match="'clock' was not checked; these were: types, ends, agents, seeding, reseeding"):
        report["clock"]


def test_only_names_of_checks() -> None:
    with pytest.raises(PlanError, match="there is no check spelling; there are make, wraps, runs"):
        check_env(broken_envs.Walk, only=["spelling"])


def test_a_creator_is_given_its_index() -> None:
    def creator(env_index: int, kind: Any) -> Any:
        assert env_index == 0
        return kind()

    assert check_env(creator, env_kwargs={"kind": broken_envs.Walk}, only=["make"]).passed


def test_a_wrapped_environment_is_checked_as_what_is_inside() -> None:
    report = check_env(lambda: pufferlib.wrap(broken_envs.OutOfRange()), num_steps=100, only=HERE)
    assert verdicts(report) == {"ranges": "failed"}, str(report)


def test_old_gym_passes_in_its_own_way() -> None:
    class Old:
        """reset without seed, step of four values, no close."""

        observation_space = Box(0, 10, (2,), np.float32)
        action_space = Discrete(2)

        def reset(self) -> Any:
            self.tick = 0
            return np.zeros(2, np.float32)

        def step(self, action: int) -> Any:
            self.tick += 1
            return np.full(2, self.tick, np.float32), 1.0, self.tick == 4, {}

    report = check_env(Old, num_steps=60, only=HERE)
    assert verdicts(report) == {"other_seeds": "warning"}, str(report)


@pytest.mark.slow
def test_tiny_steps_of_many_agents() -> None:
    report = check_env(TagEnv, num_steps=60)
    assert verdicts(report) == {"other_seeds": "warning"}, str(report)
    assert report["agents"].text == "2 alive at once, 0 spawned"


def test_nothing_but_numpy_and_gymnasium_is_imported() -> None:
    code = (
        "import sys, pufferlib.testing; print([name for name in ('pytest', 'torch', 'pettingzoo', 'rich', 'tyro') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr


def test_the_clock_is_put_back() -> None:
    before = (time.time, time.monotonic_ns, datetime.datetime, datetime.date)
    with fake_clock(1e9, 0.5):
        assert datetime.datetime.now(datetime.timezone.utc).year == 2001
        first, second = time.monotonic(), time.monotonic()
        assert second - first == 0.5
    assert (time.time, time.monotonic_ns, datetime.datetime, datetime.date) == before


@pytest.mark.parametrize(
    ("space", "value", "kind"),
    [
        (Discrete(3, start=1), 3, None),
        (Discrete(3, start=1), np.int32(1), None),
        (Discrete(3, start=1), 0, "range"),
        (Discrete(3), 1.5, "type"),
        (Discrete(3), "1", "type"),
        (Box(-1, 1, (2,), np.float32), [0.1, 1], None),
        (Box(-1, 1, (2,), np.float32), np.array([0.1, np.nan], np.float32), "range"),
        (Box(-0.1, 0.1, (1,), np.float32), np.array([0.1]), "cast"),
        (Box(-1, 1, (2,), np.float32), np.zeros((1, 2), np.float32), "shape"),
        (Box(-1, 1, (1,), np.float32), 0.5, "shape"),
        (Box(-1, 1, (1,), np.float32), "word", "type"),
        (Box(-1, 1, (2,), np.float32), np.zeros((2, 2), np.float32), "type"),
        (Box(0, 255, (2,), np.uint8), np.zeros((1, 2)), "type"),  # its dtype, which is the worse
        (Box(-1, 1, (2,), np.float32), [[0.0], 1.0], "type"),
        (Box(0, 255, (2,), np.uint8), np.array([1, 2]), "type"),
        (MultiBinary(2), np.array([0, 2], np.int8), "range"),
        (MultiDiscrete([2, 3]), np.array([1, 2]), None),
        (MultiDiscrete([2, 3]), np.array([1, 3]), "range"),
        (Tuple([Discrete(2), Text(3)]), (1, "abc"), None),
        (Tuple([Discrete(2), Text(3)]), (1, "abcd"), "range"),
        (Tuple([Discrete(2), Text(3)]), (1, 2), "type"),
        (Tuple([Discrete(2), Text(3)]), (7, 2), "type"),  # the worse of two
        (Tuple([Discrete(2)]), (1, 2), "type"),
        (Dict(a=Discrete(2)), {"a": 1, "b": 1}, "type"),
        (Dict(a=Discrete(2)), {}, "type"),
        (Dict(a=Discrete(2)), 1, "type"),
    ],
)
def test_faults_of_observations(space: Any, value: Any, kind: str | None) -> None:
    fault = find_fault(space, value)
    assert (fault and fault.kind) == kind


def test_the_documents_name_every_check() -> None:
    table = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "cli.md").read_text(), re.M)
    assert table == list(CHECKS)


TROUBLE = """
import ctypes, os, sys, time
from broken_envs import Walk

class Trouble(Walk):
    def __init__(self, how):
        super().__init__()
        self.how, self.left = how, 4
        print("made\\nmade")

    def step(self, action):
        self.left -= 1
        if not self.left:
            self.trouble()
        return super().step(action)

    def trouble(self):
        if self.how == "hang":
            time.sleep(1000)
        elif self.how == "print":
            while True:
                print("x" * 1000)
        elif self.how == "crash":
            ctypes.string_at(0)
        elif self.how == "exit":
            os._exit(3)
        else:
            sys.exit("bye")
"""


@pytest.mark.parametrize(
    ("how", "says", "where"),
    [
        ("hang", "has not returned after 1 s, in trouble (trouble.py, line 19); --step-timeout gives it", "time.sleep"),
        ("print", "has not returned after 1 s, in trouble (trouble.py, line 2", "print("),
        ("crash", "ends the process, by signal 11 (SIGSEGV), in ", "ctypes.string_at(0)"),
        ("exit", "ends the process, with exit code 3", None),
    ],
)
@pytest.mark.flaky(reruns=4)
def test_a_call_that_never_returns_or_ends_the_process_is_named(
    how: str, says: str, where: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "schön 猫"
    folder.mkdir(exist_ok=True)
    (folder / "trouble.py").write_text(TROUBLE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "trouble", raising=False)
    monkeypatch.setattr(isolation, "SILENCE_S", 0)
    begun: list[str] = []
    waited: list[str] = []
    report, ended, stack, printed = check_isolated(
        "trouble:Trouble",
        env_kwargs={"how": how},
        step_timeout=1,
        only=["make", "runs", "speed"],
        before=begun.append,
        waiting=lambda call, _: waited.append(call),
    )
    assert [(result.name, result.status) for result in report] == [
        ("make", "passed"), ("runs", "failed"), ("speed", "not applicable")
    ]  # fmt: skip
    text = report["runs"].text
    assert text.startswith("step 4 after reset 1, with action ") and says in text, text
    assert how not in ("hang", "print") or waited[-1] in text
    assert ended and begun == ["make", "runs"] and report["speed"].waits_for == "runs"
    assert (where is None and not stack) or any(where in line for line in stack), stack
    assert stack == () or str(folder / "trouble.py") in stack[0], "what is around the environment is left out"
    assert printed.num_lines == 6 or how == "print"


def test_a_crash_is_placed_although_another_library_has_reset_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As ray.shutdown does, where faulthandler was enabled before."""
    assert faulthandler.is_enabled()
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    try:
        test_a_call_that_never_returns_or_ends_the_process_is_named(
            "crash", "ends the process, by signal 11 (SIGSEGV), in ", "ctypes.string_at(0)", tmp_path, monkeypatch
        )
    finally:
        faulthandler.disable()
        faulthandler.enable(request.config.stash[fault_handler_stderr_fd_key])


def test_an_environment_that_calls_sys_exit_has_failed() -> None:
    names: dict[str, Any] = {}
    exec(compile(TROUBLE, "trouble.py", "exec"), names)
    report = check_env(names["Trouble"], env_kwargs={"how": "sys.exit"}, only=["runs", "types"])
    assert report["runs"].text == "SystemExit: bye (trouble.py, line 28), after 3 random steps"
    assert report["types"].waits_for == "runs"


def test_apart_the_same_is_found_and_errors_come_back() -> None:
    taken: list[str] = []
    report, ended, stack, printed = check_isolated(
        "ocean/squared", only=["runs", "seeding"], num_steps=50, through=taken.append
    )
    assert report.passed and not ended and stack == () and printed.num_lines == len(taken) == 0
    here = check_env("ocean/squared", only=["runs", "seeding"], num_steps=50)
    assert [result.text for result in report] == [result.text for result in here]
    with pytest.raises(pufferlib.PlanError, match="there is no check spelling"):
        check_isolated("ocean/squared", only=["spelling"])
    with pytest.raises(pufferlib.PlanError, match="step_timeout=0 is impossible"):
        check_isolated("ocean/squared", step_timeout=0)


def test_a_process_that_ends_after_its_last_check_fails_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def ending(*_: Any, after: Callable[[Result], None], **__: Any) -> NoReturn:
        after(Result("wraps", "passed", ""))
        os._exit(5)

    monkeypatch.setattr(isolation, "check_env", ending)  # a fork has it
    report, ended, _, _ = check_isolated("ocean/squared", only=["wraps"])
    assert ended and [result.status for result in report] == ["failed"]
    assert "with exit code 5" in report.failures[0].text
