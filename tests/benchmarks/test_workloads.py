"""Tests of the environments, workloads and floors that peers are compared on, and of how ours step them."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from benchmarks import envs, peers, recordings
from benchmarks.processes import descendants
from benchmarks.venvs import VENVS
from benchmarks.workloads import LIBRARIES, OURS, RETURNED, WORKLOADS, Participant, Workload
from pufferlib.vectorization.core.plan import Plan

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peers are compared on Linux only"),
]

ROOT = Path(__file__).parents[2]
NEEDS = {
    "breakout": "ale_py",
    "pong": "ale_py",
    "minigrid": "minigrid",
    "lunar_lander": "Box2D",
    "half_cheetah": "mujoco",
    "reacher": "mujoco",
    "simple_tag": "mpe2",
    "simple_spread": "mpe2",
    "agents": "pettingzoo",
    "replayed_agents": "pettingzoo",
    "knights_archers_zombies": "pymunk",
}


@pytest.mark.parametrize("observation", ["small", "large", "nested"])
@pytest.mark.parametrize(
    "delay",
    [{}, {"mean_s": 1e-4, "spread": 1.0, "kind": "busy"}, {"mean_s": 1e-4, "spread": 0.25, "kind": "sleep"}],
    ids=["trivial", "busy", "sleep"],
)
@pytest.mark.filterwarnings("ignore:.*Not able to test alternative render modes")
def test_plain_env_passes_gymnasiums_check(observation: str, delay: dict[str, Any]) -> None:
    check_env(envs.PlainEnv(observation, **delay))


def test_plain_env_ends_every_episode_after_its_length() -> None:
    env = envs.PlainEnv(episode_length=3)
    for _ in range(2):
        env.reset(seed=0)
        assert [env.step(0)[2] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(("relative_std", "expected"), [(0.0, 0.0), (0.25, 0.25), (1.0, 1.0)])
def test_delays_have_the_mean_and_the_spread_asked_for(relative_std: float, expected: float) -> None:
    env = envs.PlainEnv(mean_s=2e-3, spread=relative_std)
    env.reset(seed=0)
    delays = np.array(env._draw_delays())
    assert delays.mean() == pytest.approx(2e-3, rel=0.05)
    assert delays.std() / delays.mean() == pytest.approx(expected, rel=0.1)


def test_busy_steps_use_the_cpu_and_sleeping_ones_do_not() -> None:
    used = {}
    for kind in ("busy", "sleep"):
        env = envs.PlainEnv(mean_s=0.02, kind=kind)
        env.reset(seed=0)
        start, start_cpu = time.perf_counter(), time.thread_time()
        env.step(0)
        assert time.perf_counter() - start >= 0.02
        used[kind] = time.thread_time() - start_cpu
    assert used["busy"] >= 0.02 > 0.01 > used["sleep"]


def test_nested_observations_have_twelve_leaves() -> None:
    space = envs.observation_space("nested")
    assert len(re.findall(r"Box|Discrete", str(space))) == 12
    assert spaces.utils.flatdim(space) == 611


def ours_of(workload: Workload) -> list[str]:
    return [name for name in workload.participants if Participant.of(name).library == "ours"]


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_workloads_are_whole(workload: Workload) -> None:
    assert ours_of(workload), "we take part"
    for target in workload.targets:
        of = target.of if isinstance(target.of, tuple) else (target.of,)
        assert {*of, *target.over, *filter(None, (target.floor,))} <= set(workload.participants)
        assert {Participant.of(name).library for name in of} <= set(OURS)
        assert all(workload.needed(name) for name in (*of, *target.over)), "the short form has what targets need"
    for name in workload.participants:
        task = workload.task(name)
        Plan.of(task["num_envs"], task["num_workers"], task["batch_size"])
        assert (ROOT / f"benchmarks/vectorizers/{LIBRARIES[Participant.of(name).library].file}.py").exists()


def test_all_that_environments_return_is_a_workload() -> None:
    assert tuple(envs.RETURNS) == RETURNED


SAME_EVERYWHERE = ("plain", "returning", "agents", "native", "replayed", "replayed_agents")  # on any Gymnasium


def has_old_games(name: str) -> bool:
    return LIBRARIES[Participant.of(name).library].old_games


@pytest.mark.parametrize(
    "workload", [item for item in WORKLOADS.values() if item.env not in SAME_EVERYWHERE], ids=lambda w: w.name
)
def test_real_environments_are_compared_where_both_sides_step_the_same_ones(workload: Workload) -> None:
    libraries = {Participant.of(name).library for name in workload.participants}
    assert any(map(has_old_games, workload.participants)) == ("ours-old" in libraries)
    for target in workload.targets:
        of = target.of if isinstance(target.of, tuple) else (target.of,)
        assert len({has_old_games(name) for name in (*of, *target.over)}) == 1, target.text


def test_libraries_with_old_games_have_them_of_the_same_versions() -> None:
    games = ("gymnasium", "ale-py", "pettingzoo", "minigrid", "mpe2", "box2d", "mujoco")
    installed: dict[bool, set[tuple[str, ...]]] = {}
    for library in LIBRARIES.values():
        pins = [pin for arguments in VENVS[library.venv].installs for pin in arguments]
        assert ("gymnasium==0.29.1" in pins) is library.old_games
        old_pins = [pin for pin in sorted(set(pins)) if re.split(r"[\[=]", pin)[0] in games]
        installed.setdefault(library.old_games, set()).update(old_pins)
    for pins in installed.values():
        assert len({pin.partition("==")[0].partition("[")[0] for pin in pins}) == len(pins)


@pytest.mark.parametrize(("short", "minutes"), [(True, 15), (False, 165)])
def test_a_run_takes_no_longer_than_is_said(short: bool, minutes: float) -> None:
    chosen = [workload for workload in WORKLOADS.values() if workload.short or not short]
    assert sum(peers.takes_s(workload, short) for workload in chosen) < 60 * minutes


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, dict[str, Any]], Any]]:
    """What starts a library's player in this process."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "vectorizers"))
    player = importlib.import_module("player")
    started = []

    def begin(file: str, task: dict[str, Any]) -> Any:
        started.append(importlib.import_module(file).start(player.Task(**task)))
        return started[-1]

    yield begin
    for participant in started:
        participant.close()
    started.clear()
    sys.path.remove(str(ROOT / "benchmarks"))
    for name in {"player", "envs", "games", "recordings", "replayed", "agents", "native_rows", "ours", "bare"} - before:
        sys.modules.pop(name, None)


def is_here(workload: Workload) -> bool:
    """Whether what a workload steps is installed and, where it is a recording, made; test_recordings.py makes some."""
    recording = workload.env_kwargs.get("recording")
    if recording is not None and not recordings.path_of(recording).exists():
        return False
    return importlib.util.find_spec(NEEDS.get(workload.env, "gymnasium")) is not None


# One of each environment; the processes of 32 would take longer than they tell.
STEPPED = {
    (workload.env, *sorted(workload.env_kwargs.items())): (workload, name)
    for workload in WORKLOADS.values()
    for name in ours_of(workload)
    if Participant.of(name).arrangement in ("serial", "processes", "pool") and is_here(workload)
}


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        pytest.param(*value, id=f"{value[0].name}-{value[1]}", marks=[] if number % 4 == 0 else [pytest.mark.long])
        for number, value in enumerate(STEPPED.values())
    ],
)
def test_workloads_step_on_ours(workload: Workload, name: str, start: Callable[[str, dict[str, Any]], Any]) -> None:
    task = {**workload.task(name), "arrangement": "serial", "num_envs": 2, "num_workers": 1, "batch_size": 1}
    player = start("ours", task)
    for _ in range(3):
        assert player.recv() == 1
        player.send()


@pytest.mark.parametrize("returns", envs.RETURNS)
def test_what_a_vectorizer_adds_to_an_info_stays_with_its_environment(returns: str) -> None:
    env, other = (envs.ReturningEnv(returns, 3) for _ in range(2))
    before = [dict(other.step(0)[4]) for _ in range(4)]
    env.reset()[1]["added"] = True
    for _ in range(4):
        env.step(0)[4]["added"] = True
    assert [[*other.step(0)[4]] for _ in range(4)] == [[*info] for info in before]
    assert [*envs.ReturningEnv(returns).step(0)[4]] == [*before[0]] and "added" not in before[0]


@pytest.mark.parametrize(
    "name", ["ours processes@w2", "ours pool@w2b2", "ours serial", "ours pack", "bare loop", "bare processes@w2"]
)
def test_arrangements_step_as_many_as_they_say(name: str, start: Callable[[str, dict[str, Any]], Any]) -> None:
    workload = Workload("test", "", (), env_kwargs={"observation": "nested" if "pack" in name else "small"}, num_envs=4)
    before = set(descendants(os.getpid()))
    player = start(LIBRARIES[Participant.of(name).library].file, workload.task(name))
    assert len(set(descendants(os.getpid())) - before) == (Participant.of(name).num_workers or 0)
    for _ in range(3):
        assert player.recv() == {"ours pack": 100, "ours pool@w2b2": 2}.get(name, 4)
        player.send()


@pytest.mark.parametrize("arrangement", ["copies", "calls"])
def test_the_floor_of_copies_copies_each_array_of_each_observation(
    arrangement: str, tmp_path: Path, start: Callable[[str, dict[str, Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pictures(gymnasium.Env[Any, Any]):
        observation_space = spaces.Dict({"a": spaces.Box(0, 9, (2, 3), np.uint8), "b": spaces.Box(0, 9, (1,))})
        action_space = spaces.Discrete(2)
        tick = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.step(0)[0], {}

        def step(self, action: Any) -> Any:
            self.tick += 1
            a, b = np.full((2, 3), self.tick, np.uint8), np.full(1, self.tick, np.float32)
            return {"b": b, "a": a} if self.tick % 2 else {"a": a, "b": b}, 0.0, self.tick % 4 == 0, False, {}

    copied: list[tuple[int, bytes]] = []

    def memmove(target: Any, source: Any, count: int) -> None:
        copied.append((ctypes.addressof(target), ctypes.string_at(source, count)))

    path = tmp_path / "pictures.pickle"
    recordings.store(recordings.record(Pictures(), steps=6), path)
    monkeypatch.setattr(ctypes, "memmove", memmove)
    workload = Workload("test", "", (), env="replayed", env_kwargs={"recording": str(path)}, num_envs=2)
    player = start("bare", workload.task(f"bare {arrangement}"))
    assert [player.recv() for _ in range(4)] == [2, 2, 2, 2]
    targets = [target for target, _ in copied]
    assert len(copied) == 4 * 2 * 2 and targets[1] == targets[0] + 6 and targets[2] == targets[0] + 10
    assert len(set(targets[:12])) == 12 and targets[12:] == targets[:4], "three batches take turns"
    first = [b"\2" * 6, np.float32(2).tobytes()]
    assert [content for _, content in copied[:2]] == (first if arrangement == "copies" else [b"", b""])


def test_the_floor_of_copies_takes_only_observations_in_one_block_each(
    tmp_path: Path, start: Callable[[str, dict[str, Any]], Any]
) -> None:
    class Strided(gymnasium.Env[Any, Any]):
        observation_space, action_space = spaces.Box(0, 9, (3, 2), np.uint8), spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.step(0)[0], {}

        def step(self, action: Any) -> Any:
            return np.zeros((2, 3), np.uint8).T, 0.0, False, False, {}

    path = tmp_path / "strided.pickle"
    recordings.store(recordings.record(Strided(), steps=2), path)
    for env, env_kwargs in (("replayed", {"recording": str(path)}), ("plain", {})):
        task = Workload("test", "", (), env=env, env_kwargs=env_kwargs, num_envs=2).task("bare copies")
        with pytest.raises(Exception, match="one block of memory|only the observations of recordings"):
            start("bare", task)


@pytest.mark.parametrize(("name", "num_infos"), [("serial", 2), ("serial-plain", 0), ("processes-plain@w2", 0)])
def test_plain_steps_are_made_in_the_workload_of_other_steps(
    name: str, num_infos: int, start: Callable[[str, dict[str, Any]], Any]
) -> None:
    task = WORKLOADS["infos-four"].task(f"ours {name}")
    player = start("ours", {**task, "num_envs": 2, "num_workers": 2, "batch_size": 2})
    vec = player.close.__self__
    assert player.recv() == 2
    player.send()
    assert len(vec.recv().infos) == num_infos
    player.send()
