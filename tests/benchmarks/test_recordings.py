"""Recordings of real environments, what replays them, and the tables of overheads that are measured with them."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import pufferlib
from benchmarks import adapter_overhead, overhead_tables, recordings, report
from benchmarks.overhead_workloads import FAMILIES, REPLAYED
from benchmarks.participants import LIBRARIES, Participant, floor_of
from benchmarks.replayed import ReplayedEnv
from benchmarks.targets_table import targets_table
from benchmarks.workloads import WORKLOADS
from pufferlib.environments import families

pytestmark = pytest.mark.beside

BOX = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, 2], np.float32))


# ----------------------------------------------------------------------------------------- recording and replaying


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Box(0, 255, (2, 3), np.uint8),
        spaces.Discrete(3, start=-1),
        spaces.MultiBinary(4),
        spaces.MultiBinary((2, 3)),
        spaces.MultiDiscrete([2, 3]),
        spaces.Text(5, min_length=2, charset="abc"),
        spaces.Dict({"b": BOX, "a": spaces.Tuple((spaces.Discrete(2), BOX))}),
    ],
    ids=str,
)
def test_a_space_is_built_as_it_was_described(space: spaces.Space[Any]) -> None:
    description = pickle.loads(pickle.dumps(recordings.described(space)))
    assert recordings.built(description) == space
    assert "gymnasium" not in repr(pickle.dumps(description)), "any version of Gymnasium reads it"


class Odd(gymnasium.Env[Any, Any]):
    """Returns what environments may, in episodes of three steps; one info again and again."""

    observation_space, action_space = BOX, spaces.Discrete(2)
    info = {"zebra": np.float64(1.5), "ant": {"array": np.arange(3, dtype=np.int8)}, "list": [1, "two", None]}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick = 0
        return np.zeros(2, np.float32), {"seed": seed}

    def step(self, action: Any) -> Any:
        self.tick += 1
        observation = np.asfortranarray(np.full((2, 2), self.tick, np.float32))[0]
        return observation, np.float32(self.tick), np.bool_(self.tick == 3), False, self.info


@pytest.fixture
def odd(tmp_path: Path) -> str:
    path = tmp_path / "odd.pickle"
    recordings.store(recordings.record(Odd(), steps=8), path)
    return str(path)


def test_a_replay_returns_what_was_recorded(odd: str) -> None:
    env, original = ReplayedEnv(odd), Odd()
    assert env.observation_space == BOX and env.action_space == Odd.action_space
    for episode in (0, 1):
        observation, _ = env.reset(seed=episode)
        assert np.array_equal(observation, original.reset()[0])
        for _ in range(3):
            replayed, expected = env.step(0), original.step(0)
            assert [type(value) for value in replayed] == [type(value) for value in expected]
            assert np.array_equal(replayed[0], expected[0]) and replayed[1:4] == expected[1:4]
            assert replayed[0].dtype is expected[0].dtype, "NumPy's own object, not a copy"
            info = replayed[4]
            assert list(info) == ["zebra", "ant", "list"] and info["list"] == Odd.info["list"]
            assert all(key is known for key, known in zip(info, Odd.info, strict=True)), "keys are interned"
            assert type(info["zebra"]) is np.float64 and info["ant"]["array"].dtype is np.dtype(np.int8)


def test_an_episode_that_the_last_step_interrupts_is_truncated(odd: str) -> None:
    loaded = recordings.load(odd)
    assert [len(results) for _, results in loaded["episodes"]] == [3, 3, 2]
    assert loaded["episodes"][0][1][-1][2:4] == (np.True_, False)
    assert loaded["episodes"][2][1][-1][2:4] == (np.False_, True)
    assert loaded["notes"] == {"returned again": ["info"], "not contiguous": ["observation"]}


def test_episodes_follow_one_another_from_the_one_that_a_seed_names(odd: str) -> None:
    env, begins = ReplayedEnv(odd), [begin for begin, _ in recordings.load(odd)["episodes"]]
    assert [env.reset(seed=seed) is begins[1] for seed in (1, 4)] == [True, True]
    assert env.reset() is begins[2] and env.reset() is begins[0]


def test_what_other_versions_could_not_read_is_refused(tmp_path: Path) -> None:
    class Mission(spaces.Text):
        pass

    with pytest.raises(TypeError, match="Mission"):
        recordings.described(Mission(3))
    env = Odd()
    env.info = {"spec": env}  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="Odd"):
        recordings.record(env, steps=1)
    with pytest.raises(FileNotFoundError, match="python -m benchmarks.record nothing"):
        recordings.load(str(tmp_path / "nothing.pickle"))


def test_our_steps_leave_a_recording_as_it_is(odd: str) -> None:
    recorded = pickle.dumps(recordings.load(odd)["episodes"])
    with pufferlib.make(ReplayedEnv, env_args=[odd], num_envs=3) as vec:
        vec.reset()
        for _ in range(12):
            vec.step(np.zeros(3, int))
    assert pickle.dumps(recordings.load(odd)["episodes"]) == recorded


def test_agents_come_and_go_as_recorded(tmp_path: Path) -> None:
    pettingzoo = pytest.importorskip("pettingzoo")
    from benchmarks.agents import ReplayedAgents

    class Relay(pettingzoo.ParallelEnv):  # type: ignore[misc]
        """The second agent joins as the first leaves."""

        possible_agents = ["first", "second"]

        def observation_space(self, agent: str) -> Any:
            return BOX

        def action_space(self, agent: str) -> Any:
            return Odd.action_space

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.agents, self.tick = ["first"], 0
            return {"first": np.zeros(2, np.float32)}, {"first": {}}

        def step(self, actions: Any) -> Any:
            assert list(actions) == self.agents
            self.tick += 1
            reported = list(self.possible_agents) if self.tick == 2 else self.agents
            gone = {agent: (agent, self.tick) in (("first", 2), ("second", 4)) for agent in reported}
            self.agents = [agent for agent in reported if not gone[agent]]
            rewards: Any = defaultdict(float, dict.fromkeys(reported, float(self.tick)))
            seen = {agent: np.full(2, self.tick, np.float32) for agent in reported}
            return seen, rewards, gone, dict.fromkeys(reported, False), {agent: {} for agent in reported}

    path = tmp_path / "relay.pickle"
    recordings.store(recordings.record_agents(Relay(), steps=6), path)
    env, original = ReplayedAgents(str(path)), Relay()
    env.reset(seed=0)
    original.reset()
    while original.agents:
        assert env.agents == original.agents
        replayed, expected = env.step({}), original.step(dict.fromkeys(original.agents, 0))
        assert str(replayed) == str(expected) and type(replayed[1]) is defaultdict
    assert env.agents == []
    env.reset()
    assert env.agents == ["first"]
    env.step({})
    *_, truncations, _ = env.step({})  # the sixth that was recorded
    assert env.agents == [] and set(truncations.values()) == {True}


# ------------------------------------------------------------------------------------------------ tables of overheads


def result(name: str, steps: dict[str, float], **failed: str) -> dict[str, Any]:
    entries: list[dict[str, Any]] = [
        {"name": item, "status": "ran", "turns": [{"steps": rate, "seconds": 1.0}] * 3} for item, rate in steps.items()
    ]
    entries += [
        {"name": item.replace("_", " "), "status": why, "reason": why, "turns": []} for item, why in failed.items()
    ]
    return {"workload": dataclasses.asdict(WORKLOADS[name]), "participants": entries}


def test_overheads_are_taken_from_the_floor_on_the_same_games() -> None:
    rates = {"ours serial": 1e5, "gymnasium sync": 5e4, "pufferlib-3.0 serial": 1e5, "ours-old serial": 2e5}
    measured = result("played-half-cheetah", {**rates, "bare steps": 2e5, "bare-old steps": 4e5}, sb3_dummy="failed")
    heads, _, row = overhead_tables.overhead_tables({"played-half-cheetah": measured})["played"].splitlines()
    cells = dict(zip(heads.strip("| ").split(" | "), row.strip("| ").split(" | "), strict=True))
    assert cells["environment"] == "HalfCheetah" and cells["steps alone, µs"] == "5.00 (5.00 – 5.00)"
    assert (
        cells["ours serial, + µs"] == "5.00 (5.00 – 5.00)" and cells["SyncVectorEnv, + µs"] == "15.00 (15.00 – 15.00)"
    )
    assert cells["PufferLib 3.0 Serial, + µs"] == "7.50 (7.50 – 7.50)", "above the loop on Gymnasium 0.29"
    assert cells["ours serial (Gymnasium 0.29), + µs"] == "2.50 (2.50 – 2.50)"
    assert cells["DummyVecEnv, + µs"] == "—"


def test_our_overhead_is_a_share_of_a_peers() -> None:
    measured = result("replayed-taxi", {"ours serial": 1e5, "gymnasium sync": 5e4, "bare steps": 2e5})
    heads, _, row = overhead_tables.overhead_tables({"replayed-taxi": measured})["replayed"].splitlines()
    assert heads.endswith("| ours serial of SyncVectorEnv's |") and row.endswith("| 0.33 (0.33 – 0.33) |")


def test_our_overhead_is_a_share_of_the_time_of_copies_without_their_calls() -> None:
    rates = {"ours serial": 1e5, "gymnasium sync": 5e4, "bare steps": 2e5, "bare copies": 1.25e5, "bare calls": 2.5e5}
    name = "family-ale-breakout-v5"
    measured = {name: result(name, rates)}
    heads, _, row = overhead_tables.overhead_tables(measured)["families"].splitlines()
    assert heads.endswith("| copies alone, + µs | ours serial of SyncVectorEnv's | ours serial of the copies |")
    assert row.endswith("| 4.00 (4.00 – 4.00) | 0.33 (0.33 – 0.33) | 1.25 (1.25 – 1.25) |")
    title = overhead_tables.GROUPS["families"]
    target = f"| {title} | 1.2× the time of copying the observations | 1.25 (1.25 – 1.25) | **no** |"
    assert f"{target} 0 of 1; the worst: ALE/Breakout-v5 |" in targets_table(measured)


def test_a_group_of_workloads_with_one_target_is_judged_by_the_worst() -> None:
    assert set(overhead_tables.GROUPS) == {name for names, _ in overhead_tables.TABLES.values() for name in names}
    shared = {"gymnasium sync": 5e4, "bare steps": 2e5}
    measured = {
        "replayed-taxi": result("replayed-taxi", {"ours serial": 1e5, **shared}),
        "replayed-pong": result("replayed-pong", {"ours serial": 1.6e5, **shared}),
        "replayed-reacher": result("replayed-reacher", {"ours serial": 1.6e5}),
        "workers-taxi": result("workers-taxi", {"ours serial": 1e5, "ours processes@w2": 1.6e5}),
        "workers-pong": result("workers-pong", {"ours serial": 1e5, "ours processes@w2": 1.9e5}),
        "native-64": result("native-64", {"ours serial": 1e5, "bare steps": 2e5}),
    }
    rows = targets_table(measured).splitlines()
    note = "1 of 2; the worst: Taxi; not measured: Reacher"
    replayed, workers = overhead_tables.GROUPS["replayed"], overhead_tables.GROUPS["workers"]
    assert f"| {replayed} | 1/4 of SyncVectorEnv's overhead | 0.33 (0.33 – 0.33) | **no** | {note} |" in rows
    assert f"| {workers} | 1.5× the serial backend | 1.60 (1.60 – 1.60) | yes | 2 of 2; the worst: Taxi |" in rows
    assert any("an overhead of 1.5 µs | 5.00 (5.00 – 5.00) µs | **no**" in row for row in rows)
    only = {"replayed-reacher": measured["replayed-reacher"]}
    assert "| — | not measured | not measured: Reacher |" in targets_table(only)


def test_every_bar_on_overheads_is_a_target() -> None:
    without = {
        name for name, item in WORKLOADS.items() if overhead_tables.table_of(result(name, {})) and not item.targets
    }
    assert not without


def test_rows_that_a_version_lacks_are_said_to_be_and_nothing_measured_says_how_to() -> None:
    measured = result(
        "infos-one", {"bare steps": 2e5, "ours processes@w2": 1e5}, **{"ours_processes-column@w2": "not handled"}
    )
    text = overhead_tables.overhead_tables({"infos-one": measured})
    assert "| not handled |" in text["infos"] and "'replayed-*'`" in text["replayed"]
    assert all("benchmarks.peers --only" in item for item in overhead_tables.overhead_tables({}).values())


def test_the_readme_shows_real_environments_as_soon_as_they_are_measured() -> None:
    assert report.speed_text({}) == ""
    assert {WORKLOADS[name].env for name in report.SPEED} >= {"half_cheetah", "simple_tag"}
    assert "docs/benchmarks/speed.png" in report.speed_text({name: {} for name in report.SPEED})


def test_families_are_replayed_by_the_examples_that_they_are_played_by() -> None:
    examples = {(stem, item.name) for stem, family in families().items() for item in family.examples}
    assert FAMILIES and {(item.stem, item.name) for item in FAMILIES.values()} <= examples
    assert not FAMILIES.keys() & REPLAYED.keys()
    assert sum(name.startswith("family-") for name in WORKLOADS) == len(FAMILIES)


@pytest.mark.parametrize(
    "workload", [item for item in WORKLOADS.values() if "bare steps" in item.participants], ids=lambda item: item.name
)
def test_every_overhead_has_a_floor_on_the_same_games(workload: Any) -> None:
    assert overhead_tables.table_of(result(workload.name, {})) in {
        name for names, _ in overhead_tables.TABLES.values() for name in names
    }
    for name in workload.participants:
        floor = floor_of(name, workload.participants)
        old = LIBRARIES[Participant.of(name).library].old_games
        assert floor in workload.participants and (
            old == LIBRARIES[floor.partition(" ")[0]].old_games or not workload.name.startswith("played-")
        )
    if "recording" in workload.env_kwargs:
        assert workload.env_kwargs["recording"] in {**REPLAYED, **FAMILIES}


def test_the_page_of_adapters_says_what_steps_cost() -> None:
    page = adapter_overhead.PAGE.read_text()
    text = adapter_overhead.text(json.loads(adapter_overhead.RESULT.read_text()))
    assert report.fill(page, {"adapter_overhead": text}) == page and text in page


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is cast to")
@pytest.mark.long
def test_steps_of_adapters_and_of_wrapped_environments_are_measured() -> None:
    pytest.importorskip("stable_baselines3")
    figures = adapter_overhead.measured(repeats=1, num_steps=3)
    assert len(figures) == 8 and all(cost > 0 for costs in figures.values() for (cost,) in costs.values())
    assert adapter_overhead.text({"us_per_step": figures}).count("| ---") == 3 + 2 + 2 + 3
