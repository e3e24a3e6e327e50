"""The values of actions: no environment is given one that is not in its space, nor a number that is not finite."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_envs import TagEnv

import pufferlib
from pufferlib.layout.action_values import ActionValues

pytestmark = pytest.mark.beside

BACKENDS = ("serial", "multiprocessing", "pool")
PLANE = Box(-1, 1, (2,), np.float32)


class Played(gymnasium.Env[Any, Any]):
    """Keeps the action that it was given."""

    observation_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space
        self.played: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.played = action
        return np.zeros(1, np.float32), 0.0, False, False, {}


REFUSED: list[tuple[Any, Any, int, str]] = [
    (Discrete(3), np.array([0, -1, 2]), 1, r"action -1 of row 1 \(environment 1\) is not in Discrete\(3\); use 0 to 2"),
    (Discrete(3), np.array([0, 1, 99]), 2, r"action 99 of row 2 .* use 0 to 2"),
    (Discrete(3), [0, 3, 0], 1, r"action 3 of row 1"),
    (Discrete(3, start=5), np.array([5, 7, 0]), 2, r"action 0 of row 2 .* use 5 to 7"),
    (Discrete(3), np.array([2**40, 0, 0]), 0, r"action 1099511627776 of row 0"),
    (
        MultiDiscrete([2, 3]),
        np.array([[1, 2], [2, 0], [0, 0]]),
        1,
        r"action \[2, 0\] of row 1 .*element 0 is 2; use 0 to 1",
    ),
    (MultiBinary(2), np.array([[1, 1], [0, 1], [0, -1]], np.int8), 2, r"element 1 is -1; use 0 to 1"),
    (PLANE, np.array([[0, 1], [0, np.nan], [0, 0]], np.float32), 1, r"element 1 is nan; use finite numbers"),
    (PLANE, np.array([[0, -np.inf], [0, 0], [0, 0]]), 0, r"element 1 is -inf"),
    (PLANE, np.array([[0, 0], [0, 0], [1e300, 0]]), 2, r"element 0 is 1e\+300"),
    (Box(0, 9, (1,), np.int32), np.array([[0], [2**32], [0]]), 1, r"4294967296; use values that int32 holds"),
    (Dict(a=PLANE), np.array([[0, 0], [np.inf, 0], [0, 0]], np.float32), 1, r"element 0 is inf"),
    (Tuple((Discrete(3, start=2), Discrete(2))), np.array([[2, 1], [3, 0], [0, 0]]), 1, r"element 0 is 3; use 0 to 2"),
    (
        Dict(a=PLANE, b=Discrete(2)),
        (np.array([[0], [1], [2]]), np.zeros((3, 2), np.float32)),
        2,
        r"action \[2\] of row 2",
    ),
    (
        Dict(a=PLANE, b=Discrete(2)),
        (np.zeros((3, 1), int), np.array([[0, np.nan], [0, 0], [0, 0]], np.float32)),
        0,
        r"is nan",
    ),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("space", "actions", "row", "says"), REFUSED)
def test_wrong_values_are_refused_at_any_step_and_nothing_is_lost(
    backend: str, space: Any, actions: Any, row: int, says: str
) -> None:
    with pufferlib.make(lambda: Played(space), num_envs=3, num_workers=2, backend=backend) as vec:
        right = vec.action_layout.flatten(space.sample())
        right = tuple(np.stack([part] * 3) for part in right) if isinstance(actions, tuple) else np.stack([right] * 3)
        vec.reset()
        for _ in range(3):
            vec.step(right)
            with pytest.raises(pufferlib.ActionError, match=says) as caught:
                vec.send(actions)
            assert f"row {row} (environment {row})" in str(caught.value)
        vec.step(right)


def test_the_row_is_that_of_the_batch_and_the_environment_is_named() -> None:
    with pufferlib.make(lambda: Played(Discrete(3)), num_envs=4, batch_size=2, backend="multiprocessing") as vec:
        vec.async_reset()
        batch = vec.recv()
        with pytest.raises(pufferlib.ActionError, match=rf"row 1 \(environment {batch.env_ids[1]}\)"):
            vec.send(np.array([0, 3]))
        with pytest.raises(pufferlib.ActionError, match=rf"row 0 \(environment {batch.env_ids[1]}\)"):
            vec.send(np.array([3, 0]), env_ids=batch.env_ids[::-1])
        vec.send(np.array([0, 2]))
    with pufferlib.make(TagEnv, num_envs=2) as vec:
        actions = np.zeros(vec.action_space.shape, int)
        actions[vec.agents_per_env + 1] = 10**6
        vec.reset()
        with pytest.raises(pufferlib.ActionError, match=rf"row {vec.agents_per_env + 1} \(environment 1, agent 1\)"):
            vec.send(actions)


BEYOND = np.array([[0.5, 50], [-3, 0], [1, -1]], np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("space", [PLANE, Dict(a=PLANE), Tuple((PLANE,)), Dict(a=Box(-1, 1, (2,), np.float64))])
def test_finite_numbers_beyond_a_float_box_reach_the_environment(backend: str, space: Any) -> None:
    with pufferlib.make(lambda: Played(space), num_envs=3, backend=backend) as vec:
        vec.reset()
        vec.step(BEYOND)
        played = vec.get_attr("played")
    for sent, got in zip(BEYOND, played, strict=True):
        (got,) = got.values() if isinstance(got, dict) else got if isinstance(got, tuple) else (got,)
        assert got.tolist() == sent.tolist()


def test_whole_numbers_of_a_joined_box_are_rounded_and_clipped() -> None:
    space = Dict(a=PLANE, b=Box(0, 3, (2,), np.int16))
    with pufferlib.make(lambda: Played(space), num_envs=1) as vec:
        vec.reset()
        vec.step(np.array([[50, 0, 2.6, 9]], np.float32))
        (played,) = vec.get_attr("played")
    assert played["a"].tolist() == [50, 0] and played["b"].tolist() == [3, 3] and played["b"].dtype == np.int16


SPACES = [
    *(Box(-1, 1, (2,), dtype) for dtype in (np.float16, np.float32, np.float64)),
    Discrete(5, start=-2),
    MultiBinary((2, 2)),
    *(MultiDiscrete([3, 5], dtype) for dtype in (np.int8, np.int16, np.int32, np.int64)),
    *(MultiDiscrete([3, 5], dtype) for dtype in (np.uint8, np.uint16, np.uint32, np.uint64)),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_the_short_way_and_the_careful_one_refuse_the_same(space: Any, data: st.DataObject) -> None:
    assert_refuse_the_same(space, data)


@pytest.mark.long
@pytest.mark.parametrize("space", SPACES, ids=str)
@given(data=st.data())
def test_the_short_way_and_the_careful_one_refuse_the_same_of_many(space: Any, data: st.DataObject) -> None:
    assert_refuse_the_same(space, data)


def assert_refuse_the_same(space: Any, data: st.DataObject) -> None:
    shape = (3, *space.shape)
    if isinstance(space, Box):
        value: Any = st.sampled_from([0.0, -0.0, 1.0, 7.0, np.nan, np.inf, -np.inf, np.finfo(space.dtype).max])
    else:
        least, most = np.iinfo(space.dtype).min, np.iinfo(space.dtype).max
        value = st.sampled_from([v for v in (-3, -2, -1, 0, 1, 2, 3, 4, 5, least, most) if least <= v <= most])
    drawn = [data.draw(value) for _ in range(int(np.prod(shape)))]
    actions = np.array(drawn, space.dtype).reshape(shape)
    fits = all(np.isfinite(actions).ravel()) if isinstance(space, Box) else all(row in space for row in actions)
    values = ActionValues(space)
    assert values.fit(actions) == (values._wrong(actions) is None) == fits
    assert values.fit(actions[::-1]) == fits, "which the compiled check leaves to the other"
    with pufferlib.make(lambda: Played(space), num_envs=3) as vec:
        vec.reset()
        if fits:
            vec.step(actions)
            assert np.array_equal(np.stack(vec.get_attr("played")), actions)
        else:
            with pytest.raises(pufferlib.ActionError):
                vec.send(actions)


def test_a_box_of_bools_takes_whole_numbers_that_are_bools() -> None:
    space = Box(0, 1, (2,), np.bool_)
    env = pufferlib.wrap(Played(space))
    env.reset()
    for action in ([1, 0], np.array([True, False]), np.array([0, 1], np.int8)):
        env.step(action)
        assert env.raw.played.tolist() == np.asarray(action, bool).tolist()
    with pytest.raises(pufferlib.ActionError, match="element 1 is 2; use values that bool holds"):
        env.step([0, 2])


def test_wrapped_environments_refuse_them_too() -> None:
    env = pufferlib.wrap(Played(Discrete(3)))
    env.reset()
    with pytest.raises(pufferlib.ActionError, match=r"action -1 is not in Discrete\(3\); use 0 to 2"):
        env.step(-1)
    assert env.raw.played is None
    nested = pufferlib.wrap(Played(Dict(a=PLANE)))
    nested.reset()
    with pytest.raises(pufferlib.ActionError, match="is nan"):
        nested.step(np.array([np.nan, 0], np.float32))
    agents = pufferlib.wrap(TagEnv())
    agents.reset()
    actions = {agent: agents.action_space(agent).sample() for agent in agents.agents}
    agents.step(actions)
    with pytest.raises(pufferlib.ActionError, match=rf"of agent {agents.agents[0]!r} is not in"):
        agents.step({**actions, agents.agents[0]: 10**6})
