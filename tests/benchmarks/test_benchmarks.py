"""The benchmarks themselves: what is stepped, who takes turns with whom, and what is made of the figures."""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import importlib
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from benchmarks import adapters, envs, install, peers, ray_model, ray_scale, recordings, report, tictactoe
from benchmarks.evaluation import list_schedule
from benchmarks.lines import lines_of, table_text
from benchmarks.processes import cpu_s, descendants
from benchmarks.ratios import MedianRange, ahead, counterpart, judge, median_interval, rates, ratios, sign_test
from benchmarks.venvs import VENVS
from benchmarks.workloads import LIBRARIES, OURS, RETURNED, WORKLOADS, Participant, Target, Workload
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


# ------------------------------------------------------------------------------------------------- environments


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


# ---------------------------------------------------------------------------------------------------- workloads


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


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that plays, as a library's process has it."""
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "vectorizers"))
    yield importlib.import_module("child")
    sys.path[:] = path
    for name in {"child", "player", "envs", "processes"} - before:
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


# --------------------------------------------------------------------------------------------------- taking turns


@pytest.fixture
def this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_python", lambda venv: Path(sys.executable))


SMALL = Workload("small", "", ("bare loop", "gymnasium async", "gymnasium sync"), num_envs=2)


def all_stop(pids: list[int]) -> bool:
    """Whether all these processes are stopped, or are so within a minute: each has to be on a core to notice."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids} == {"T"}:
            return True
        time.sleep(0.001)
    return False


@pytest.mark.usefixtures("this_python")
def test_a_participant_is_stopped_with_all_its_processes_but_for_its_turns(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log:
        child = peers.Child(SMALL, "gymnasium async", log)
        child.wait_until_ready()
        (pid,) = set(descendants(os.getpid())) & {child._process.pid}
        pids = [pid, *descendants(pid)]
        try:
            assert len(pids) >= 3
            for _ in range(2):
                assert all_stop(pids)
                assert child.take_turn({"kind": "play", "seconds": 0.02, "warm_up_s": 0.01})["steps"] > 0
        finally:
            child.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.usefixtures("this_python")
@pytest.mark.parametrize("kind", ["play", "wait", "idle"])
def test_before_the_first_turn_each_environment_is_stepped_three_times(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[dict[str, Any]] = []
    monkeypatch.setattr(
        peers.Child, "take_turn", lambda child, command: commands.append(command) or {"steps": 1, "seconds": 1}
    )
    workload = dataclasses.replace(SMALL, kind=kind)
    with open(tmp_path / "log", "w") as log:
        peers.measure(workload, ["bare loop"], repeats=2, window_s=0.5, warm_up_s=0.1, log=log)
    first, second = commands
    assert (first["warm_up_s"], first["warm_up_steps"]) == (0.5, 6)
    assert second["warm_up_s"] == 0.1 and "warm_up_steps" not in second


@pytest.mark.parametrize("new_processes", [False, True])
def test_new_processes_play_each_repeat_where_that_is_asked_for(
    new_processes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []

    class Child:
        def __init__(self, workload: Workload, name: str, log: Any) -> None:
            self.name = name
            self.pipe = os.pipe()
            os.write(self.pipe[1], b"ready")
            events.append(("start", name))

        def fileno(self) -> int:
            return self.pipe[0]

        def wait_until_ready(self) -> dict[str, Any]:
            return {}

        def take_turn(self, command: dict[str, Any]) -> dict[str, Any]:
            events.append(("first" if "warm_up_steps" in command else "turn", self.name))
            return {"steps": 1, "seconds": 1.0}

        def ask_to_end(self) -> None:
            events.append(("end", self.name))

        def close(self) -> None:
            for descriptor in self.pipe:
                os.close(descriptor)

    monkeypatch.setattr(peers, "Child", Child)
    workload = dataclasses.replace(SMALL, new_processes=new_processes)
    with open(tmp_path / "log", "w") as log:
        entries = peers.measure(workload, ["a", "b"], repeats=3, window_s=0.5, warm_up_s=0.1, log=log)
    assert [len(entry["turns"]) for entry in entries] == [3, 3]
    events_of_play = [(kind, name) for kind, name in events if kind in ("first", "turn")]
    assert "".join(name for _, name in events_of_play) == "abbaab"  # the other one begins with every repeat
    assert [kind for kind, _ in events_of_play] == ["first"] * 2 + ["first" if new_processes else "turn"] * 4
    starts_and_ends = [kind for kind, _ in events if kind in ("start", "end")]
    assert starts_and_ends == ["start", "start", "end", "end"] * (3 if new_processes else 1)


@pytest.mark.parametrize(("kind", "more"), [("play", {}), ("wait", {"think_s": 0.0}), ("idle", {})])
@pytest.mark.flaky(reruns=4)
def test_a_warm_up_lasts_until_there_were_steps_enough_but_not_forever(
    kind: str, more: dict[str, float], child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = 0

    def recv() -> int:
        nonlocal done
        done += 1
        time.sleep(0.05 if done < 10 else 0.001)  # environments' first resets
        return 2

    measure = functools.partial(
        getattr(child, kind), child.Player(recv, lambda: None, lambda: None), 0.05, 0.01, **more
    )
    answer = measure(warm_up_steps=40)
    if kind == "idle":
        assert answer["usual_us"] < 25_000
    else:
        assert answer["steps"] <= 2 * (done - 20) and answer["steps"] / answer["seconds"] > 200
    monkeypatch.setattr(child, "WARM_UP_AT_MOST_S", 0.1)
    start = time.perf_counter()
    measure(warm_up_steps=10**9)
    assert time.perf_counter() - start < 60


@pytest.mark.long
@pytest.mark.usefixtures("this_python")
def test_participants_take_turns_and_one_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    workload = dataclasses.replace(SMALL, kind="idle")
    said: list[str] = []
    names = ("bare loop", "gymnasium nothing", "gymnasium sync")
    with open(tmp_path / "log", "w") as log:
        entries = peers.measure(workload, names, repeats=2, window_s=0.05, warm_up_s=0.01, log=log, say=said.append)
    assert [entry["status"] for entry in entries] == ["ran", "not handled", "ran"]
    assert "no arrangement 'nothing'" in entries[1]["reason"] and "gymnasium nothing" in said[0]
    for entry in (entries[0], entries[2]):
        assert len(entry["turns"]) == 2
        assert all(turn_result["parent_cpu"] < 0.5 and turn_result["first_us"] > 0 for turn_result in entry["turns"])
        assert entry["versions"]["numpy"] == np.__version__


def test_what_is_not_installed_is_said_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peers, "_interpreter", lambda venv: (None, "no wheel"))
    with open(tmp_path / "log", "w") as log:
        (entry,) = peers.measure(SMALL, ["bare loop"], repeats=1, window_s=1, warm_up_s=0, log=log, say=[].append)
    assert (entry["status"], entry["reason"], entry["turns"]) == ("not installed", "no wheel", [])


def test_cpu_time_of_a_process_is_its_own() -> None:
    used = time.process_time()
    assert cpu_s(os.getpid()) == pytest.approx(used, abs=0.05)


# -------------------------------------------------------------------------------------------------------- figures


def entry(name: str, figures: list[float], **more: Any) -> dict[str, Any]:
    turn_results = [{"steps": figure, "seconds": 1.0} for figure in figures]
    return {"name": name, "status": "ran", "turns": turn_results, "versions": {"gymnasium": "1.4.0"}, **more}


def test_ratios_are_taken_within_a_repeat() -> None:
    assert ratios([10, 20, 90], [5, 5, 30]) == [2, 4, 3]
    assert MedianRange.of([2, 4, 3]) == (3, 2, 4)
    assert rates({"status": "ran", "turns": [{"steps": 30, "seconds": 2.0}]}) == [15]
    assert rates({"status": "failed", "turns": [{"steps": 30, "seconds": 2.0}]}) == []


@pytest.mark.parametrize(
    ("values", "probability", "is_ahead"),
    [
        ([1.1] * 7, 1 / 128, True),
        ([1.1] * 6 + [0.9], 8 / 128, False),
        ([1.1] * 10 + [0.9], 12 / 2048, True),
        ([1.1] * 4 + [1.0] * 3, 1 / 16, False),
        ([1.0] * 7, 1.0, False),
        ([0.9] * 7, 1.0, False),
    ],
)
def test_sign_test(values: list[float], probability: float, is_ahead: bool) -> None:
    assert sign_test(values) == pytest.approx(probability)
    assert ahead(values) is is_ahead


@pytest.mark.parametrize(("count", "rank"), [(6, 1), (7, 1), (30, 10), (61, 23)])  # of any table of the sign test
def test_the_medians_interval_is_that_of_order_statistics(count: int, rank: int) -> None:
    values = [float(number) for number in range(1, count + 1)]
    assert median_interval(values[::-1]) == (rank, count + 1 - rank)


def test_the_medians_interval_holds_the_median_as_often_as_it_says() -> None:
    samples = np.random.default_rng(0).exponential(size=(2000, 31))
    held = [low <= np.log(2) <= high for low, high in map(median_interval, samples.tolist())]
    assert 0.95 <= np.mean(held) < 0.98


def test_targets_of_many_pairs_state_the_interval() -> None:
    entries = [entry("ours serial", [float(n) for n in range(1, 32)]), entry("sb3 dummy", [10.0] * 31)]
    verdict = judge(Target("", "ours serial", ("sb3 dummy",), at_least=1), entries)
    assert verdict.note == "median within 1.000 – 2.200 (95 %, 31 pairs)"


ENTRIES = [
    entry("ours pool@w2b8", [80, 90, 100]),
    entry("ours pool@w4b8", [160, 180, 200]),
    entry("sb3 subproc", [20, 20, 20]),
    entry("tianshou shmem", [40, 40, 40]),
    {"name": "torchrl pool@b8", "status": "not installed", "reason": "no wheel", "turns": []},
    entry("ours processes@w2", [1, 1, 1]),
]
ENTRIES[5]["turns"] = [{"wait_us": figure} for figure in (25, 40, 28)]
ENTRIES[1]["turns"] = [{**sample, "cpu_s": 0.5} for sample in ENTRIES[1]["turns"]]
ENTRIES[0]["turns"] = [{**sample, "cpu_s": 0.25} for sample in ENTRIES[0]["turns"]]
BOTH, PEERS = ("ours pool@w2b8", "ours pool@w4b8"), ("sb3 subproc", "tianshou shmem")


@pytest.mark.parametrize(
    ("target", "reached", "met", "note"),
    [
        (Target("", BOTH[1], PEERS[:1], at_least=9), (9, 8, 10), True, ""),
        (Target("", BOTH[1], PEERS[:1], at_least=9.1), (9, 8, 10), False, ""),
        (Target("", BOTH, PEERS, at_least=4), (4.5, 4, 5), True, "ours pool@w4b8 against tianshou shmem"),
        (Target("", BOTH[0], PEERS), (2.25, 2, 2.5), False, "against tianshou shmem"),  # 3 of 3 show nothing yet
        (Target("", BOTH[0], rate=100, at_least=0.9), (0.9, 0.8, 1), True, "over 270 steps"),
        (Target("", BOTH[0], rate=100, at_least=0.92), (0.9, 0.8, 1), False, "over 270 steps"),
        (Target("", "ours processes@w2", figure="wait_us", at_most=30), (28, 25, 40), True, ""),
        (Target("", "ours processes@w2", figure="wait_us", at_most=20), (28, 25, 40), False, ""),
        (Target("", "sb3 subproc", figure="step_us", at_most=5e4), (5e4, 5e4, 5e4), True, ""),
        (Target("", BOTH[0], BOTH[1:], figure="step_us", at_most=2), (2, 2, 2), True, ""),
        (Target("", BOTH[0], BOTH[1:], figure="cpu_us", at_most=0.9), (1, 1, 1), False, ""),
        (Target("", BOTH[0], PEERS[:1], figure="cpu_us", at_most=9), None, None, "did not run"),
        (Target("", BOTH[0], ("torchrl pool@b8",), figure="step_us", at_most=9), None, None, "did not run"),
        (Target("", BOTH[0], figure="overhead", at_most=9), None, None, "did not run"),
        (Target("", BOTH[0], ("torchrl pool@b8",), at_least=1), None, None, "did not run: torchrl pool@b8"),
        (
            *(Target("", BOTH[0], (PEERS[0], "torchrl pool@b8"), at_least=4), (4.5, 4, 5), True),
            "against sb3 subproc (did not run: torchrl pool@b8)",
        ),
        (Target("", "ours serial", PEERS, at_least=1), None, None, "not part of this run"),
    ],
)
def test_targets_are_judged(target: Target, reached: Any, met: bool | None, note: str) -> None:
    verdict = judge(target, ENTRIES)
    assert verdict.reached == (None if reached is None else pytest.approx(reached))
    assert (verdict.met, verdict.note, verdict.floor) == (met, note, None)


def test_a_target_has_the_floor_beside_it() -> None:
    floor = {**entry("bare processes@w2", []), "turns": [{"wait_us": figure} for figure in (8, 9, 7)]}
    target = Target("", "ours processes@w2", figure="wait_us", at_most=30, floor=floor["name"])
    assert judge(target, [*ENTRIES, floor]).floor == (8, 7, 9)
    assert judge(target, [*ENTRIES, {**floor, "status": "failed"}]).floor is None
    assert judge(target, ENTRIES).floor is None


def test_who_steps_older_games_is_compared_with_us_on_the_same() -> None:
    ours, faster = entry("ours serial", [10.0]), entry("ours processes@w2", [20.0])
    ours_old, bare = entry("ours-old serial", [30.0]), entry("bare loop", [20.0])
    old, new = entry("pufferlib-3.0 serial", [40.0]), entry("gymnasium sync", [5.0])
    everybody = [ours, faster, ours_old, old, new, bare, entry("ours-portable serial", [99.0])]
    assert [counterpart(item, everybody) for item in (old, new, bare, ours)] == [ours_old, faster, faster, faster]
    failed = {"name": "ours-old serial", "status": "failed", "turns": []}
    assert counterpart(old, [ours, failed, old]) is None, "rather nobody than ours on other games"
    assert counterpart(old, [ours, old]) is ours


def result(name: str, *entries: dict[str, Any]) -> dict[str, Any]:
    workload = {**dataclasses.asdict(WORKLOADS[name]), "targets": None}
    about = {"machine": "a machine", "version": "abc", "command": "a command", "date": "2026-11-21T00:00:00"}
    return {"workload": workload, "repeats": 7, "window_s": 0.3, "load": [0.1, 0.2], "participants": entries, **about}


RESULTS = {
    "trivial-sync": result(
        "trivial-sync",
        entry("ours processes@w2", [900.0, 1000, 1100, 1000, 1000, 1000, 1000], path="compiled"),
        entry("gymnasium async", [10.0] * 7),
        entry("bare loop", [2000.0] * 7),
        {"name": "torchrl parallel", "status": "failed", "reason": "it | broke\nin two", "turns": []},
    ),
    "think-1ms": result(
        "think-1ms",
        {**entry("ours processes@w2", []), "turns": [{"wait_us": 50.0, "wait_p99_us": 90.0, "send_us": 3.0}] * 7},
    ),
    "cartpole": result(
        "cartpole",
        entry("ours serial", [100.0] * 7),
        entry("ours-old serial", [150.0] * 7, versions={"gymnasium": "0.29.1"}, path="compiled"),
        entry("ours-old processes@w2", [120.0] * 7, versions={"gymnasium": "0.29.1"}),
        entry("ours-portable processes@w2", [110.0] * 7),
        entry("gymnasium sync", [80.0] * 7),
        entry("pufferlib-3.0 serial", [120.0] * 7, versions={"gymnasium": "0.29.1"}),
        entry("pufferlib-0.7 serial", [300.0] * 7, versions={"gymnasium": "0.29.1"}),
        {"name": "sb3 dummy", "status": "failed", "reason": "it broke", "turns": []},
    ),
    "grid-none-n4": result("grid-none-n4", entry("ours serial", [30.0] * 7), entry("gymnasium sync", [20.0] * 7)),
}


def test_report_says_what_was_needed_reached_and_met() -> None:
    texts = report.sections(RESULTS)
    rows = texts["targets"].splitlines()
    name = "trivial env, 32/2/32, synchronous"
    assert f"| {name} | 80× Gymnasium AsyncVectorEnv | 100.00 (90.00 – 110.00) | yes |  |" in rows
    assert f"| {name} | 1.2× the bare loop | 0.50 (0.45 – 0.55) | **no** |  |" in rows
    assert any("8× PufferLib 0.7" in row and "not measured" in row for row in rows)
    assert any("≤ 60 µs | 50 (50 – 50) µs | yes" in row for row in rows)
    assert "| bare loop | 2,000 (2,000 – 2,000) | 0.50 (0.45 – 0.55) |" in texts["workloads"]
    assert "| ours processes@w2 (compiled) | 1,000 (900 – 1,100) |  |" in texts["workloads"]
    assert "| trivial env, 32/2/32, synchronous | bare loop | ours processes@w2 | 0.50" in texts["losses"]
    assert "| no time | 1.50 (1.50 – 1.50), gymnasium sync |" in texts["grid"]
    assert "| torchrl parallel | failed: it \\| broke in two | trivial-sync |" in texts["missing"]
    assert (
        "| gymnasium async | not in these runs |" in texts["missing"]
        and "| all | not measured yet |" in texts["missing"]
    )
    assert "Gymnasium 1.4.0" in texts["machine"] and "a machine" in texts["machine"]


def test_only_a_whole_field_is_said_to_have_run() -> None:
    results = {
        name: result(name, *(entry(item, [1.0]) for item in workload.participants))
        for name, workload in report.WORKLOADS.items()
    }
    assert report.missing_table(results) == "Every participant of every workload ran."
    name = next(iter(results))
    assert "| all | not measured yet | " + name in report.missing_table(
        {item: results[item] for item in results if item != name}
    )


def test_report_marks_who_steps_native_environments() -> None:
    cartpole = result("cartpole", entry("ours serial", [1.0]), entry("envpool threads@w2", [2.0]))
    name = "envpool threads@w2 (its own native environments)"
    assert f"| {name} | 2 (2 – 2) | 0.50 (0.50 – 0.50) |" in report.workload_text(cartpole).splitlines()
    assert f"| CartPole, 32 envs | {name} | ours serial |" in report.losses_table({"cartpole": cartpole})
    for name in ("cartpole", "atari", "atari-native"):
        assert "envpool threads@w2" in peers.form_of(WORKLOADS[name], short=True)[0]


def test_report_compares_each_with_us_on_the_same_games() -> None:
    texts = report.sections({"cartpole": RESULTS["cartpole"]})
    rows = texts["workloads"].splitlines()
    assert "|  | Gymnasium | steps/s (min – max) | ours is … times |" in rows
    assert "| ours-old serial (compiled) | 0.29.1 | 150 (150 – 150) |  |" in rows
    assert "| ours-old processes@w2 | 0.29.1 | 120 (120 – 120) | 1.25 (1.25 – 1.25) |" in rows
    assert "| pufferlib-3.0 serial | 0.29.1 | 120 (120 – 120) | 1.25 (1.25 – 1.25) |" in rows
    assert "| gymnasium sync | 1.4.0 | 80 (80 – 80) | 1.25 (1.25 – 1.25) |" in rows
    assert "| sb3 dummy |  | failed: it broke |  |" in rows
    assert texts["losses"].splitlines()[2:] == [
        "| CartPole, 32 envs | pufferlib-0.7 serial | ours-old serial | 0.50 (0.50 – 0.50) |"
    ]
    assert "this project (ours-old) with Gymnasium 0.29.1" in texts["machine"]


def test_the_page_of_adapters_says_what_their_results_say() -> None:
    libraries = json.loads((adapters.RESULTS / "adapters.json").read_text())["libraries"]
    page = adapters.PAGE.read_text()
    assert report.fill(page, {"adapters": adapters.text(libraries)}) == page


def test_the_page_of_adapters_says_who_is_faster_and_who_was_not_measured() -> None:
    rates = {"ours": [3.0, 2.0], "theirs": [2.0, 1.0], "ours-processes": [1.0, 3.0], "theirs-processes": [2.0, 4.0]}
    skrl_rates = {"ours": [1.0, 1.0], "theirs": [2.0, 0.5], "ours-processes": [2.0], "theirs-processes": [1.0]}
    said = adapters.summary({name: {"steps_per_s": item} for name, item in (("sb3", rates), ("skrl", skrl_rates))})
    assert said.replace("\n", " ") == (
        "In this process ours are in every repeat faster than Stable-Baselines3's; now faster and now slower than "
        "skrl's. In processes ours are in every repeat faster than skrl's; in every repeat slower than "
        "Stable-Baselines3's. Not measured yet: Tianshou, TorchRL and RLlib."
    )


def test_report_fills_pages_between_their_marks_and_leaves_the_rest() -> None:
    page = "before\n<!-- begin targets -->\nold\n<!-- end targets -->\nafter <!-- begin other -->x<!-- end other -->"
    filled = report.fill(page, {"targets": "new"})
    assert filled == page.replace("old", "new")
    assert report.fill(filled, {"targets": "new"}) == filled


def test_pages_have_a_place_for_everything_that_the_report_says() -> None:
    marks = set()
    for page in report.PAGES:
        marks |= set(re.findall(r"<!-- begin (\w+) -->", page.read_text()))
        assert report.fill(page.read_text(), report.sections(report.load(report.RESULTS))) == page.read_text()
    others = {"native", "install", "ray", "against", "limits", "ocean_suite", "leaks"}
    sections = {name for name in marks if not name.startswith("revision_")} - others
    assert sections == set(report.sections(RESULTS)) == set(report.sections({}))


def test_the_readme_says_what_every_file_is() -> None:
    folder = ROOT / "benchmarks"
    named = set(re.findall(r"benchmarks\.(\w+)|`(\w+)\.\w+`|`(\w+)/`", (folder / "README.md").read_text()))
    there = {path.stem for path in folder.iterdir() if not path.name.startswith((".", "_"))}
    assert there <= {name for names in named for name in names} | {"README"}


@pytest.mark.parametrize(("program", "name"), [("native", "native"), ("install", "install"), ("ray_backend", "ray")])
def test_other_tables_of_the_readme_say_what_their_results_say(program: str, name: str) -> None:
    results, page = json.loads((report.RESULTS / f"{name}.json").read_text()), report.PAGES[0].read_text()
    text = importlib.import_module(f"benchmarks.{program}").table(results)
    assert text in page and report.fill(page, {name: text}) == page


@pytest.mark.parametrize("name", ["limits", "leaks", "ocean_suite"])
def test_sections_of_the_readme_say_what_their_results_say(name: str) -> None:
    page, module = report.PAGES[0].read_text(), importlib.import_module(f"benchmarks.{name}")
    path = report.RESULTS / f"{name}.json"
    assert f"<!-- begin {name} -->" in page
    if path.exists():  # it is measured by hand
        assert report.fill(page, {name: module.section(json.loads(path.read_text()))}) == page


@pytest.mark.parametrize("program", ["population", "learned_oracles", "selfplay"])
def test_the_page_of_populations_says_what_their_results_say(program: str) -> None:
    module = importlib.import_module(f"benchmarks.{program}")
    texts, page = module.sections(json.loads(module.RESULT.read_text())), module.PAGE.read_text()
    assert report.fill(page, texts) == page, f"python -m benchmarks.{program} --page writes it"
    assert all(f"<!-- begin {name} -->" in page for name in texts)


@pytest.mark.parametrize("program", ["evaluation", "fairness"])
def test_pages_of_results_by_part_say_what_these_say(program: str) -> None:
    module = importlib.import_module(f"benchmarks.{program}")
    texts, page = module.sections(module.stored()), module.PAGE.read_text()
    assert report.fill(page, texts) == page
    assert all(f"<!-- begin {name} -->" in page for name in texts)


def test_what_is_measured_of_fairness_can_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import fairness

    names = ("synchronous", "plain pool", "weights")
    monkeypatch.setattr(fairness, "CONTESTANTS", {name: fairness.CONTESTANTS[name] for name in names})
    part = fairness.measure("environment", 400, 2, 0.002)
    assert json.loads(json.dumps(part)) == part
    rows = [line.split(" | ") for line in fairness.rows_table({"environment": part}).splitlines()[2:]]
    assert [row[1] for row in rows] == list(names)
    figures = part["figures"]
    assert abs(figures["synchronous"]["mean_reward"] - 0.5) < 1e-9  # as many steps of slow environments
    assert figures["plain pool"]["slow_share"] < 0.5 < figures["synchronous"]["slow_share"] + 1e-9
    shares = [figures[name]["effective_share"] for name in names]
    assert shares[0] == shares[1] == 1 and shares[2] < 1


def test_learners_on_uneven_are_judged_by_how_they_collect() -> None:
    from benchmarks import fairness

    names = ("ours, a plain pool", "ours, a pool with weights")
    runs = [{"learner": name, "seed": seed, "score": score} for name in names for seed, score in ((1, 0.1), (2, 0.97))]
    runs.append({"learner": "Tianshou, AsyncCollector", "seed": 1, "score": 0.2, "shares": [0.3, 0.1, 0.1, 0.0] * 4})
    rows = dict(line[2:].split(" | ", 1) for line in fairness.learners_table(runs).splitlines()[2:])
    assert rows[names[0]] == "0.100 – 0.970 | 1 of 2 < 0.2 | – |" and rows[names[1]].endswith("| 1 of 2 ≥ 0.95 | – |")
    assert rows["Tianshou, AsyncCollector"] == "0.200 – 0.200 | 0 of 1 < 0.2 | 3.0 |"
    assert rows["TorchRL, Collector"] == "not measured | ≥ 0.95 expected | – |"


def test_the_pages_say_what_compiling_costs_and_how_fast_cartpole_is_learnt(tmp_path: Path) -> None:
    from benchmarks import learner

    pages = [page.read_text() for page in learner.PAGES]
    texts = learner.sections(learner.stored())
    assert [report.fill(page, texts) for page in pages] == pages, "python -m benchmarks.learner --page writes them"
    assert all(any(f"<!-- begin {name} -->" in page for page in pages) for name in texts)
    measured = {"small": {"256": {"first": 12.0, "eager": [0.4, 0.5, 0.6], "compiled": [0.2, 0.25, 0.3]},
                          "64": {"first": 9.0, "eager": [0.1], "compiled": [0.2]}}}  # fmt: skip
    pays, never = learner.sections({"compile": {"measured": measured}})["learner_compile"].splitlines()[2:]
    assert pays == "| MLP, 8 numbers | 256 | 125.00 ms | 2.00 (2.00 – 2.00) | 12 s | 192 minibatches |"
    assert never.endswith("| 0.50 (0.50 – 0.50) | 9 s | never |")
    curves = {"fused": [{"seconds": [0.1, 0.2, 0.3], "returns": [20.0, 480.0, 470.0]},
                        {"seconds": [0.1, 0.4], "returns": [22.0, 475.0]}],
              "SB3": [{"seconds": [1.0, 9.0], "returns": [30.0, 200.0]}]}  # fmt: skip
    text = learner.sections({"curves": {"measured": curves}})["learner_curves"]
    assert text.endswith(": fused 0.20 to 0.40 s, 2 of 2 seeds; SB3 0 of 1 seeds.")
    learner.draw_curves(curves, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_stable_baselines_has_the_learning_rates_of_ppo_at_each_update() -> None:
    from benchmarks.learner_trainings import rate_of_sb3
    from cleanrl_demo.ppo import Config

    config = Config("CartPole-v1", num_envs=32, rollout_length=64, total_steps=70_000, learning_rate=1e-3)
    ends = range(2048, 70_000 + 2048, 2048)  # of its rollouts
    rates = [rate_of_sb3(config, 1 - end / config.total_steps) for end in ends]
    assert rates[0] == 1e-3 and rates == sorted(rates, reverse=True)
    assert abs(rates[-1] - 1e-3 * (1 - 34 * 2048 / 70_000)) < 1e-12 and rates[-1] > 0


def test_speeds_of_the_learner_are_judged_by_bars_and_name_lower_scores() -> None:
    from benchmarks.learner_tables import sections

    def entries(seconds: float, figure: str, *values: float) -> list[dict[str, float]]:
        return [{"seconds": seconds, "cpu_s": seconds, figure: value} for value in values]

    ours = {"fused": [0.1, 0.1], "two threads": [0.1, 0.1], "two copies": [0.16, 0.2]}
    update = {size: {**ours, "eager": [0.5, 0.6], "compiled": [0.4, 0.4]} for size in ("256", "64")}
    rollout = {"32": {"fused": [0.1], "torch": [0.7]}}
    cartpole = {
        "fused": entries(0.5, "mean_return", 500, 474),
        "ppo": entries(4.0, "mean_return", 480),
        "sb3": entries(5.0, "mean_return", 477.5),
    }
    ocean = {
        "ocean/bandit": {"fused": entries(1, "score", 0.9, 0.9), "torch": entries(3, "score", 1.0, 1.0)},
        "ocean/squared": {"fused": entries(2, "score", 0.99, 1.0), "torch": entries(3, "score", 0.99, 1.0)},
    }
    vectorizers = {
        "CartPole-v1": {"fused": entries(2, "mean_return", 80, 80), "torch": entries(5, "mean_return", 91, 90)},
        "Pendulum-v1": {"fused": entries(2, "mean_return", 9), "torch": entries(3, "mean_return", 8),
                        "sb3": entries(5, "mean_return", 10), "bare": [{"seconds": 1.5, "cpu_s": 1.4}],
                        "workers": entries(1.6, "mean_return", 11)},
    }  # fmt: skip
    parts = {"update": update, "rollout": rollout, "cartpole": cartpole, "ocean": ocean, "vectorizers": vectorizers}
    text = sections({name: {"measured": part} for name, part in parts.items()})["learner_speed"]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    takes = {row[0]: row[1] for row in rows}
    pendulum = "`ppo --learner fused` on Pendulum-v1"
    assert takes[pendulum] == "2.0 s, 2.0 CPU s; the bare environment 1.5 s"
    assert takes[f"{pendulum}, a pool of 2 workers"] == "1.6 s, 1.6 CPU s; the bare environment 1.5 s"
    verdicts = [row[3:] for row in rows]
    shares = ["0.90 (0.80 – 1.00) of their rate", "≥ 0.85", "yes", "–"]
    lower = "lower: bandit 0.900, not 1.000"
    assert verdicts == [
        ["5.50 (5.00 – 6.00) times as fast", "≥ 5", "yes", "–"],
        ["4.00 (4.00 – 4.00) times as fast", "≥ 3.5", "yes", "–"],
        shares,
        ["5.50 (5.00 – 6.00) times as fast", "≥ 12", "**no**", "–"],
        ["4.00 (4.00 – 4.00) times as fast", "≥ 9", "**no**", "–"],
        shares,
        ["7.00 (7.00 – 7.00) times as fast", "≥ 8", "**no**", "–"],
        ["0.50 (0.50 – 0.50) s, 0.50 CPU s", "≤ 1.0 s, all seeds", "**no**",
         "≥ 475 with 1 of 2 seeds, the least mean 474"],
        ["8.00 (8.00 – 8.00) times as fast", "≥ 8", "yes", "≥ 475 with 1 of 1 seeds, the least mean 480"],
        ["10.00 (10.00 – 10.00) times as fast", "–", "–", "≥ 475 with 1 of 1 seeds, the least mean 478"],
        ["2.25 (1.50 – 3.00) times as fast, by environment", "≥ 2", "yes", lower],
        ["0.50 of its sum of seconds", "≤ 0.45", "**no**", lower],
        ["2.50 (2.50 – 2.50) times as fast", "≥ 2", "yes", "80 (80 – 80) next to 90 (84 – 97), lower"],
        ["1.50 (1.50 – 1.50) times as fast", "–", "–", "9 next to 8"],
        ["2.50 (2.50 – 2.50) times as fast", "≥ 3", "**no**", "9 next to 10"],
        ["3.12 (3.12 – 3.12) times as fast", "≥ 3", "yes", "11 next to 10"],
    ]  # fmt: skip
    assert sections({})["learner_speed"] == "Not measured yet."


@pytest.mark.slow
def test_pages_that_programs_make_say_what_their_results_say() -> None:
    from benchmarks import fault_tables, ocean, reference
    from benchmarks.pages import without_revisions
    from tests.laws.chaos.report import page as chaos_page

    stored = {
        name: json.loads((report.RESULTS / f"{name}.json").read_text()) for name in ("ocean", "reference", "chaos")
    }
    returns = {(run["task"], run["contestant"], run["settings"]["seed"]): run for run in stored["reference"]["runs"]}
    faults = fault_tables.fault_sections(report.RESULTS / "faults.json")
    for page, generated in {
        "ocean_scores": ocean.page(stored["ocean"]["by_env"]),
        "reference": reference.page(stored["reference"], returns),
        "chaos": chaos_page((ROOT / "docs/chaos.md").read_text(), stored["chaos"]),
        "faults": report.fill((ROOT / "docs/faults.md").read_text(), faults),
    }.items():
        assert without_revisions((ROOT / f"docs/{page}.md").read_text()) == without_revisions(generated), page


def test_training_next_to_others_is_reported_as_measured() -> None:
    table, readme = (ROOT / "docs/training.md").read_text(), report.PAGES[0].read_text()
    for measured in json.loads((report.RESULTS / "train.json").read_text())["environments"]:
        ours, *others = measured["contestants"]
        speeds, *theirs = ([run["steps_per_s"] for run in item["runs"]] for item in measured["contestants"])
        assert f"{ours['name']} (" in table and f"| {MedianRange.of(speeds):,.0f} | |" in table
        for other, their_speeds in zip(others, theirs, strict=True):
            held = f"{MedianRange.of(ratios(speeds, their_speeds)):.2f}"
            assert f"| {MedianRange.of(their_speeds):,.0f} | {held} | " in table
            assert f"{held} times" in readme or not other["name"].startswith("SB3")


def test_report_draws_what_there_are_results_for(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = report.draw(RESULTS, tmp_path)
    assert [path.name for path in drawn] == ["overhead.png", "real.png", "grid.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_listing_workloads_runs_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["peers.py", "--list", "--only", "trivial-s*"])
    peers.main()
    *lines, total = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["trivial-sync", "trivial-serial-32", "trivial-serial-8"]
    assert total.startswith("about ")


# --------------------------------------------------------------------------------------------- pictures, Ocean's


def test_the_dashboards_picture_is_taken_before_the_training_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import dashboard

    out, sizes = tmp_path / "dashboard.svg", {"num_envs": 4, "rollout_length": 4, "total_steps": 64}
    config = dashboard.ppo.Config(env="ocean/bandit", backend="serial", eval_episodes=1, runs=None, **sizes)
    for name, value in (("OUT", out), ("CONFIG", config), ("breakout", None)):
        monkeypatch.setattr(dashboard, name, value)
    dashboard.main()
    assert "ocean/bandit" in out.read_text().replace("&#160;", " ")


def test_oceans_results_are_whole_whenever_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import ocean

    path, results = tmp_path / "ocean.json", {"ocean/bandit": {"runs": [{"seed": 1, "score": 1.0}]}}
    ocean.write(path, results)
    before = json.loads(path.read_text())
    assert before == {"by_env": results}

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "write_text", lambda self, text: (self.write_bytes(text[:9].encode()), killed()))
        ocean.write(path, {"ocean/bell": {"runs": [{"seed": 1, "score": 1.0}]}})
    assert json.loads(path.read_text()) == before


def test_the_page_of_ocean_leaves_out_seconds_on_a_busy_machine_and_names_what_was_measured_elsewhere() -> None:
    from benchmarks import ocean

    facts = {"machine": "A", "date": "1999-01-01", "version": "1"}
    runs = [{"backend": "serial", "seed": seed, "score": 1.0, "seconds": 3.0 * seed} for seed in (1, 2)]
    results = {env: {**facts, "runs": runs} for env in ("ocean/bandit", "ocean/bell")}
    results["ocean/uneven"] = {**facts, "machine": "B", "runs": [{**run, "busy": run["seed"] == 2} for run in runs]}
    lines = ocean.page(results).splitlines()
    assert "A. 1999-01-01, version 1." in lines and "ocean/uneven: B. 1999-01-01, version 1." in lines
    cells = {line.split(" | ")[0][2:]: line.split(" | ")[6] for line in lines if line.startswith("| ocean/")}
    assert (cells["ocean/bell"], cells["ocean/uneven"], cells["ocean/squared"]) == ("4.5, 6.0", "3.0, 3.0", "—")


# ------------------------------------------------------------------------------------------------------ kernels


@pytest.mark.slow
@pytest.mark.long
def test_kernels_are_measured_on_the_host_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = importlib.import_module("benchmarks.gpu")
    small = {"num_envs": (10,), "num_agents": (5,), "sampler_envs": (10,), "min_steps": 5, "min_s": 0.01, "repeats": 2}
    monkeypatch.setattr(gpu, "SHORT", small)
    out = tmp_path / "gpu-host.json"
    lines = tmp_path / "lines"
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "host", "--out", str(out), "--lines", str(lines)])
    gpu.main()
    results = json.loads(out.read_text())
    assert [item["way"] for item in results["figures"]] == [
        *["launch", "rollout", "network", "logits"] * 2,
        "numpy",
        "numpy",
    ]
    assert all(item["least"] <= item["median"] <= item["greatest"] for item in results["figures"])
    assert [item["way"] for item in results["sampler"]] == ["ours", "torch", "multinomial"] * 2
    assert "| tag/grid | 5 | 10 | rollout |" in gpu.table(results)
    assert "| tag/grid | 5 | 50 | ours |" in gpu.table(results)
    assert "Target 5 times torch's for 50 rows of 11 x 11: " in gpu.table(results)
    assert all(nbytes < struct / 5 for struct, nbytes in results["argument_us"].values())
    assert re.search(r"Arguments of tag/grid, handed to CuPy: [\d.]+ µs a launch; as a struct", gpu.table(results))
    assert results["warpdrive"] == "left out: it needs a CUDA device, and this is the host"
    assert all(item["steps"] > 0 for item in results["figures"]) and not results["left_out"]
    written = lines_of(lines)
    assert written[0]["of"] == "device" and [line["way"] for line in written[1:]] == [
        *["launch", "rollout", "network", "logits"] * 2,
        *["ours", "torch", "multinomial"] * 2,
        *["numpy"] * 2,
    ]
    gpu_plots = importlib.import_module("benchmarks.gpu_plots")
    assert gpu_plots.plot_kernels(out, tmp_path).stat().st_size > 5000


@pytest.mark.long
def test_kernels_are_measured_by_their_worth_while_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = importlib.import_module("benchmarks.gpu")
    out = tmp_path / "gpu-host.json"
    asked = ["--cases", "tag/grid:10x5", "tag/continuous:10x5", "--limit", "0.001", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "host", *asked])
    gpu.main()
    results = json.loads(out.read_text())
    assert not results["figures"] and not results["sampler"]
    assert results["left_out"][0] == "tag/grid 10 x 5, for want of time" and len(results["left_out"]) >= 4
    with pytest.raises(argparse.ArgumentTypeError, match=r"'tag/cube:3x4' is no case; write ENV:NUM_ENVSxNUM_AGENTS"):
        gpu.Case.of("tag/cube:3x4")


def test_cases_with_a_target_come_first_and_all_are_timed_within_limits() -> None:
    gpu = importlib.import_module("benchmarks.gpu")
    cases = gpu.cases(gpu.LONG)
    sizes = [(case.env, case.num_envs, case.num_agents) for case in cases]
    targets = {target[:3] for target in gpu.TARGETS}
    assert set(sizes[: len(targets)]) == targets and len(set(sizes)) == len(sizes) == 2 * 7 * 4
    played = []

    def play() -> int:
        time.sleep(0.002)
        played.append(2)
        return 2

    settings = {"min_steps": 100, "min_s": 0.01, "repeats": 4, "most_s": 1000.0}
    rates, steps = gpu.timed(play, settings, torch.device("cpu"))
    assert steps == 100 and len(rates) == 4 and sum(played) >= 400 and 0 < min(rates) <= max(rates) <= 1001
    rates, steps = gpu.timed(play, {**settings, "most_s": 0.0}, torch.device("cpu"))
    assert steps == 2 and len(rates) == 4


def test_warpdrive_says_why_it_is_left_out_and_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, warpdrive = (importlib.import_module(f"benchmarks.{name}") for name in ("gpu", "warpdrive"))
    cases, device = [gpu.Case("tag/grid", 10, 5), gpu.Case("tag/continuous", 10, 5)], torch.device("cuda", 0)
    assert warpdrive.figures_of(cases, {}, torch.device("cpu"))[1].endswith("this is the host")
    monkeypatch.setattr(warpdrive, "find_spec", lambda module: None if module == "gym" else module)
    assert warpdrive.figures_of(cases, {}, device) == ([], "left out: not installed: gym (see benchmarks/warpdrive.py)")
    monkeypatch.setattr(warpdrive, "find_spec", lambda module: module)
    monkeypatch.setattr(warpdrive.metadata, "version", lambda package: "2.7.1")
    figure = dataclasses.asdict(gpu.figure(cases[0], "warpdrive", ([2.0, 1.0, 3.0], 7)))
    asked = []

    def run(command: list[str], *, input: str, stdout: Any, text: bool, timeout: float) -> Any:
        asked.append((command[-1], json.loads(input), timeout))
        stdout.write(f"Setting Numba\n{json.dumps(figure)}\n{{'cut': ")
        stdout.flush()
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(warpdrive.subprocess, "run", run)
    figures, text = warpdrive.figures_of(cases, {"warpdrive_s": 5.0}, device)
    assert figures == [figure] and (figure["median"], figure["least"], figure["steps"]) == (20.0, 10.0, 7)
    assert text == "2.7.1: 1 of 2 cases in 0 s; then its time was up"
    (name, arguments, timeout), *_ = asked
    assert (name, arguments["device"], timeout) == ("benchmarks.warpdrive", "cuda:0", 5.0)
    assert [gpu.Case(**item) for item in arguments["cases"]] == cases


@pytest.mark.gpu  # it needs none, but is installed only where there is one, if there
def test_warpdrive_has_the_environments_that_are_measured() -> None:
    pytest.importorskip("warp_drive")
    gpu, warpdrive = (importlib.import_module(f"benchmarks.{name}") for name in ("gpu", "warpdrive"))
    for case in (gpu.Case("tag/grid", 10, 5), gpu.Case("tag/continuous", 10, 105)):
        env = warpdrive.environment(case)
        assert (env.num_agents, env.grid_length) == (case.num_agents, case.env_kwargs["grid_length"])
        assert len(env.reset()[0]) == (6 if case.env == "tag/grid" else 7 * case.num_nearest + 1)


@pytest.mark.long
def test_the_kernel_benchmark_refuses_a_kernel_that_plays_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_ext.references.tag_grid import TagGrid

    gpu = importlib.import_module("benchmarks.gpu")
    gpu.hold_against_reference("host")
    monkeypatch.setattr(TagGrid, "_rewards", lambda self, hit, tagged: np.zeros(len(hit), np.float32))
    with pytest.raises(AssertionError, match="rewards"):
        gpu.hold_against_reference("host")


def test_the_model_of_ray_fits_what_follows_it_and_adds_calls_up() -> None:
    costs = ray_model.Costs(ray_model.Cost(2e-4, 0.0, 3e-7, 1e-10), ray_model.Cost(4e-4, 3e-5, 0.0, 5e-10))
    calls = [ray_model.Call(*sizes) for sizes in itertools.product((4, 8, 128), (1, 4), (32, 28224))]
    for cost in costs:
        assert ray_model.fitted([(call, cost.of(*call)) for call in calls]) == pytest.approx(cost, abs=1e-12)
    one_worker = [call for call in calls if call.num_workers == 1]  # which do not tell a worker from a call
    assert ray_model.fitted([(call, costs.rest.of(*call)) for call in one_worker]).of(8, 1, 32) == pytest.approx(
        costs.rest.of(8, 1, 32)
    )
    model = ray_model.Model(costs, ray_model.Costs(*(cost._replace(call_s=1e-2) for cost in costs)))
    own_s, rest_s = (cost.of(8, 1, 32) for cost in costs)
    alone = ray_model.Arrangement(1, 8, 32, step_s=1e-3, learner_s=1e-5)
    round_s = own_s + rest_s + 8e-3 + 8e-5
    forecast = ray_model.simulate(model, alone)
    assert forecast.steps_per_s == pytest.approx(8 / round_s)
    assert forecast.busy == pytest.approx((own_s + 8e-5) / round_s)
    four = ray_model.simulate(model, alone._replace(num_workers=4))
    assert four.steps_per_s == pytest.approx(8 / (round_s - 6e-3 + 3 * 3e-5))
    large = ray_model.simulate(model, alone._replace(obs_nbytes=28224))
    way_s = 2e-2 + sum(cost.of(8, 1, 28224) - cost.call_s for cost in costs)
    assert large.steps_per_s == pytest.approx(8 / (way_s + 8e-3 + 8e-5))  # through Ray
    # Of a thousand actors the driver's thread hears one after another, and half of them play meanwhile.
    many = ray_model.simulate(model, alone._replace(num_actors=1000, batch_envs=4000))
    assert many.busy == pytest.approx(1)
    # The first row waits only a millisecond, so an answer with the others follows, and then a call with actions.
    assert 8 / (3 * own_s + 8e-5) < many.steps_per_s < 8 / (own_s + 8e-5)
    # Two actors that never sleep, on one core: nothing goes on side by side.
    crowded = alone._replace(num_actors=2, step_s=0.0, cores=1)
    assert ray_model.simulate(model, crowded).steps_per_s == pytest.approx(8 / (own_s + rest_s + 8e-5), rel=0.01)


def test_the_model_of_ray_answers_by_the_rules_of_a_pool() -> None:
    """One worker's rows come a millisecond apart, and the first of an answer waits a millisecond for others."""
    free = ray_model.Costs(ray_model.Cost(1e-9, 0.0, 0.0, 0.0), ray_model.Cost(1e-9, 0.0, 0.0, 0.0))
    pool = ray_model.Arrangement(2, 8, 32, step_s=1e-3, batch_envs=8)
    assert ray_model.simulate(ray_model.Model(free, free), pool).steps_per_s == pytest.approx(2000, rel=1e-3)
    costly = free._replace(driver=free.driver._replace(call_s=1e-4))
    busy = ray_model.simulate(ray_model.Model(costly, free), pool).busy
    assert 2000 / 2 * 1e-4 < busy < 2000 * 1e-4  # an answer holds two rows, or one if the next call cuts it short
    all_at_once = ray_model.simulate(ray_model.Model(costly, free), pool._replace(batch_envs=None))
    assert all_at_once.busy == pytest.approx(2000 / 8 * 1e-4, rel=0.05)  # an answer holds all eight


@pytest.mark.long
def test_what_ray_scale_measured_is_reported_and_drawn(tmp_path: Path) -> None:
    stored = json.loads(ray_scale.STORED.read_text())
    texts = ray_scale.texts(stored)
    page = ray_scale.PAGE.read_text()
    assert report.fill(page, texts) == page, "python -m benchmarks.ray_scale --plot writes it"
    assert texts["scale_nodes"].count("\n") == 3 + len(stored["nodes"])
    ray_scale.plot(stored, tmp_path / "scale.png")
    assert (tmp_path / "scale.png").stat().st_size > 5000


def test_what_installing_takes_is_tabulated() -> None:
    figures = {
        "install_s": [3.0, 1.0, 2.0],
        "import_s": [0.3, 0.2, 0.4],
        "modules": 1234,
        "mb": {"own": 2.24, "all": 90.6, "torch": 0.0},
    }
    results = {"machine": "a machine", "load": [0.1, 1.0], "day": "today", "command": "this"}
    text = install.table({**results, "figures": {"ours": figures, "EnvPool 1.2.5": {"failed": "no such wheel"}}})
    ours = "| ours | 2.2 | 91 |  | 2.0 (1.0 – 3.0) | `pufferlib` | 0.30 (0.20 – 0.40) | 1,234 |"
    lost = "| EnvPool 1.2.5 | could not be installed: no such wheel | | | | | | |"
    assert text.splitlines()[-2:] == [ours, lost]


def test_tic_tac_toe_is_solved() -> None:
    """A draw; and at random the first seat wins 58.5 % of all games and loses 28.8 %, as is known."""
    assert tictactoe.best_value() == 0 and len(tictactoe.boards()) == 4520
    perfect, chance = tictactoe.perfect(), tictactoe.chance()
    assert tictactoe.value(perfect, perfect) == 0
    assert tictactoe.value(chance, chance) == pytest.approx(0.2968, abs=1e-4)
    assert tictactoe.value(perfect, chance) > 0.9 and -tictactoe.value(chance, perfect) > 0.75


def test_results_are_written_with_a_line_for_each_item_of_their_tables() -> None:
    result = {
        "date": "2026-11-26",
        "load": [0.5, 1.0],
        "participants": [{"name": "ours", "turns": [{"steps": 1}, {"steps": 2}]}, {"name": "theirs", "turns": []}],
        "by_env": {"coin": [1, 2], "bandit": {"score": 1.0}},
        "curve": [[1, 2.0], [3, 4.0]],
        "left_out": [],
    }
    text = table_text(result)
    assert json.loads(text) == result
    assert text.splitlines() == [
        '{"date": "2026-11-26", "load": [0.5, 1.0], "curve": [[1, 2.0], [3, 4.0]], "left_out": [],',
        '"participants": [',
        ' {"name": "ours", "turns": [{"steps": 1}, {"steps": 2}]},',
        ' {"name": "theirs", "turns": []}',
        "],",
        '"by_env": {',
        ' "coin": [1, 2],',
        ' "bandit": {"score": 1.0}',
        "}}",
    ]
    assert table_text({"runs": [{"a": 1}]}) == '{"runs": [\n {"a": 1}\n]}\n'


def test_the_raw_results_are_small() -> None:
    """A line for each item of a table, and below 5,000 lines in all."""
    files = list(report.RESULTS.rglob("*.json"))
    assert all(path.read_text() == table_text(json.loads(path.read_text())) for path in files)
    assert sum(path.read_text().count("\n") for path in report.RESULTS.rglob("*.*")) < 5000


def test_a_list_schedule_gives_each_episode_to_the_slot_that_is_free_first() -> None:
    assert list_schedule([3, 1, 1, 1, 2], 2) == 5
    assert list_schedule([2, 2], 3) == 2 and list_schedule([2, 2, 5], 1) == 9
