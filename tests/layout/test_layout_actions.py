"""Layouts of actions: any flat action is an action of the environment, and the other way round."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import Space
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Text,
    Tuple,
)
from hypothesis import given
from hypothesis import strategies as st
from spaces import BOUNDS, any_spaces, fits, leaves_of, same, sample, samples, text_spaces

from pufferlib.errors import SpaceError
from pufferlib.layout import action_layout, observation_layout

pytestmark = pytest.mark.beside

FLOATS = Box(-1, 1, (3,))
IMAGE = Box(0, 255, (2, 2), np.uint8)


@given(any_spaces(), st.integers(0, 2**32 - 1))
def test_any_flat_action_is_an_action_that_flattens_to_itself(space: Space[Any], seed: int) -> None:
    layout = action_layout(space, **BOUNDS)
    layout.flat_space.seed(seed)
    row = layout.flat_space.sample()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        action = layout.unpack(row)
        layout.check(action)
        again = layout.flatten(action)
    assert layout.flat_space.contains(again)
    assert same(layout.unpack(again), action)
    assert fits(space, action)


@given(samples(any_spaces().filter(lambda space: "float64" not in str(space))))
def test_unpack_undoes_flatten(drawn: Any) -> None:
    space, [x] = drawn
    layout, observed = action_layout(space, **BOUNDS), observation_layout(space, **BOUNDS)
    row = layout.flatten(x)
    assert layout.flat_space.contains(row)
    assert observed.flatten(layout.unpack(row)).tobytes() == observed.flatten(x).tobytes()


@given(any_spaces())
def test_flat_actions_are_the_leaf_or_discrete_and_box(space: Space[Any]) -> None:
    layout = action_layout(space, **BOUNDS)
    if isinstance(space, (Box, Discrete, MultiDiscrete, MultiBinary)):
        assert layout.flat_space is space and layout.components == (space,)
        return
    if len(layout.components) == 2:
        assert isinstance(layout.flat_space, Tuple) and tuple(layout.flat_space.spaces) == layout.components
        assert isinstance(layout.components[0], MultiDiscrete) and isinstance(layout.components[1], Box)
    else:
        assert layout.components == (layout.flat_space,)
    for component in layout.components:
        assert isinstance(component, (MultiDiscrete, Box)) and len(component.shape or ()) == 1
        dtype = np.dtype(np.int64 if isinstance(component, MultiDiscrete) else np.float32)
        leaves = [leaf for leaf in layout.leaves if leaf.dtype == dtype]
        assert component.dtype == dtype and sum(leaf.nbytes for leaf in leaves) == component.shape[0] * dtype.itemsize
        assert [leaf.offset for leaf in leaves] == [sum(leaf.nbytes for leaf in leaves[:i]) for i in range(len(leaves))]


@given(any_spaces(), st.integers(0, 2**32 - 1))
def test_unflatten_of_actions_gives_views(space: Space[Any], seed: int) -> None:
    layout = action_layout(space, **BOUNDS)
    layout.flat_space.seed(seed)
    flats = [layout.flat_space.sample() for _ in range(3)]
    pair = len(layout.components) == 2
    rows: Any = tuple(np.stack(arrays) for arrays in zip(*flats, strict=True)) if pair else np.stack(flats)
    views = leaves_of(layout.unflatten(rows))
    for view, leaf in zip(views, layout.leaves, strict=True):
        assert view.shape == (3, *leaf.shape) and view.dtype == leaf.dtype
        assert not view.size or any(np.shares_memory(view, arrays) for arrays in (rows if pair else (rows,)))


def test_actions_of_a_game() -> None:
    space = Dict(
        {"move": Discrete(4, start=2), "aim": Box(-1, 1, (2,)), "keys": MultiBinary(2), "n": MultiDiscrete([3])}
    )
    layout = action_layout(space)
    assert str(layout.flat_space) == "Tuple(MultiDiscrete([2 2 4 3]), Box(-1.0, 1.0, (2,), float32))"
    action = {"move": 3, "aim": np.array([0.5, -1], np.float32), "keys": np.array([1, 0], np.int8), "n": np.array([2])}
    discrete, box = layout.flatten(action)
    assert discrete.tolist() == [1, 0, 1, 2] and box.tolist() == [0.5, -1]
    assert same(layout.unpack((discrete, box)), {key: action[key] for key in space.spaces})
    assert layout.unflatten((discrete[None], box[None]))["keys"].tolist() == [[1, 0]]


def test_starts_come_back_in_every_kind() -> None:
    starts = MultiDiscrete(np.array([[2, 3], [4, 5]]))
    if hasattr(starts, "start"):
        starts = MultiDiscrete(starts.nvec, start=np.array([[10, -3], [0, 7]]))
        lone = action_layout(starts)
        x = starts.sample()
        assert lone.flat_space is starts and same(lone.unpack(lone.flatten(x)), x)
    layout = action_layout(Tuple((starts, Discrete(3, start=-5))))
    low = (np.zeros(5, np.int64), np.append(starts.nvec.ravel() - 1, 2))
    expected = getattr(starts, "start", np.zeros((2, 2), int))
    assert same(layout.unpack(low[0]), (expected, -5)) and same(layout.unpack(low[1]), (expected + starts.nvec - 1, -3))
    lone = action_layout(Discrete(3, start=-5))
    assert same(lone.unpack(np.int64(-4)), -4) and same(lone.unpack(-4), -4) and same(lone.unpack(np.array(-4)), -4)


@pytest.mark.parametrize(
    ("space", "flat", "expected"),
    [
        (Box(-3, 5, (3,), np.int8), [-9.0, 1.6, 99.0], [-3, 2, 5]),
        (Box(0, 1, (3,), np.bool_), [0.4, 0.6, -1.0], [False, True, False]),
        (Box(0.1, 0.3, (3,), np.float64), [0.1, 0.3, 0.2], [0.1, 0.3, np.float32(0.2)]),
        (Box(-(2**24), 2**24, (3,), np.int64), [-(2.0**24), 2.0**24 - 1, 1e30], [-(2**24), 2**24 - 1, 2**24]),
    ],
)
def test_box_actions_are_cast_back_and_whole_numbers_clipped(space: Any, flat: Any, expected: Any) -> None:
    layout = action_layout(Tuple((space,)))
    assert layout.flat_space.dtype == np.float32
    (action,) = layout.unpack(np.array(flat, np.float32))
    # float32(0.1) and float32(0.3) lie above 0.1 and 0.3, which they stand for
    exact = np.clip(np.array(expected, space.dtype), space.low, space.high)
    assert action.dtype == space.dtype and space.contains(action)
    np.testing.assert_allclose(action.astype(float), exact.astype(float), rtol=1e-7 if space.dtype != np.float16 else 0)


@pytest.mark.parametrize(
    ("dtype", "flat", "expected"),
    [
        (np.float16, [-2.0, 0.5, 1e6], [-2.0, 0.5, 65504.0]),  # the most that it holds
        (np.float32, [-2.0, 0.5, 1e30], [-2.0, 0.5, np.float32(1e30)]),
        (np.float64, [-2.0, 0.5, 1e30], [-2.0, 0.5, np.float32(1e30)]),
    ],
)
def test_numbers_beyond_the_bounds_of_a_float_box_stay(dtype: Any, flat: Any, expected: Any) -> None:
    (action,) = action_layout(Tuple((Box(-1, 1, (3,), dtype),))).unpack(np.array(flat, np.float32))
    assert action.dtype == dtype and action.tolist() == np.array(expected, dtype).tolist()


@pytest.mark.parametrize("space", [Box(0, 2**24 + 1, (1,), np.int32), Box(-(2**25), 0, (1,), np.int64)])
def test_integer_boxes_too_wide_for_float32_are_refused(space: Any) -> None:
    assert action_layout(space).flat_space is space
    with pytest.raises(
        SpaceError, match=r"k: actions of Box.* go through float32, which holds whole numbers up to 2\*\*24"
    ):
        action_layout(Dict({"k": space}))


def test_actions_are_copies() -> None:
    for space in (FLOATS, Tuple((FLOATS, FLOATS)), MultiDiscrete([3, 3]), Tuple((MultiDiscrete([3, 3]),))):
        layout = action_layout(space)
        row = layout.flat_space.sample()
        before = row.copy()
        for array in leaves_of(layout.unpack(row)):
            array[...] = 0
        assert (row == before).all()


@pytest.mark.parametrize(
    ("space", "row", "message"),
    [
        (Discrete(3), 1.0, "expected an integer, got float 1.0"),
        (Discrete(3), np.array([1]), "expected an integer, got int64 of shape (1,)"),
        (FLOATS, np.zeros(1), "expected float32 of shape (3,), got float64 of shape (1,)"),
        (
            Tuple((Discrete(3), Discrete(3))),
            np.zeros(1, int),
            "expected int64 of shape (2,), got int64 of shape (1,)",
        ),
        (Tuple((Discrete(3), Discrete(3))), np.zeros(2), "expected int64 of shape (2,), got float64 of shape (2,)"),
        (Tuple((FLOATS,)), np.zeros((1, 3)), "expected float32 of shape (3,), got float64 of shape (1, 3)"),
        (Tuple((FLOATS, Discrete(2))), np.zeros(4), "expected a pair of arrays (MultiDiscrete, Box), got float64"),
        (Tuple((IMAGE,)), [np.nan] * 4, "0: NaN is no value of Box"),
    ],
)
def test_wrong_flat_actions_are_named(space: Any, row: Any, message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        action_layout(space).unpack(row)
    assert message in str(caught.value)


def test_wrong_rows_of_actions_are_named() -> None:
    layout = action_layout(Tuple((FLOATS, Discrete(2))))
    with pytest.raises(
        SpaceError, match=r"expected rows of shape \(\.\.\., 3\) for Box.*, got float32 of shape \(5, 4\)"
    ):
        layout.unflatten((np.zeros((5, 1), int), np.zeros((5, 4), np.float32)))
    with pytest.raises(SpaceError, match=r"expected rows of shape \(\.\.\., 1\) for MultiDiscrete.*, got list \[1\]"):
        layout.unflatten(([1], [0.0] * 3))
    with pytest.raises(SpaceError, match=r"expected rows of uint8 of shape \(\.\.\., 24\), got list \[1\]"):
        observation_layout(Tuple((FLOATS, Discrete(2)))).unflatten([1])


@given(text_spaces(), st.integers(0, 2**32 - 1))
def test_texts_acted_are_in_their_space(space: Any, seed: int) -> None:
    layout = action_layout(Dict({"t": space}))
    layout.flat_space.seed(seed)
    assert space.contains(layout.unpack(layout.flat_space.sample())["t"])
    text = sample(space, np.random.default_rng(seed))
    assert layout.unpack(layout.flatten({"t": text})) == {"t": text}


def test_actions_outside_of_a_charset_are_named() -> None:
    layout = action_layout(Dict({"t": Text(3, charset="ab")}))
    with pytest.raises(SpaceError, match="t: str 'abc' has characters outside of its charset"):
        layout.flatten({"t": "abc"})
    with pytest.raises(SpaceError, match=r"t: max_length=1 is less than the min_length=2"):
        action_layout(Dict({"t": Text(3, min_length=2)}), bounds={"t": {"max_length": 1}})
