"""Kernels beside their references: the same to the bit, as plain loops, as fibres, and on a device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from devices import FIBRES, LOOPS, PLAYER_KINDS, Player, assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import covering

import pufferlib
from cuda_ext import functions

pytestmark = pytest.mark.beside

REFERENCE = "cuda_ext.references.tag_grid:TagGrid"
STAY, RIGHT, LEFT, UP, DOWN = range(5)
SHAPES = [  # for which fibres are compiled: taggers, runners, whether all is seen, how many nearest
    (1, 1, True, 1),
    (3, 2, False, 4),
    (2, 9, True, 1),
    (33, 2, False, 40),  # all threads search for each runner, for more than there are
    (12, 4, False, 1),
    (11, 24, False, 30),
]


def make(player: Player | None, **kwargs: Any) -> Any:
    """The kernel, or where nobody plays it the reference."""
    return pufferlib.make(REFERENCE, **kwargs) if player is None else player.make("tag/grid", **kwargs)


class Rows(NamedTuple):
    """A batch as NumPy arrays of its own."""

    observations: Any
    rewards: Any
    terminations: Any
    truncations: Any
    infos: list[dict[str, Any]]
    env_ids: Any
    agent_ids: Any
    masks: Any


def rows_of(vec: Any) -> Rows:
    batch = vec.host_batch
    return Rows._make(copy.deepcopy(list(part)) if part is batch.infos else np.array(part) for part in batch)


def assert_same(actual: Rows, expected: Rows) -> None:
    """To the bit; of infos the time is left out, and returns may be summed in another order."""
    for name, one, other in zip(Rows._fields, actual, expected, strict=True):
        if name == "infos":
            assert_same_infos(one, other)
        else:
            assert_same_bits(one, other, name)


def assert_same_infos(actual: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            if key == "r":
                assert actual[key] == pytest.approx(value, rel=1e-9)
            elif key != "t":
                assert_same_infos(actual[key], value)
    elif isinstance(expected, (list, pufferlib.vectorization.Infos)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same_infos(one, other)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(actual, expected)
    else:
        assert actual == expected


def rollout(player: Player | None, num_steps: int, actions_seed: int = 0, **kwargs: Any) -> list[Rows]:
    rng = np.random.default_rng(actions_seed)
    with make(player, **kwargs) as vec:
        vec.reset()
        steps = [rows_of(vec)]
        for _ in range(num_steps):
            vec.step(rng.integers(0, 5, vec.action_space.shape, np.int64))
            steps.append(rows_of(vec))
        return steps


# ------------------------------------------------------------------------------------------------------ any arguments

amounts = st.one_of(st.sampled_from([0.0, -0.0, 0.1, 1.0]), st.floats(-1e6, 1e6, width=32))


@st.composite
def arguments(draw: Callable[..., Any], shapes: st.SearchStrategy[tuple[int, int, bool, int]]) -> dict[str, Any]:
    """All that make takes for some environments."""
    taggers, runners, full, num_nearest = draw(shapes)
    length = draw(st.one_of(st.integers(1, 5), st.sampled_from([100, 32_767])))
    places = st.tuples(st.integers(0, length), st.integers(0, length))
    layouts = st.lists(places, min_size=taggers + runners, max_size=taggers + runners)
    starts = {
        "procedural": st.none(),
        "fixed": st.none() | layouts,
        "pool": st.none() | st.lists(layouts, min_size=1, max_size=3),
    }
    start = draw(st.sampled_from(sorted(starts)))
    env_kwargs = {
        "num_taggers": taggers,
        "num_runners": runners,
        "full_observation": full,
        "num_nearest": num_nearest,
        "grid_length": length,
        "episode_length": draw(st.integers(1, 8)),
        "wall_hit_penalty": draw(amounts),
        "tag_reward_for_tagger": draw(amounts),
        "tag_penalty_for_runner": draw(amounts),
        "step_cost_for_tagger": draw(amounts),
        "start": start,
        "starts": draw(starts[start]),
    }
    return {
        "env_kwargs": env_kwargs,
        "num_envs": draw(st.integers(1, 9)),
        "autoreset_mode": draw(st.sampled_from(["next_step", "same_step"])),
        "seed": draw(st.integers(0, 2**31)),
    }


any_shape = st.tuples(st.integers(1, 12), st.integers(1, 12), st.booleans(), st.integers(1, 14))


@settings(max_examples=15)
@given(kwargs=arguments(any_shape), actions_seed=st.integers(0, 99))
def test_loops_equal_the_reference(kwargs: dict[str, Any], actions_seed: int) -> None:
    check_equality(LOOPS, kwargs, actions_seed)


@settings(max_examples=6)
@given(kwargs=arguments(st.sampled_from(SHAPES[1:4:2])), actions_seed=st.integers(0, 99))
def test_fibres_equal_the_reference(kwargs: dict[str, Any], actions_seed: int) -> None:
    check_equality(FIBRES, kwargs, actions_seed)


@pytest.mark.gpu
@settings(max_examples=15)
@given(kwargs=arguments(any_shape), actions_seed=st.integers(0, 99))
def test_a_device_equals_the_reference(device: str, kwargs: dict[str, Any], actions_seed: int) -> None:
    check_equality(Player("device", device, {}), kwargs, actions_seed)


@pytest.mark.long
@settings(max_examples=100)
@given(kwargs=arguments(any_shape), actions_seed=st.integers(0, 99))
def test_loops_equal_the_reference_at_length(kwargs: dict[str, Any], actions_seed: int) -> None:
    check_equality(LOOPS, kwargs, actions_seed)


@pytest.mark.long
@settings(max_examples=100)
@given(kwargs=arguments(st.sampled_from(SHAPES)), actions_seed=st.integers(0, 99))
def test_fibres_equal_the_reference_at_length(kwargs: dict[str, Any], actions_seed: int) -> None:
    check_equality(FIBRES, kwargs, actions_seed)


def check_equality(player: Player, kwargs: dict[str, Any], actions_seed: int) -> None:
    num_steps = 2 * kwargs["env_kwargs"]["episode_length"] + 3  # two episodes at least
    expected = rollout(None, num_steps, actions_seed, **kwargs)
    assert sum(info.get("env", False) for rows in expected for info in rows.infos) >= 2 * kwargs["num_envs"]
    for actual, rows in zip(rollout(player, num_steps, actions_seed, **kwargs), expected, strict=True):
        assert_same(actual, rows)


NUM_AGENTS = [  # taggers, runners, whether all is seen
    (1, 1, True), (4, 1, True), (16, 15, True), (16, 16, False), (31, 2, True), (100, 5, False), (1000, 100, False),
    (990, 10, False),
]  # fmt: skip
FEWER = (1, 1), (16, 16), (1000, 100)  # in the short form: in a part of a warp, a block, and more than a block has


@covering({
    "agents": [pytest.param(row, marks=[] if row[:2] in FEWER else [pytest.mark.long]) for row in NUM_AGENTS],
    "autoreset_mode": ["next_step", "same_step"],
})  # fmt: skip
def test_any_number_of_agents(agents: tuple[int, int, bool], autoreset_mode: str) -> None:
    """A thread an agent, with threads to spare and without, in a part of a warp or a block; and fewer threads."""
    check_number(agents, autoreset_mode, LOOPS, FIBRES)


@pytest.mark.gpu
@covering({"agents": NUM_AGENTS, "autoreset_mode": ["next_step", "same_step"]})
def test_any_number_of_agents_on_a_device(agents: tuple[int, int, bool], autoreset_mode: str, device: str) -> None:
    check_number(agents, autoreset_mode, Player("device", device, {}))


def check_number(agents: tuple[int, int, bool], autoreset_mode: str, *kernel_players: Player) -> None:
    taggers, runners, full = agents
    env_kwargs = dict(num_taggers=taggers, num_runners=runners, full_observation=full, num_nearest=3, episode_length=2)
    num_envs = 9 if taggers + runners < 100 else 2
    kwargs = dict(env_kwargs=env_kwargs, num_envs=num_envs, seed=5, autoreset_mode=autoreset_mode)
    expected = rollout(None, 4, **kwargs)
    for player in kernel_players:
        for actual, rows in zip(rollout(player, 4, **kwargs), expected, strict=True):
            assert_same(actual, rows)


def test_shared_among_threads_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "THREAD_NS", 0)
    three = LOOPS._replace(backend_kwargs={"threads": 3})
    for num_envs in (1, 2, 3, 7):
        kwargs: dict[str, Any] = dict(num_envs=num_envs, seed=5, env_kwargs=dict(grid_length=2, episode_length=3))
        expected = rollout(None, 8, **kwargs)
        for actual, rows in zip(rollout(three, 8, **kwargs), expected, strict=True):
            assert_same(actual, rows)


# ------------------------------------------------------------------------------------------------------------- a pool


def trajectories(player: Player | None, batch_size: int, num_steps: int, **kwargs: Any) -> list[list[Rows]]:
    """What each environment gives, where its own step decides what it does."""
    with make(player, num_envs=7, batch_size=batch_size, **kwargs) as vec:
        rows_by_env: list[list[Rows]] = [[] for _ in range(7)]
        vec.async_reset()
        while min(map(len, rows_by_env)) < num_steps:
            vec.recv()
            batch = rows_of(vec)
            sent = []
            for slot, env_id in enumerate(batch.env_ids.tolist()):
                rows = slice(slot * vec.agents_per_env, (slot + 1) * vec.agents_per_env)
                env_infos = [item for item in batch.infos if item["env_id"] == env_id]
                parts = [env_infos if part is batch.infos else part[rows] for part in batch]
                rows_by_env[env_id].append(Rows._make(parts)._replace(env_ids=batch.env_ids[slot : slot + 1]))
                rng = np.random.default_rng([env_id, len(rows_by_env[env_id])])
                sent.append(rng.integers(0, 5, vec.agents_per_env))
            vec.send(np.concatenate(sent))
        return [item[:num_steps] for item in rows_by_env]


@covering(
    {"player": PLAYER_KINDS, "batch_size": [1, 3, 5], "autoreset_mode": ["next_step", "same_step"]}, indirect=["player"]
)
def test_trajectories_do_not_depend_on_the_batch(player: Player, batch_size: int, autoreset_mode: str) -> None:
    env_kwargs = dict(num_taggers=3, num_runners=2, full_observation=False, num_nearest=4, grid_length=2)
    kwargs = dict(env_kwargs={**env_kwargs, "episode_length": 6}, seed=8, autoreset_mode=autoreset_mode)
    expected = trajectories(None, 7, 16, **kwargs)
    for actual, rows in zip(trajectories(player, batch_size, 16, **kwargs), expected, strict=True):
        for one, other in zip(actual, rows, strict=True):
            assert_same(one, other)


# -------------------------------------------------------------------------------------------------------------- scenes

WALL, TAG, PENALTY, COST = map(np.float32, (0.1, 10, 2, 0.01))  # the defaults


class Scene(NamedTuple):
    """Who stands where (taggers first), what they do, and what becomes of it."""

    cells: list[tuple[int, int]]
    taggers: int
    actions: list[int]
    rewards: list[Any]
    terminated: str  # a 1 for each agent that is
    truncated: str
    kwargs: dict[str, Any] = {}
    seen: tuple[float, ...] = ()  # by agent 0


LONG = {"episode_length": 9}
NEAR = {"full_observation": False, "num_nearest": 3, "episode_length": 2}
SCENES = {
    "two tagged by one": Scene(
        [(1, 1), (4, 4), (1, 1), (2, 1), (0, 4)], 2, [STAY, STAY, STAY, LEFT, STAY],
        [2 * TAG, 2 * TAG, -PENALTY, -PENALTY, COST], "00110", "00000", LONG,
    ),
    "one tagged by two": Scene(
        [(1, 1), (1, 1), (1, 1), (4, 4)], 2, [STAY] * 4, [TAG, TAG, -PENALTY, COST], "0010", "0000", LONG,
    ),
    "all tagged": Scene(
        [(1, 1), (3, 3), (1, 2), (2, 3)], 2, [UP, LEFT, STAY, STAY], [2 * TAG, 2 * TAG, -PENALTY, -PENALTY],
        "1111", "0000", LONG,
    ),
    "a tag in the last step": Scene(
        [(1, 1), (1, 1), (4, 4)], 1, [STAY] * 3, [TAG, -PENALTY, COST], "010", "101", {"episode_length": 1},
    ),
    "all tagged in the last step": Scene(
        [(1, 1), (1, 1)], 1, [STAY] * 2, [TAG, -PENALTY], "11", "00", {"episode_length": 1},
    ),
    "cells swapped": Scene([(1, 1), (2, 1)], 1, [RIGHT, LEFT], [-COST, COST], "00", "00", LONG),
    "four corners": Scene(
        [(0, 0), (4, 4), (0, 4), (4, 0)], 2, [LEFT, UP, LEFT, DOWN],
        [-WALL - COST, -WALL - COST, -WALL + COST, -WALL + COST], "0000", "0000", LONG,
    ),
    "a tag at the wall": Scene(
        [(0, 0), (0, 0), (4, 4)], 1, [DOWN, LEFT, STAY], [-WALL + TAG, -WALL - PENALTY, COST], "010", "000", LONG,
    ),
    "of two as near the lower number": Scene(
        [(2, 2), (2, 4), (4, 2), (2, 1)], 1, [STAY] * 4, [-COST, COST, COST, COST], "0000", "0000", NEAR,
        (0.5, 0.5, 0.5, 0.5, 1, 0.25, 1, 0.5, 0, 0.5),
    ),
    "more nearest than live": Scene(
        [(2, 2), (2, 2), (4, 2), (1, 2)], 1, [STAY] * 4, [TAG, -PENALTY, COST, COST], "0100", "0000", NEAR,
        (0.5, 0.5, 0.25, 1, 0, 0.5, 0.5, 0, 0, 0.5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_scenes_of_the_reference(name: str) -> None:
    check_scene(name, None)


# Fibres are compiled for each number of agents.
COMPILED = ("two tagged by one", "of two as near the lower number")


@pytest.mark.parametrize(
    ("name", "player"),
    [
        *((name, "loops") for name in SCENES),
        *(pytest.param(name, "device", marks=pytest.mark.gpu) for name in SCENES),
        *(pytest.param(name, "fibres", marks=[] if name in COMPILED else [pytest.mark.long]) for name in SCENES),
    ],
    indirect=["player"],
)
def test_scenes(name: str, player: Player) -> None:
    check_scene(name, player)


def check_scene(name: str, player: Player | None) -> None:
    scene = SCENES[name]
    env_kwargs = {
        "num_taggers": scene.taggers, "num_runners": len(scene.cells) - scene.taggers, "grid_length": 4, **scene.kwargs
    }  # fmt: skip
    with make(player, num_envs=3, seed=1, env_kwargs=env_kwargs) as vec:
        vec.reset()
        others = [vec.get_attr(axis, env_ids=[0, 2]) for axis in "xy"]
        for axis, places in zip("xy", zip(*scene.cells, strict=True), strict=True):
            vec.set_attr(axis, [np.array(places, np.int32)], env_ids=[1])
            assert vec.get_attr(axis)[1].tolist() == list(places)
        np.testing.assert_array_equal(others, [vec.get_attr(axis, env_ids=[0, 2]) for axis in "xy"])
        vec.step(np.array([[STAY] * len(scene.cells), scene.actions, [STAY] * len(scene.cells)]).reshape(-1))
        rows = rows_of(vec)
        scene_rows = slice(len(scene.cells), 2 * len(scene.cells))
        assert rows.rewards[scene_rows].tolist() == [float(reward) for reward in scene.rewards]
        assert "".join(map(str, rows.terminations[scene_rows].astype(int))) == scene.terminated
        assert "".join(map(str, rows.truncations[scene_rows].astype(int))) == scene.truncated
        if scene.seen:
            np.testing.assert_array_equal(rows.observations[scene_rows][0], np.array(scene.seen, np.float32))


# -------------------------------------------------------------------------------------------------- seeds and resets

ENDLESS = dict(num_taggers=2, num_runners=2, grid_length=9, episode_length=1000, full_observation=False)
RESETS: dict[str, list[dict[str, Any]]] = {  # one after another, four steps after each
    "by one seed": [dict(seed=3), dict(), dict(seed=3)],
    "by a list of seeds": [dict(seed=[7, 7, 2**32 - 1, 0]), dict(), dict(seed=[1, 2, 3, 4])],
    "of some": [dict(), dict(env_ids=[2, 0]), dict(env_ids=[1]), dict()],
    "of some, by one seed": [dict(seed=1), dict(seed=5, env_ids=[3, 1]), dict(env_ids=[3]), dict()],
    "of some, by a list": [dict(seed=1), dict(seed=[9, 8], env_ids=[3, 1]), dict(seed=[5], env_ids=[0])],
    "of all by name": [dict(env_ids=[3, 1, 0, 2]), dict(seed=4, env_ids=[0, 1, 2, 3]), dict()],
}


@covering(
    {
        "calls": [pytest.param(calls, id=name) for name, calls in RESETS.items()],
        "player": PLAYER_KINDS,
        "autoreset_mode": ["next_step", "same_step", "disabled"],
    },
    indirect=["player"],
)
def test_resets(calls: list[dict[str, Any]], player: Player, autoreset_mode: str) -> None:
    """Also the rows of environments that are not reset: as they were, their masks False."""

    def played(by: Player | None) -> list[Rows]:
        rng, steps = np.random.default_rng(0), []
        with make(by, num_envs=4, seed=6, env_kwargs=ENDLESS, autoreset_mode=autoreset_mode) as vec:
            vec.reset()
            for call in calls:
                before = rows_of(vec)
                vec.reset(**call)
                steps.append(rows_of(vec))
                assert not steps[-1].masks.any()
                others = np.setdiff1d(np.arange(4), call.get("env_ids", range(4)))
                rows = (others[:, None] * 4 + np.arange(4)).reshape(-1)
                np.testing.assert_array_equal(steps[-1].observations[rows], before.observations[rows])
                for _ in range(4):  # another number than there are blocks
                    vec.step(rng.integers(0, 5, 16))
                    steps.append(rows_of(vec))
        return steps

    for one, other in zip(played(player), played(None), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("batch_size", [2, 3, 6])
def test_resets_between_send_and_recv(batch_size: int, player: Player) -> None:
    """All restart, whatever was under way; some restart while others play on."""

    def played(by: Player | None) -> list[list[Any]]:
        rows: list[list[Any]] = [[] for _ in range(6)]

        kwargs = dict(num_taggers=1, num_runners=1, grid_length=9, episode_length=4)
        with make(by, num_envs=6, batch_size=batch_size, seed=6, env_kwargs=kwargs) as vec:

            def receive_all() -> None:
                for _ in range(6 // batch_size):
                    vec.recv()
                    agents = vec.host_batch.observations.reshape(batch_size, 2, -1)
                    for env_id, observations in zip(vec.host_batch.env_ids.tolist(), agents, strict=True):
                        rows[env_id].append(observations.copy())

            vec.async_reset()
            receive_all()
            for seed in (None, 3):
                vec.send(np.ones(12, int), env_ids=[4, 0, 2, 5, 3, 1])
                vec.async_reset(seed=seed)
                receive_all()
                vec.send(np.full(6, RIGHT), env_ids=[1, 5, 0])
                vec.async_reset(env_ids=[4, 2, 3], seed=[8, 9, 10] if seed else None)
                receive_all()
        return rows

    for actual, expected in zip(played(player), played(None), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("autoreset_mode", ["next_step", "same_step"])
def test_resets_of_some_just_after_an_end(player: Player, autoreset_mode: str) -> None:
    """What ended is told once, with its own row, and not again with the rows that come back unchanged."""

    def played(by: Player | None) -> list[Rows]:
        kwargs = dict(num_envs=3, seed=6, env_kwargs={**ENDLESS, "episode_length": 2}, autoreset_mode=autoreset_mode)
        with make(by, **kwargs) as vec:
            vec.reset()
            steps = []
            for num_steps in (2, 3, 2, 1):
                for _ in range(num_steps):
                    vec.step(np.zeros(12, int))
                    steps.append(rows_of(vec))
                vec.reset(env_ids=[1])
                steps.append(rows_of(vec))
        return steps

    for one, other in zip(played(player), played(None), strict=True):
        assert_same(one, other)


def test_some_begin_while_others_go_on(player: Player) -> None:
    def played(by: Player | None) -> list[Rows]:
        steps = []
        with make(by, num_envs=4, batch_size=2, seed=6, env_kwargs=ENDLESS) as vec:
            vec.async_reset(env_ids=[3, 1])
            vec.recv()
            steps.append(rows_of(vec))
            vec.send(np.full(8, UP))
            vec.recv()
            vec.async_reset()
            for _ in range(2):
                vec.recv()
                steps.append(rows_of(vec))
            episodes = vec.get_attr("episode")
        assert episodes == [0, 1, 0, 1]
        return steps

    for one, other in zip(by_env(played(player)), by_env(played(None)), strict=True):
        np.testing.assert_array_equal(one, other)


def by_env(batches: list[Rows]) -> list[Any]:
    """The observations of batches, in the order of environments."""
    rows = [(env_id, k) for k, batch in enumerate(batches) for env_id in batch.env_ids.tolist()]
    values = [item for batch in batches for item in batch.observations.reshape(len(batch.env_ids), -1)]
    return [value for _, value in sorted(zip(rows, values, strict=True), key=lambda item: item[0])]


def test_whose_episode_is_over_rests_until_it_is_reset(player: Player) -> None:
    """With autoreset_mode="disabled"; others are not held up."""
    env_kwargs = dict(num_taggers=1, num_runners=1, grid_length=4, episode_length=5)
    with make(player, num_envs=2, seed=1, env_kwargs=env_kwargs, autoreset_mode="disabled") as vec:
        vec.reset()
        vec.set_attr("x", [[1, 1], [0, 4]])
        vec.set_attr("y", [[1, 1], [0, 4]])
        vec.step(np.zeros(4, int))
        rows = rows_of(vec)
        assert rows.terminations.tolist() == [True, True, False, False] and rows.masks.all()
        assert [info["env_id"] for info in rows.infos] == [0, 0, 0]
        for t in (2, 3):
            vec.step(np.zeros(4, int))
            after = rows_of(vec)
            assert after.masks.tolist() == [False, False, True, True]
            assert not (after.terminations.any() or after.rewards[:2].any() or after.observations[:2].any())
            assert (after.infos, vec.get_attr("t")) == ([], [1, t])
        vec.reset(env_ids=[0])
        assert vec.get_attr("t") == [0, 3] and vec.get_attr("episode") == [1, 0]
        vec.step(np.zeros(4, int))
        assert rows_of(vec).masks.all()
