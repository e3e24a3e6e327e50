"""How many of pufferlib's Python functions a step enters: what environments return must not leave the compiled path."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import pytest

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

PACKAGE = str(Path(pufferlib.__file__).parent)
NUM_ENVS, WARM_UP, STEPS = 16, 12, 40
PLAIN = 0.25  # VecEnv.step, send and recv, for 16 environments
MOST = PLAIN + 0.25


class Frames:
    """Counts the calls of pufferlib's Python functions in this thread while it is installed as its profiler."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        self.count += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)


class Watched(ReturningEnv):
    """Counts the frames of the process that steps it, from the step that follows the warm-up on."""

    frames: Frames | None = None

    def start_counting(self) -> None:
        Watched.frames = Frames()
        sys.setprofile(Watched.frames)

    def stop_counting(self) -> int:
        sys.setprofile(None)
        assert Watched.frames is not None
        return Watched.frames.count


@pytest.mark.filterwarnings("ignore:.*is cast to")
@pytest.mark.parametrize("autoreset_mode", ["next_step", "same_step"])
@pytest.mark.parametrize("returns", RETURNS)
def test_serial_steps_enter_few_python_functions(returns: str, autoreset_mode: str) -> None:
    with pufferlib.make(ReturningEnv, env_args=[returns, 10], num_envs=NUM_ENVS, autoreset_mode=autoreset_mode) as vec:
        actions = np.zeros(NUM_ENVS, int)
        vec.reset()
        for _ in range(WARM_UP):
            vec.step(actions)
        frames = Frames()
        sys.setprofile(frames)
        try:
            for _ in range(STEPS):
                vec.step(actions)
        finally:
            sys.setprofile(None)
    entered = frames.count / STEPS / NUM_ENVS
    assert 0 < entered <= (PLAIN if returns == "plain" else MOST), f"{returns}: {entered:.2f} frames a step"


@pytest.mark.filterwarnings("ignore:.*is cast to")
@pytest.mark.parametrize("returns", RETURNS)
def test_wrapped_steps_enter_few_python_functions(returns: str) -> None:
    """The step's own, that of actions, and, where there is an info, what copies it."""
    env = pufferlib.wrap(ReturningEnv(returns))
    env.reset()
    for _ in range(WARM_UP):
        env.step(1)
    frames = Frames()
    sys.setprofile(frames)
    try:
        for _ in range(STEPS):
            env.step(1)
    finally:
        sys.setprofile(None)
    if not returns.startswith("info"):
        assert frames.count == 2 * STEPS, f"{returns}: {frames.count / STEPS:.2f} frames a step"


@pytest.mark.filterwarnings("ignore:.*is cast to")
@pytest.mark.parametrize("returns", RETURNS)
def test_workers_enter_few_python_functions(returns: str) -> None:
    with pufferlib.make(
        Watched, env_args=[returns, 10], num_envs=NUM_ENVS, num_workers=1, backend="multiprocessing"
    ) as vec:
        actions = np.zeros(NUM_ENVS, int)
        vec.reset()
        for _ in range(WARM_UP):
            vec.step(actions)
        vec.call("start_counting", env_ids=[0])
        for _ in range(STEPS):
            vec.step(actions)
        (count,) = vec.call("stop_counting", env_ids=[0])
    entered = count / STEPS / NUM_ENVS  # beside those of the two calls themselves
    assert entered <= MOST, f"{returns}: {entered:.2f} frames a step in the worker"


# ------------------------------------------------------------------------- what real environments returned, replayed

RECORDED_STEPS = 200  # of each environment, recorded by the test that replays them
REAL = {
    "CartPole": REAL_ENVS["cartpole"],
    "Pendulum": GAMES["pendulum"],
    "FrozenLake": GAMES["frozen_lake"],
    "CliffWalking": GAMES["cliff_walking"],
    "Taxi": GAMES["taxi"],
}
REAL_AGENTS = ("come and go", "simple_tag", "simple_spread", "simple_speaker_listener")

# Of (row, where) those whose steps still leave the compiled path. They are expected to fail, strictly: whoever
# brings one back to it takes it out here. "serial": this process steps; "parent" and "worker": one process for all.
OFF_THE_PATH = {
    ("come and go", "serial"),
    ("come and go", "parent"),
    ("come and go", "worker"),
}


def rows(names: Iterable[str], places: Iterable[str] = ("serial", "parent", "worker")) -> list[Any]:
    """Return (row, where frames are counted) for each."""
    leaves = pytest.mark.xfail(reason="leaves the compiled path", raises=AssertionError, strict=True)
    return [
        pytest.param(*row, marks=[leaves] if row in OFF_THE_PATH else []) for row in itertools.product(names, places)
    ]


class WatchedReplay(ReplayedEnv):
    start_counting, stop_counting = Watched.start_counting, Watched.stop_counting


@functools.cache
def watched_agents() -> Any:
    from benchmarks.agents import ReplayedAgents

    watched = {"start_counting": Watched.start_counting, "stop_counting": Watched.stop_counting}
    return type("WatchedAgents", (ReplayedAgents,), watched)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


@functools.cache
def frames_a_step(env_creator: Any, recording: Path, serial: bool) -> dict[str, float]:
    """Return how many functions a step enters, by where: in the process that calls, and in the worker."""
    plan: dict[str, Any] = {} if serial else {"num_workers": 1, "backend": "multiprocessing"}
    with pufferlib.make(env_creator, env_args=[str(recording)], num_envs=NUM_ENVS, **plan) as vec:
        vec.action_space.seed(0)
        actions = vec.action_space.sample()
        vec.reset()
        for _ in range(WARM_UP):
            vec.step(actions)
        if not serial:
            vec.call("start_counting", env_ids=[0])
        frames = Frames()
        sys.setprofile(frames)
        try:
            for _ in range(STEPS):
                vec.step(actions)
        finally:
            sys.setprofile(None)
        counts = {"serial" if serial else "parent": frames.count}
        if not serial:
            (counts["worker"],) = vec.call("stop_counting", env_ids=[0])
    return {where: count / STEPS / NUM_ENVS for where, count in counts.items()}


@pytest.mark.parametrize(("name", "where"), rows(REAL))
def test_replayed_steps_enter_few_python_functions(name: str, where: str, folder: Path) -> None:
    path = folder / f"{name}.pickle"
    if not path.exists():
        with contextlib.closing(REAL[name]()) as env:
            recordings.store(recordings.record(env, RECORDED_STEPS), path)
    entered = frames_a_step(WatchedReplay, path, where == "serial")[where]
    assert entered <= MOST, f"{name}: {entered:.2f} frames a step: {where}"


@pytest.mark.parametrize(("name", "where"), rows(REAL_AGENTS))
def test_replayed_agents_enter_few_python_functions(name: str, where: str, folder: Path) -> None:
    pytest.importorskip("pettingzoo")
    path = folder / f"{name}.pickle"
    if not path.exists():
        with contextlib.closing(agents_env(name)) as env:
            recordings.store(recordings.record_agents(env, RECORDED_STEPS), path)
    entered = frames_a_step(watched_agents(), path, where == "serial")[where]
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
            told = acted + joined
            gone = {agent: self.tick not in self.there[agent] for agent in told}
            self.agents = [agent for agent in told if not gone[agent]]
            return (
                self.seen(told),
                dict.fromkeys(told, 1.0),
                gone,
                dict.fromkeys(told, False),
                {agent: {"tick": self.tick} for agent in told},
            )

    return ComingAndGoing()


# ------------------------------------------------------------------------------------------------ other ways to call

CALLS: dict[str, tuple[dict[str, Any], Any]] = {  # by name: arguments of make, and a batch of actions
    "same_step": ({"autoreset_mode": "same_step"}, np.zeros(NUM_ENVS, int)),
    "copy=True": ({"copy": True}, np.zeros(NUM_ENVS, int)),
    "actions in a list": ({}, [0] * NUM_ENVS),
    "actions of a Tuple": (
        {"env_kwargs": {"actions": "tuple"}},
        (np.zeros((NUM_ENVS, 1), int), np.zeros((NUM_ENVS, 2), np.float32)),
    ),
}


@pytest.mark.parametrize(("name", "where"), rows(CALLS, ["serial"]))
def test_other_ways_to_call_enter_few_python_functions(name: str, where: str) -> None:
    options, actions = CALLS[name]
    with pufferlib.make(ReturningEnv, env_args=["plain", 10], num_envs=NUM_ENVS, **options) as vec:
        vec.reset()
        for _ in range(WARM_UP):
            vec.step(actions)
        frames = Frames()
        sys.setprofile(frames)
        try:
            for _ in range(STEPS):
                vec.step(actions)
        finally:
            sys.setprofile(None)
    entered = frames.count / STEPS / NUM_ENVS
    assert entered <= MOST, f"{name}: {entered:.2f} frames a step: {where}"
