"""Agents whose spaces differ share rows as large as the largest; action masks are leaves of their observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from row_tools import Diverse, Newcomer, expect_row, poisoned, reset, same, step

from pufferlib.emulation import emulate, wrap
from pufferlib.emulation.action_masks import pack_mask
from pufferlib.errors import PlanError, SpaceError

pytestmark = pytest.mark.beside

D2, D5 = Discrete(2), Discrete(5)
FLOATS = Dict(a=Box(-1, 1, (2,), np.float32), b=Box(0, 5, (1, 2), np.float32))
MIXED = Dict(a=Box(-1, 1, (2,), np.float32), b=Discrete(3))


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        (Box(-1, 1, (2, 2)), Box(-1, 1, (2, 2)), Box(-1, 1, (2, 2))),
        (Box(-1, 1, (2, 2)), Box(1, 5, (5,)), Box(np.float32([-1] * 4 + [0]), np.float32(5))),
        (Box(-2, 1, (1,)), FLOATS, Box(np.float32([-2, -1, 0, 0]), np.float32([1, 1, 5, 5]))),
        (Discrete(3), Discrete(5), Box(0, 4, (1,), np.int64)),
        (Discrete(3, start=-2), MultiDiscrete([4, 4]), Box(np.array([-2, 0]), np.array([3, 3]), dtype=np.int64)),
        (MultiBinary(3), Box(0, 1, (1,), np.int8), Box(0, 1, (3,), np.int8)),
        (Box(-1, 1, (3,)), Box(0, 255, (20,), np.uint8), Box(0, 255, (20,), np.uint8)),
        (MIXED, Box(-1, 1, (3,), np.float64), Box(0, 255, (24,), np.uint8)),
        (MIXED, MIXED, Box(0, 255, (16,), np.uint8)),
    ],
)
def test_observations_that_differ_share_the_largest_row(first: Any, second: Any, common: Any) -> None:
    env = Diverse(a=(first, D2), b=(second, D2))
    rows = emulate(env)
    assert rows.observation_space == common
    assert [layout.space for layout in rows.observation_layouts] == [first, second]
    if first == second:
        assert rows.observation_layout.space is first
    else:
        assert rows.observation_layout.space is rows.observation_space
    held = reset(rows, 0)
    for _ in range(5):
        for agent_index, agent in enumerate("ab"):
            expect_row(held.observations[agent_index], rows.observation_layouts[agent_index], env.seen[agent])
        if common.dtype != np.uint8:
            assert all(row in common for row in held.observations)
        _, held = step(rows, np.zeros(2, int))


@pytest.mark.parametrize(
    ("first", "second", "common", "row", "actions"),
    [
        (D2, D5, Discrete(5), 4, (1, 4)),
        (Discrete(2, start=3), Discrete(5, start=3), Discrete(5, start=3), 7, (4, 7)),
        (Discrete(2, start=-1), Discrete(5, start=3), Discrete(5), 3, (0, 6)),
        (D2, MultiDiscrete([3, 4]), MultiDiscrete([3, 4]), [2, 3], (1, [2, 3])),
        (MultiBinary(3), MultiDiscrete([[3], [4]]), MultiDiscrete([3, 4, 2]), [2, 3, 0], ([1, 1, 0], [[2], [3]])),
        (
            Box(-1, 1, (3,)),
            Box(-5, 0, (1, 1)),
            Box(np.float32([-5, -1, -1]), np.float32(1)),
            [-3, 0, 1],
            ([-3, 0, 1], [[-3]]),
        ),
        (Box(-1, 1, (1,)), Box(-2, 2, (2,), np.float64), Box(-2, 2, (2,), np.float64), [-2, 0.5], ([-2], [-2, 0.5])),
        (
            Box(-1, 1, (1,), np.int16),
            Box(-2, 2, (2,), np.float32),
            Box(-2, 2, (2,), np.float32),
            [-1.5, 0.5],
            ([-1], [-1.5, 0.5]),
        ),
        (  # finite in the row, finite for the agent
            Box(-1, 1, (1,), np.float16),
            Box(-2, 2, (1,), np.float64),
            Box(-2, 2, (1,), np.float64),
            [1e300],
            ([65504], [1e300]),
        ),
        (D2, Box(-1, 1, (2,)), Tuple([MultiDiscrete([2]), Box(-1, 1, (2,))]), ([1], [0.5, -0.5]), (1, [0.5, -0.5])),
        (
            Dict(go=Box(-1, 1, (1,)), use=Discrete(3, start=1)),
            MultiDiscrete([2, 6]),
            Tuple([MultiDiscrete([3, 6]), Box(-1, 1, (1,))]),
            ([2, 5], [0.25]),
            ({"go": [0.25], "use": 3}, [1, 5]),
        ),
        (D5, D5, D5, 2, (2, 2)),
    ],
)
def test_actions_that_differ_share_the_largest_row(
    first: Any, second: Any, common: Any, row: Any, actions: Any
) -> None:
    env = Diverse(a=(D2, first), b=(D2, second))
    rows = emulate(env)
    assert rows.action_space == common
    assert [layout.space for layout in rows.action_layouts] == [first, second]
    assert (rows.action_layout.space is first) == (first == second)
    reset(rows)
    rows.action_space.seed(0)
    samples = [(rows.action_space.sample(), rows.action_space.sample()) for _ in range(20)]
    for pair in [*samples, (row, row)]:
        if isinstance(common, Tuple):
            step(rows, tuple(np.array([sample[part] for sample in pair]) for part in range(2)))
        else:
            step(rows, np.array(pair))
    for agent, action in zip("ab", actions, strict=True):
        came = env.actions[agent]
        if isinstance(action, dict):
            assert came == action
        else:
            assert np.asarray(came).tolist() == action
            assert type(action) is not int or type(came) is int


@pytest.mark.parametrize(
    "spaces",
    [
        {"a": (Box(-1, 1, (2,)), D2), "b": (Box(-1, 1, (3,)), D2)},
        {"a": (D2, D2), "b": (D2, D5)},
        {"a": (D2, D2), "b": (D2, Box(-1, 1))},
    ],
)
def test_a_newcomer_that_does_not_fit_the_rows_is_an_error(spaces: Any) -> None:
    rows = emulate(Newcomer(**spaces), max_agents=2)
    reset(rows)
    with pytest.raises(SpaceError, match="does not fit rows of .* pass observation_space= and action_space="):
        rows.step(np.zeros(2, int))


def test_rows_as_large_as_any_agents_can_be_given() -> None:
    spaces = {"a": (Box(-1, 1, (2,)), D2), "b": (FLOATS, MultiDiscrete([5, 2]))}
    env = Newcomer(**spaces)
    rows = emulate(env, max_agents=3, observation_space=Box(-9, 9, (4,)), action_space=MultiDiscrete([9, 9, 9]))
    assert (rows.observation_space, rows.action_space) == (Box(-9, 9, (4,)), MultiDiscrete([9, 9, 9]))
    before = reset(rows)
    assert [layout.space for layout in rows.observation_layouts] == [spaces["a"][0], *[rows.observation_space] * 2]
    assert [layout.space for layout in rows.action_layouts] == [D2, *[rows.action_space] * 2]
    _, held = step(rows, np.full((3, 3), 8))
    assert [layout.space for layout in rows.observation_layouts] == [spaces["a"][0], FLOATS, rows.observation_space]
    expect_row(held.observations[1], rows.observation_layouts[1], env.seen["b"])
    assert not before.observations[1].any()
    step(rows, np.full((3, 3), 8))
    assert env.actions["a"] == 1
    assert env.actions["b"].tolist() == [4, 1]
    with pytest.raises(PlanError, match="passed together"):
        emulate(env, max_agents=3, observation_space=Box(-9, 9, (4,)))


def test_rows_of_unknown_spaces_are_an_error() -> None:
    class Empty(Newcomer):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.agents: list[Any] = []
            return {}, {}

    with pytest.raises(SpaceError, match="no agents after reset.*pass observation_space= and action_space="):
        emulate(Empty(), max_agents=2)


@pytest.mark.parametrize("spaces", [(MIXED, MIXED), (MIXED, FLOATS), (FLOATS, Box(-1, 1, (2,))), (D2, D2)])
def test_the_same_rows_are_written_whole_each_time(spaces: Any) -> None:
    env = Diverse(a=(spaces[0], D2), b=(spaces[1], D2))
    rows = emulate(env)
    target = poisoned(rows)
    rows.reset(0, None)
    for _ in range(4):
        target.observations.view(np.uint8)[...] = 0xA5
        rows.write_observations(target)
        for agent_index, agent in enumerate("ab"):
            expect_row(target.observations[agent_index], rows.observation_layouts[agent_index], env.seen[agent])
        rows.step(np.zeros(2, int))


# ---- action masks ----


class MaskInInfo(Diverse):
    resets = 0
    masks: Any = {"a": [0, 1], "b": [1, 0, 1, 0, 1]}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.resets += 1
        return super().reset(seed, options)

    def info(self) -> Any:
        return {
            agent: {"action_mask": np.int8(self.masks[agent])} if agent in self.masks else {} for agent in self.agents
        }


def test_masks_in_infos_become_leaves_by_themselves() -> None:
    spaces = {"a": (Box(-1, 1, (2,)), D2), "b": (MIXED, D5), "c": (D2, Box(-1, 1, (1,)))}
    env = MaskInInfo(**spaces)
    wrapped, rows = wrap(MaskInInfo(**spaces)), emulate(env)
    masked = Dict({"observation": spaces["a"][0], "action_mask": MultiBinary(2)})
    assert rows.observation_layouts[0].space == wrapped.observation_layout("a").space == masked
    assert rows.observation_layouts[2].space is spaces["c"][0]  # which has no choices
    held, (flat, infos) = reset(rows, 0), wrapped.reset(seed=0)
    for masks in (MaskInInfo.masks, {"a": [1, 0]}, {}):
        for agent_index, agent in enumerate("ab"):
            mask = masks.get(agent, np.ones(spaces[agent][1].n))
            expected = {"observation": env.seen[agent], "action_mask": np.int8(mask)}
            expect_row(held.observations[agent_index], rows.observation_layouts[agent_index], expected)
            expected["observation"] = wrapped.raw.seen[agent]
            assert same(wrapped.observation_layout(agent).decode(flat[agent]), expected)
            assert agent not in masks or same(infos[agent]["action_mask"], np.int8(mask))
        assert held.infos == []  # not sent twice
        env.masks = wrapped.raw.masks = {"a": [1, 0]} if masks is MaskInInfo.masks else {}
        _, held = step(rows, (np.zeros((3, 1), int), np.zeros((3, 1), np.float32)))
        flat, *_, infos = wrapped.step({"a": 0, "b": 0, "c": np.zeros(1, np.float32)})


@pytest.mark.parametrize("wrapper", [wrap, emulate])
def test_an_env_is_probed_only_for_what_is_unknown(wrapper: Any) -> None:
    spaces = {"a": (Box(-1, 1, (2,)), D2), "b": (MIXED, D5)}
    in_observations = {"a": (Dict(observation=D2, action_mask=MultiBinary(2)), D2)}
    for keywords, resets in (({}, 1), ({"action_mask": True}, 0), ({"action_mask": False}, 0)):
        env = MaskInInfo(**spaces)
        wrapper(env, **keywords)
        assert env.resets == resets
    env = MaskInInfo(**in_observations)
    wrapper(env)
    assert env.resets == 0
    env = MaskInInfo(**spaces)
    del env.possible_agents
    wrapper(env, max_agents=2, action_mask=True, observation_space=MIXED, action_space=D5)
    assert env.resets == 0


def test_masks_can_be_left_in_infos() -> None:
    spaces = {"a": (Box(-1, 1, (2,)), D2), "b": (MIXED, D5)}
    rows, wrapped = (kind(MaskInInfo(**spaces), action_mask=False) for kind in (emulate, wrap))
    assert rows.observation_layouts[0].space is wrapped.observation_layout("a").space is spaces["a"][0]
    assert [(agent_index, info["action_mask"].tolist()) for agent_index, info in reset(rows).infos] == [
        (0, [0, 1]),
        (1, [1, 0, 1, 0, 1]),
    ]


def test_masks_in_observations_are_repeated_in_infos() -> None:
    space = Dict(observation=Box(-1, 1, (2,)), action_mask=MultiBinary(2))
    wrapped = wrap(Diverse(a=(space, D2)))
    flat, infos = wrapped.reset(seed=1)
    for _ in range(3):
        decoded = wrapped.observation_layout("a").decode(flat["a"])
        assert same(decoded, wrapped.raw.seen["a"])
        assert same(infos["a"]["action_mask"], decoded["action_mask"])
        flat, *_, infos = wrapped.step({"a": 0})


@pytest.mark.parametrize("mask", ["01", [[1, 0], [1]], {"a": [1, 1]}, {"a": ["x", "y"], "b": None}, 3])
def test_masks_of_another_structure_are_refused_in_words(mask: Any) -> None:
    with pytest.raises(SpaceError, match=r"info\['action_mask'\] is .*give arrays in the structure of the space"):
        pack_mask(Dict(a=Discrete(2), b=Discrete(2)), mask)
