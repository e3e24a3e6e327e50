"""The conformance suite: each fault is found by the check of its name and by no other; good environments pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import broken_envs
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from mock_envs import HashEnv
from pettingzoo import ParallelEnv

from pufferlib.testing import CHECKS, Report, check_env

# Starts processes, which takes a second; the faults that these find are looked for separately.
ELSEWHERE = ("pickles", "processes", "backends", "step_after_end")
HERE = [name for name in CHECKS if name not in ELSEWHERE]


def found(report: Report) -> dict[str, str]:
    """The checks that had something to say against an environment."""
    return {result.name: result.status for result in report if result.status in ("failed", "warning")}


@pytest.mark.slow
@pytest.mark.parametrize("creator", [broken_envs.Walk, HashEnv, "ocean/squared"])
def test_a_good_environment_passes_all(creator: Any) -> None:
    report = check_env(creator, num_steps=200)
    assert not found(report), str(report)
    assert [result.name for result in report] == list(CHECKS)
    assert {result.name for result in report if result.status == "not applicable"} <= {"agents"}, str(report)


@pytest.mark.parametrize(
    ("creator", "name", "status", "says"),
    [
        (broken_envs.DrawsGlobally, "global_generators", "failed", "of random (in reset, step)"),
        (broken_envs.SeedsGlobally, "global_generators", "failed", "numpy.random (in reset, step)"),
        (broken_envs.DrawsFromTorch, "global_generators", "failed", "torch (in reset, step)"),
        (broken_envs.Float64, "types", "warning", "observation.position is float64, and its space says float32"),
        (broken_envs.WrongShape, "types", "failed", "observation.position should be float32 of shape (2,)"),
        (broken_envs.Words, "types", "failed", "observation.side should be int64 of shape (), and is str 'left'"),
        (broken_envs.OutOfRange, "ranges", "failed", "and its space goes from -1.0 to 1.0"),
        (broken_envs.LiveViews, "live_buffers", "warning", "return a copy"),
        (broken_envs.Unseeded, "seeding", "failed", "observations differ at the first reset"),
        (broken_envs.ForgetsSeed, "seeding", "failed", "at a reset without seed; go on with the same generator"),
        (broken_envs.SeedsByClock, "clock", "failed", "seed from reset(seed) alone"),
        (broken_envs.EndsByClock, "clock", "failed", "count steps instead of seconds"),
        (broken_envs.Leftovers, "reseeding", "warning", "have reset start everything anew"),
        (broken_envs.NoChance, "other_seeds", "warning", "right where there is no chance"),
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
    assert found(report) == {name: status}, str(report)
    assert says in report[name].text
    assert report.passed == (status == "warning")


def holds_a_lock() -> Callable[[], Any]:
    lock = threading.Lock()
    return lambda: lock and broken_envs.Walk()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("creator", "name", "status", "says"),
    [
        (broken_envs.HashOrder, "processes", "failed", "it depends on the order of a set or on hash()"),
        (broken_envs.ProcessNumber, "processes", "failed", "something that differs between them"),
        (broken_envs.SharesState, "backends", "failed", "environments in one process share something"),
        (broken_envs.DiesAfterEnd, "step_after_end", "warning", "exit code 3"),
        (holds_a_lock(), "pickles", "failed", "the creator cannot be pickled (TypeError"),
    ],
)
def test_a_fault_that_shows_elsewhere_is_found_by_its_check_alone(
    creator: Any, name: str, status: str, says: str
) -> None:
    only = CHECKS if name != "pickles" else [*HERE, "pickles"]
    report = check_env(creator, num_steps=100, only=only)
    assert found(report) == {name: status}, str(report)
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
    assert not set(found(report)) - {"agents", "rows"}, str(report)
