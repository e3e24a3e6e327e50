"""How many of pufferlib's Python functions a step enters: what environments return must not leave the compiled path."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from frames import MOST, NUM_ENVS, PLAIN, STEPS, Counting, frames_a_step, frames_in_worker, frames_of
from matrix import covering

import pufferlib
from benchmarks import recordings
from benchmarks.envs import REAL_ENVS, RETURNS, ReturningEnv
from benchmarks.games import GAMES
from benchmarks.replayed import ReplayedEnv
from pufferlib import _native

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(not _native.available, reason=f"there is no compiled path: {_native.reason}"),
]

SERIAL: dict[str, Any] = {"num_envs": NUM_ENVS}
ONE_WORKER: dict[str, Any] = {"num_envs": NUM_ENVS, "num_workers": 1, "backend": "multiprocessing"}


class Watched(Counting, ReturningEnv):
    pass


@pytest.mark.filterwarnings("ignore:.*is cast to")
@covering({"returns": [*RETURNS], "autoreset_mode": ["next_step", "same_step"]})
def test_serial_steps_enter_few_python_functions(returns: str, autoreset_mode: str) -> None:
    with pufferlib.make(ReturningEnv, env_args=[returns, 10], num_envs=NUM_ENVS, autoreset_mode=autoreset_mode) as vec:
        entered = frames_a_step(vec, np.zeros(NUM_ENVS, int))
    assert 0 < entered <= (PLAIN if returns == "plain" else MOST), f"{returns}: {entered:.2f} frames a step"


@pytest.mark.filterwarnings("ignore:.*is cast to")
@pytest.mark.parametrize("returns", RETURNS)
def test_wrapped_steps_enter_few_python_functions(returns: str) -> None:
    """The step's own, that of actions, and, where there is an info, what copies it."""
    env = pufferlib.wrap(ReturningEnv(returns))
    env.reset()
    count = frames_of(lambda: env.step(1))
    if not returns.startswith("info"):
        assert count == 2 * STEPS, f"{returns}: {count / STEPS:.2f} frames a step"


@pytest.mark.filterwarnings("ignore:.*is cast to")
@covering({"returns": [*RETURNS], "autoreset_mode": ["next_step", "same_step"]})
@pytest.mark.alone
def test_workers_enter_few_python_functions(returns: str, autoreset_mode: str) -> None:
    with pufferlib.make(Watched, env_args=[returns, 10], **ONE_WORKER, autoreset_mode=autoreset_mode) as vec:
        entered = frames_in_worker(vec, np.zeros(NUM_ENVS, int))
        called = frames_a_step(vec, np.zeros(NUM_ENVS, int))
    assert entered <= MOST, f"{returns}: {entered:.2f} frames a step in the worker"
    assert 0 < called <= MOST, f"{returns}: {called:.2f} frames a step in the parent"


# ------------------------------------------------------------------------- what real environments returned, replayed

RECORDED_STEPS = 200  # of each environment, recorded by the test that replays them
RECORDED_ENVS = {
    "CartPole": REAL_ENVS["cartpole"],
    "Pendulum": GAMES["pendulum"],
    "FrozenLake": GAMES["frozen_lake"],
    "CliffWalking": GAMES["cliff_walking"],
    "Taxi": GAMES["taxi"],
}
REAL_AGENTS = ("come and go", "simple_tag", "simple_spread", "simple_speaker_listener")

# Of (row, where) those whose steps still leave the compiled path. They are expected to fail, strictly: remove
# one here when it is back on that path. "serial": this process steps; "parent" and "worker": one process for all.
OFF_THE_PATH: set[tuple[str, str]] = set()


def rows(names: Iterable[str], places: Iterable[str] = ("serial", "parent", "worker")) -> list[Any]:
    """Return (row, where frames are counted) for each. On a busy machine the parent also enters those that wait."""
    leaves = pytest.mark.xfail(reason="leaves the compiled path", raises=AssertionError, strict=True)
    return [
        pytest.param(*row, marks=[leaves] * (row in OFF_THE_PATH) + [pytest.mark.alone] * (row[1] == "parent"))
        for row in itertools.product(names, places)
    ]


class WatchedReplay(Counting, ReplayedEnv):
    pass


@functools.cache
def watched_agents() -> Any:
    from benchmarks.agents import ReplayedAgents

    return type("WatchedAgents", (Counting, ReplayedAgents), {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


@functools.cache
def replayed_frames(env_creator: Any, recording: Path, where: str) -> float:
    """Return how many functions a step enters: in this process, which steps or calls, or in the worker."""
    with pufferlib.make(env_creator, env_args=[str(recording)], **(SERIAL if where == "serial" else ONE_WORKER)) as vec:
        vec.action_space.seed(0)
        count = frames_in_worker if where == "worker" else frames_a_step
        return count(vec, vec.action_space.sample())


@pytest.mark.parametrize(("name", "where"), rows(RECORDED_ENVS))
def test_replayed_steps_enter_few_python_functions(name: str, where: str, folder: Path) -> None:
    path = folder / f"{name}.pickle"
    if not path.exists():
        with contextlib.closing(RECORDED_ENVS[name]()) as env:
            recordings.store(recordings.record(env, RECORDED_STEPS), path)
    entered = replayed_frames(WatchedReplay, path, where)
    assert entered <= MOST, f"{name}: {entered:.2f} frames a step: {where}"


@pytest.mark.parametrize(("name", "where"), rows(REAL_AGENTS))
def test_replayed_agents_enter_few_python_functions(name: str, where: str, folder: Path) -> None:
    pytest.importorskip("pettingzoo")
    path = folder / f"{name}.pickle"
    if not path.exists():
        with contextlib.closing(agents_env(name)) as env:
            recordings.store(recordings.record_agents(env, RECORDED_STEPS), path)
    entered = replayed_frames(watched_agents(), path, where)
    assert entered <= MOST, f"{name}: {entered:.2f} frames a step: {where}"


def agents_env(name: str) -> Any:
    """Return a ParallelEnv to record: one of MPE2's, or three agents of whom each joins later than the one before."""
    if name != "come and go":
        pytest.importorskip("mpe2")
        version = {"simple_speaker_listener": 4}.get(name, 3)
        return importlib.import_module(f"mpe2.{name}_v{version}").parallel_env(max_cycles=25)
    from pettingzoo import ParallelEnv

    class ComingAndGoing(ParallelEnv):  # type: ignore[misc,type-arg]
        metadata = {"render_modes": []}
        possible_agents = ["first", "second", "third"]
        there = {"first": range(7), "second": range(3, 11), "third": range(6, 9)}  # in which steps of an episode
        space, actions = gymnasium.spaces.Box(-1, 20, (2,), np.float32), gymnasium.spaces.Discrete(2)

        def observation_space(self, agent: str) -> Any:
            return self.space

        def action_space(self, agent: str) -> Any:
            return self.actions

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.tick, self.agents = 0, ["first"]
            return self.seen(self.agents), {"first": {}}

        def seen(self, agents: list[str]) -> dict[str, Any]:
            return {agent: np.array([self.tick, index], np.float32) for index, agent in enumerate(agents)}

        def step(self, actions: Any) -> Any:
            self.tick += 1
            acted = list(self.agents)
            joined = [agent for agent, ticks in self.there.items() if ticks[0] == self.tick]
            reported = acted + joined
            gone = {agent: self.tick not in self.there[agent] for agent in reported}
            self.agents = [agent for agent in reported if not gone[agent]]
            return (
                self.seen(reported),
                dict.fromkeys(reported, 1.0),
                gone,
                dict.fromkeys(reported, False),
                {agent: {"tick": self.tick} for agent in reported},
            )

    return ComingAndGoing()


# ----------------------------------------------------------------------------------------- masks in infos, PufferEnvs


class Masking(Counting, gymnasium.Env[Any, Any]):
    """Tells an action mask, as an array for each part of the space, and in every second step a number."""

    observation_space = gymnasium.spaces.Box(-1, 20, (2,), np.float32)

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space
        sizes = action_space.nvec if isinstance(action_space, gymnasium.spaces.MultiDiscrete) else [action_space.n]
        masks = tuple(np.arange(size, dtype=np.int8) % 2 for size in sizes)
        self.mask = masks if len(masks) > 1 else masks[0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        return np.zeros(2, np.float32), {"action_mask": self.mask}

    def step(self, action: Any) -> Any:
        self.tick += 1
        info = {"action_mask": self.mask, "tick": self.tick} if self.tick % 2 else {"action_mask": self.mask}
        return np.full(2, self.tick, np.float32), 1.0, self.tick == 10, False, info


class Puffing(Counting, pufferlib.PufferEnv):
    """A PufferEnv of one agent, which tells an info in every second step."""

    single_observation_space = gymnasium.spaces.Box(-1, 20, (2,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0

    def step(self, actions: Any) -> Any:
        self.tick += 1
        self.observations[:], self.terminations[:] = self.tick, self.tick == 10
        return [{"tick": self.tick}] if self.tick % 2 else None


OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {  # by name: a creator and arguments of make
    "mask": (functools.partial(Masking, gymnasium.spaces.Discrete(4)), {"wrap_kwargs": {"action_mask": True}}),
    "mask in parts": (
        functools.partial(Masking, gymnasium.spaces.MultiDiscrete([2, 3])), {"wrap_kwargs": {"action_mask": True}}
    ),
    "PufferEnv": (Puffing, {}),
}  # fmt: skip


@covering({"name": [*OTHERS], "autoreset_mode": ["next_step", "same_step"]})
def test_other_environments_enter_few_python_functions(name: str, autoreset_mode: str) -> None:
    creator, options = OTHERS[name]
    for plan in (SERIAL, ONE_WORKER):
        with pufferlib.make(creator, autoreset_mode=autoreset_mode, **options, **plan) as vec:
            actions = vec.action_space.sample()
            called = frames_a_step(vec, actions)
            entered = 0.0 if plan is SERIAL else frames_in_worker(vec, actions)
        assert 0 < called <= MOST, f"{name}: {called:.2f} frames a step, {plan}"
        assert entered <= MOST, f"{name}: {entered:.2f} frames a step in the worker"


# ------------------------------------------------------------------------------------------------ other ways to call

CALLS: dict[str, tuple[dict[str, Any], Any]] = {  # by name: arguments of make, and a batch of actions
    "same_step": ({"autoreset_mode": "same_step"}, np.zeros(NUM_ENVS, int)),
    "copy=True": ({"copy": True}, np.zeros(NUM_ENVS, int)),
    "debug=True": ({"debug": True}, np.zeros(NUM_ENVS, int)),
    "actions in a list": ({}, [0] * NUM_ENVS),
    "actions of a Tuple": (
        {"env_kwargs": {"actions": "tuple"}},
        (np.zeros((NUM_ENVS, 1), int), np.zeros((NUM_ENVS, 2), np.float32)),
    ),
}
ENV_IDS: dict[str, Callable[[Any], Any]] = {  # the last batch's, as they may be sent
    "as they came": lambda env_ids: env_ids,
    "reversed": lambda env_ids: env_ids[::-1],
    "in a list": lambda env_ids: env_ids.tolist(),
}


@pytest.mark.parametrize(("name", "where"), rows(CALLS, ["serial", "parent"]))
def test_other_ways_to_call_enter_few_python_functions(name: str, where: str) -> None:
    options, actions = CALLS[name]
    plan = SERIAL if where == "serial" else ONE_WORKER
    with pufferlib.make(ReturningEnv, env_args=["plain", 10], **plan, **options) as vec:
        entered = frames_a_step(vec, actions)
    assert entered <= MOST, f"{name}: {entered:.2f} frames a step: {where}"


@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
def test_sends_that_name_environments_enter_few_python_functions(backend: str) -> None:
    plan = {"num_envs": 2 * NUM_ENVS, "batch_size": NUM_ENVS} if backend == "pool" else {"num_envs": NUM_ENVS}
    with pufferlib.make(ReturningEnv, env_args=["plain", 10], backend=backend, num_workers=1, **plan) as vec:
        for name, env_ids in ENV_IDS.items():
            entered = frames_a_step(vec, np.zeros(NUM_ENVS, int), env_ids)
            assert entered <= MOST, f"{name}: {entered:.2f} frames a step"


@pytest.mark.extras
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("plan", [SERIAL, ONE_WORKER], ids=["serial", "parent"])
def test_batches_of_tensors_enter_few_python_functions(plan: dict[str, Any], copy: bool) -> None:
    with pufferlib.make(ReturningEnv, env_args=["plain", 10], device="cpu", copy=copy, **plan) as vec:
        entered = frames_a_step(vec, np.zeros(NUM_ENVS, int))
    assert entered <= MOST, f"{entered:.2f} frames a step"
