"""What layouts take for a sample and for a row, what they cast or warn of, and what they refuse."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    Sequence,
    Text,
    Tuple,
)
from spaces import BOUNDS, ONE_OF, same

from pufferlib.errors import SpaceError
from pufferlib.layout import action_layout, observation_layout

pytestmark = pytest.mark.beside

FLOATS = Box(-1, 1, (3,))
IMAGE = Box(0, 255, (2, 2), np.uint8)
MIXED = Dict({"a": FLOATS, "b": Tuple((Discrete(4, start=2), IMAGE)), "c": Discrete(3)})


def cast_of(layout: Any, x: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        row = layout.flatten(x)
    return layout.decode(row), [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("space", "x", "expected"),
    [
        (Box(-1, 1, (2,)), np.array([0.5, 1]), np.array([0.5, 1], np.float32)),
        (Box(-1, 1, (2,)), np.array([0, 1]), np.array([0, 1], np.float32)),
        (Box(0, 9, (2,), np.int32), np.array([3, 4]), np.array([3, 4], np.int32)),
        (MultiBinary(2), np.array([True, False]), np.array([1, 0], np.int8)),
        (Box(-1, 1, ()), np.float64(0.5), np.array(0.5, np.float32)),
    ],
)
def test_the_same_kind_is_cast_with_one_warning(space: Any, x: Any, expected: Any) -> None:
    for wrapped, path in ((space, "the observation"), (Dict({"k": space, "l": space}), "k")):
        layout = observation_layout(wrapped)
        value, messages = cast_of(layout, x if wrapped is space else {"k": x, "l": x})
        assert same(value if wrapped is space else value["k"], expected)
        assert messages == [f"{path}: {x.dtype} is cast to {expected.dtype}, the space's dtype, at every step"]
        assert cast_of(layout, x if wrapped is space else {"k": x, "l": x})[1] == []


def test_elements_of_a_sequence_are_cast_with_one_warning() -> None:
    value, messages = cast_of(observation_layout(Sequence(FLOATS), **BOUNDS), (np.ones(3), np.zeros(3)))
    assert same(value, (np.ones(3, np.float32), np.zeros(3, np.float32)))
    assert messages == ["data: float64 is cast to float32, the space's dtype, at every step"]


@pytest.mark.parametrize(
    ("space", "x", "expected"),
    [
        (Box(-1, 1, (2,)), [0.5, 1], np.array([0.5, 1], np.float32)),
        (Box(-1, 1, (2,)), (0, 1), np.array([0, 1], np.float32)),
        (IMAGE, [[1, 2], [3, 255]], np.array([[1, 2], [3, 255]], np.uint8)),
        (Box(0, 1, ()), 0.5, np.array(0.5, np.float32)),
        (Box(0, 1, (0,)), [], np.zeros(0, np.float32)),
        (Discrete(4), 3, np.int64(3)),
        (Discrete(4), np.uint8(3), np.int64(3)),
        (Discrete(4), np.array(3), np.int64(3)),
        (Discrete(4), True, np.int64(1)),
        (MultiDiscrete([3, 3]), [1, 2], np.array([1, 2])),
        (MultiBinary(2), [1, 0], np.array([1, 0], np.int8)),
        (Box(-1, 1, (2,)), np.array([0.5, 1], ">f4"), np.array([0.5, 1], np.float32)),
        (Tuple((Discrete(4), Discrete(4))), np.array([1, 2]), (np.int64(1), np.int64(2))),
        (Tuple((Discrete(4), Discrete(4))), [1, 2], (np.int64(1), np.int64(2))),
        (Sequence(Box(0, 1, (1,))), [[1.0], [0.0]], (np.ones(1, np.float32), np.zeros(1, np.float32))),
        (Sequence(Discrete(4), stack=True), [1, 2], np.array([1, 2])),
    ],
)
def test_plain_numbers_and_lists_are_taken_as_they_are(space: Any, x: Any, expected: Any) -> None:
    value, messages = cast_of(observation_layout(space, **BOUNDS), x)
    assert same(value, expected) and messages == []
    value, messages = cast_of(observation_layout(Dict({"k": space}), **BOUNDS), {"k": x})
    assert same(value, {"k": expected}) and messages == []


ELEMENTS = Sequence(Box(0, 1, (2, 1)))


@pytest.mark.parametrize(
    ("space", "x", "expected", "path", "shapes"),
    [
        (Box(0, 1, (1,)), np.array(0.5, np.float32), np.array([0.5], np.float32), "", "() is reshaped to (1,)"),
        (Box(0, 1, (1,)), np.float32(0.5), np.array([0.5], np.float32), "", "() is reshaped to (1,)"),
        (Box(0, 1, (1,)), 0.5, np.array([0.5], np.float32), "", "() is reshaped to (1,)"),
        (Box(0, 1, ()), np.ones((1, 1), np.float32), np.array(1, np.float32), "", "(1, 1) is reshaped to ()"),
        (FLOATS, np.ones((1, 3), np.float32), np.ones(3, np.float32), "", "(1, 3) is reshaped to (3,)"),
        (Box(0, 9, (2, 1, 3)), FLOATS.high[None, None] * [[1], [2]], np.array([[[1] * 3], [[2] * 3]], np.float32), "",
         "(1, 2, 3) is reshaped to (2, 1, 3)"),
        (Box(0, 9, (0,)), np.zeros((1, 0), np.float32), np.zeros(0, np.float32), "", "(1, 0) is reshaped to (0,)"),
        (Discrete(4), np.array([3]), np.int64(3), "", "(1,) is reshaped to ()"),
        (MultiDiscrete([3, 3]), np.array([[1], [2]]), np.array([1, 2]), "", "(2, 1) is reshaped to (2,)"),
        (MultiBinary(2), [[1, 0]], np.array([1, 0], np.int8), "", "(1, 2) is reshaped to (2,)"),
        (ELEMENTS, (np.zeros(2, np.float32),), (np.zeros((2, 1), np.float32),), "data", "(2,) is reshaped to (2, 1)"),
        (Sequence(FLOATS, stack=True), np.ones((2, 1, 3), np.float32), np.ones((2, 3), np.float32), "data",
         "(2, 1, 3) is reshaped to (2, 3)"),
        (Sequence(Box(0, 1, (1,)), stack=True), np.ones(3, np.float32), np.ones((3, 1), np.float32), "data",
         "(3,) is reshaped to (3, 1)"),
    ],
)  # fmt: skip
def test_axes_of_length_one_are_reshaped_with_one_warning(
    space: Any, x: Any, expected: Any, path: str, shapes: str
) -> None:
    for wrapped in (space, Dict({"k": space, "l": space})):
        layout = observation_layout(wrapped, **BOUNDS)
        sample = x if wrapped is space else {"k": x, "l": x}
        name = ".".join(part for part in ("" if wrapped is space else "k", path) if part) or "the observation"
        value, messages = cast_of(layout, sample)
        assert same(value if wrapped is space else value["l"], expected)
        assert [text for text in messages if "cast" not in text] == [
            f"{name}: shape {shapes}, the space's shape, at every step"
        ]
        assert cast_of(layout, sample)[1] == []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layout.check(sample)
        with pytest.raises(SpaceError, match="expected"):  # what is an action's is the learner's to mend
            action_layout(wrapped, **BOUNDS).check(sample)


@pytest.mark.parametrize(
    ("space", "x", "message"),
    [
        (FLOATS, np.full(3, 2, np.float32), "k: the value 2.0 is not in Box"),
        (FLOATS, np.full(3, np.nan, np.float32), "k: the value nan is not in Box"),
        (Text(3, charset="ab"), "abc", "k: str 'abc' is not in Text"),
        (Text(3, charset="ab", min_length=2), "a", "k: str 'a' is not in Text"),
    ],
)
def test_observations_out_of_bounds_are_kept_and_warned_of_once(space: Any, x: Any, message: str) -> None:
    layout = observation_layout(Dict({"k": space, "l": space}))
    with pytest.warns(UserWarning, match=re.escape(message)) as caught:
        layout.check({"k": x, "l": x})
        layout.check({"k": x, "l": x})
    assert len(caught) == 1
    value, messages = cast_of(layout, {"k": x, "l": x})
    assert same(value["k"], x) and messages == []
    with pytest.raises(SpaceError, match="k: "):  # an action would be changed by it
        action_layout(Dict({"k": space, "l": space})).flatten({"k": x, "l": x})


RAGGED = [[1.0], [1.0, 2.0]]
GRAPH = Graph(FLOATS, Discrete(3))
NODES, EDGES, LINKS = np.zeros((2, 3), np.float32), np.zeros(2, np.int64), np.zeros((2, 2), np.int32)


@pytest.mark.parametrize(
    ("space", "x", "message"),
    [
        (FLOATS, np.zeros(4, np.float32), "k: expected float32 of shape (3,), got float32 of shape (4,)"),
        (FLOATS, np.zeros(1, np.float32), "k: expected float32 of shape (3,), got float32 of shape (1,)"),
        (FLOATS, np.zeros((2, 3), np.float32), "k: expected float32 of shape (3,), got float32 of shape (2, 3)"),
        (FLOATS, np.float32(1), "k: expected float32 of shape (3,), got float32 of shape ()"),
        (FLOATS, 1.0, "k: expected float32 of shape (3,), got float 1.0"),
        (FLOATS, None, "k: expected float32 of shape (3,), got NoneType None"),
        (FLOATS, "abc", "k: expected float32 of shape (3,), got str 'abc'"),
        (FLOATS, RAGGED, "k: expected float32 of shape (3,), got list [[1.0], [1.0, 2.0]]"),
        (FLOATS, np.array([1, 2, None]), "k: expected float32 of shape (3,), got object of shape (3,)"),
        (FLOATS, np.zeros(3, complex), "k: expected float32 of shape (3,), got complex128 of shape (3,)"),
        (FLOATS, {"x": 1}, "k: expected float32 of shape (3,), got dict {'x': 1}"),
        (Box(0, 1, (3, 2)), [[], [], []], "k: expected float32 of shape (3, 2), got list [[], [], []]"),
        (IMAGE, np.zeros((2, 2)), "k: expected uint8 of shape (2, 2), got float64 of shape (2, 2)"),
        (IMAGE, np.zeros((2, 2), int), "k: expected uint8 of shape (2, 2), got int64 of shape (2, 2)"),
        (IMAGE, [[1, 2], [3, 256]], "k: list [[1, 2], [3, 256]] has values that uint8 cannot hold"),
        (Box(0, 9, (1,), np.int32), np.array([2**40]), "k: int64 of shape (1,) has values that int32 cannot hold"),
        (Discrete(4), 1.0, "k: expected int64 of shape (), got float 1.0"),
        (Discrete(4), np.array([1, 1]), "k: expected int64 of shape (), got int64 of shape (2,)"),
        (Discrete(4), 2**70, f"k: expected int64 of shape (), got int {2**70}"),
        (MultiDiscrete([2, 2]), [1], "k: expected int64 of shape (2,), got list [1]"),
        (Tuple((FLOATS,)), (), "k: expected a tuple of 1, got one of 0"),
        (Tuple((FLOATS,)), {0: 1}, "k: expected a tuple of 1, got dict {0: 1}"),
        (Tuple((Text(1), Text(1))), "ab", "k: expected a tuple of 2, got str 'ab'"),
        (Tuple((FLOATS,)), np.array(1.0), "k: expected a tuple of 1, got float64 of shape ()"),
        (Dict({"a": FLOATS}), FLOATS.low, "k: expected a dict with keys ['a'], got float32 of shape (3,)"),
        (Dict({"a": FLOATS}), {}, "k.a: missing; the dict has keys []"),
        (Dict({"a": FLOATS}), {"b": FLOATS.low}, "k.a: missing; the dict has keys ['b']"),
        (Dict({"a": FLOATS}), {"a": FLOATS.low, "b": 1}, "k.b: not in the space, whose keys are ['a']"),
        (Dict({"a.b": FLOATS}), {"a.b": 1}, "k.'a.b': expected float32 of shape (3,), got int 1"),
        (Text(3), b"ab", "k: expected a str, got bytes b'ab'"),
        (Text(3), "abcd", "k: a text of 4 characters is longer than max_length=3; pass a larger max_length, or for it "
         "alone bounds={'k': {'max_length': 4}}"),
        (Text(3), "β", "k: str 'β' has characters outside of its charset"),
        (Sequence(FLOATS), 3, "k: expected a tuple of elements, got int 3"),
        (Sequence(FLOATS), (FLOATS.low,) * 5, "k: a sequence of 5 elements is longer than max_length=4; pass a larger "
         "max_length, or for it alone bounds={'k': {'max_length': 5}}"),
        (Sequence(FLOATS), (FLOATS.low, 1), "k.data: expected float32 of shape (3,), got int 1"),
        (Sequence(FLOATS), (np.zeros(1, np.float32),) * 2, "k.data: expected float32 of shape (3,), got float32"),
        (Sequence(FLOATS, stack=True), np.zeros((2, 4), np.float32), "k.data: expected float32 of shape (2, 3)"),
        (Sequence(FLOATS, stack=True), 1.0, "k.data: expected float32 of shape (0, 3), got float 1.0"),
        (Sequence(Text(3), stack=True), "ab", "k.data: expected a tuple of elements, got str 'ab'"),
        (Sequence(Tuple((Discrete(2), Text(3))), stack=True), ([0, 1], ("a",)), "k.data.1: expected 2 elements, got 1"),
        (GRAPH, NODES, "k: expected a GraphInstance, got float32 of shape (2, 3)"),
        (GRAPH, (NODES, EDGES, None), "k: edges and edge_links must both be arrays or both be None"),
        (GRAPH, (NODES, EDGES, LINKS[:1]), "k.edge_links: expected int32 of shape (2, 2), got int32 of shape (1, 2)"),
        (GRAPH, (NODES, EDGES, LINKS * 1.0), "k.edge_links: expected int32 of shape (2, 2), got float64 of shape"),
        (GRAPH, (np.zeros((6, 3), np.float32), None, None), "k.nodes: a sequence of 6 elements is longer than "
         "max_nodes=5; pass a larger max_nodes, or for it alone bounds={'k': {'max_nodes': 6}}"),
        (Graph(FLOATS, None), (NODES, EDGES, LINKS), "k: the graph has edges, but its space has no edge_space"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(space: Any, x: Any, message: str) -> None:
    layout = observation_layout(Dict({"k": space}), **BOUNDS)
    for act in (layout.flatten, layout.check, action_layout(Dict({"k": space}), **BOUNDS).check):
        if act == layout.flatten or "charset" not in message:
            with pytest.raises(SpaceError) as caught:
                act({"k": x})
            assert message in str(caught.value)
    with pytest.raises(SpaceError) as caught:
        observation_layout(space, **BOUNDS).flatten(x)
    assert str(caught.value).startswith(
        ("the observation: ", "data", "a: ", "b: ", "nodes: ", "edge_links: ", "'a.b': ")
    )


if ONE_OF is not None:

    @pytest.mark.parametrize("x", [3, (2, 0), (-1, 0), (0.0, 0), (0, 1, 2), None])
    def test_a_choice_that_is_none_is_named(x: Any) -> None:
        with pytest.raises(SpaceError, match=r"k: expected \(index, value\), index 0 to 1, got"):
            observation_layout(Dict({"k": ONE_OF((Discrete(2), FLOATS))})).flatten({"k": x})


@pytest.mark.parametrize(
    ("space", "x"),
    [(Discrete(3), 3), (Discrete(3, start=1), 0), (MultiDiscrete([2, 2]), [1, 2]), (MultiBinary(2), [2, 0])],
)
def test_check_raises_for_values_outside_of_discrete_spaces(space: Any, x: Any) -> None:
    for layout in (observation_layout(Tuple((space, FLOATS))), action_layout(Tuple((space, FLOATS)))):
        with pytest.raises(SpaceError, match=r"0: the value \d is not in (Multi)?(Discrete|Binary)"):
            layout.check((x, FLOATS.low))
        layout.check((space.sample(), FLOATS.low))


def test_the_sample_of_a_failed_pack_can_be_mended() -> None:
    layout = observation_layout(MIXED)
    row = np.full(layout.shape, 0xAA, np.uint8)
    x = MIXED.sample()
    with pytest.raises(SpaceError, match="c: expected int64"):
        layout.pack({**x, "c": None}, row)
    layout.pack(x, row)
    assert row.tobytes() == layout.flatten(x).tobytes()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda layout, row: layout.pack(layout.space.sample(), row[:-1]),
            "expected a row of uint8 of shape (40,), got",
        ),
        (lambda layout, row: layout.views(np.stack([row])), "expected a row of uint8 of shape (40,), got"),
        (lambda layout, row: layout.views(row.view(np.int8)), "expected a row of uint8 of shape (40,), got int8"),
        (lambda layout, row: layout.views(np.zeros(80, np.uint8)[::2]), "a row must be contiguous in memory"),
        (
            lambda layout, row: layout.decode(row[:-1]),
            "expected one row of uint8 of shape (40,), got uint8 of shape (39,)",
        ),
        (lambda layout, row: layout.decode(row.astype(float)), "expected one row of uint8 of shape (40,), got float64"),
        (lambda layout, row: layout.decode(np.stack([row])), "use unflatten for batches"),
        (lambda layout, row: layout.unflatten(row[1:]), "expected rows of uint8 of shape (..., 40), got"),
        (
            lambda layout, row: layout.unflatten(row / 255),
            "expected rows of uint8, the bytes of mixed leaves, got float64",
        ),
        (lambda layout, row: layout.unflatten(np.asfortranarray(np.stack([row] * 2))), "rows are not contiguous"),
    ],
)
def test_wrong_rows_are_named(act: Any, message: str) -> None:
    layout = observation_layout(MIXED)
    with pytest.raises(SpaceError) as caught:
        act(layout, np.zeros(layout.shape, layout.dtype))
    assert message in str(caught.value)


def test_decode_takes_rows_that_are_not_contiguous() -> None:
    layout = observation_layout(MIXED)
    x = MIXED.sample()
    buffer = np.zeros(80, np.uint8)
    buffer[::2] = layout.flatten(x)
    assert same(layout.decode(buffer[::2]), x)


def test_rows_of_one_dtype_may_be_cast_before_unflatten() -> None:
    layout = observation_layout(Dict({"a": IMAGE, "b": Box(0, 255, (3,), np.uint8)}))
    scaled = layout.unflatten(np.full((5, 7), 255, np.uint8) / 255)
    assert scaled["a"].shape == (5, 2, 2) and (scaled["b"] == 1).all()


class Longer(list[Any]):
    """Says that it has an element more than it has."""

    def __len__(self) -> int:
        return super().__len__() + 1


class Everything(dict[Any, Any]):
    """Says that it has every key."""

    def __contains__(self, key: Any) -> bool:
        return True


@pytest.mark.parametrize(
    ("space", "x"),
    [
        (Tuple((FLOATS, FLOATS)), Longer([np.zeros(3, np.float32)])),
        (Dict({"a": FLOATS}), Everything()),
        (Sequence(Text(3), stack=True), Longer(["a"] * 5)),
        (Sequence(FLOATS), Longer([np.zeros(2, np.float32)])),
    ],
)
def test_samples_that_lie_about_what_they_hold_are_refused_in_words(space: Any, x: Any) -> None:
    with pytest.raises(SpaceError):
        observation_layout(space, **BOUNDS).flatten(x)


def test_a_sample_that_cannot_be_shown_is_refused_all_the_same() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise IndexError

    with pytest.raises(SpaceError, match=r"expected float32 of shape \(3,\), got Shy that cannot be shown"):
        observation_layout(FLOATS).flatten(Shy())


def test_a_list_that_lies_about_its_length_leaves_nothing_of_the_row_before() -> None:
    layout = observation_layout(Sequence(FLOATS), **BOUNDS)
    row = layout.flatten((np.ones(3, np.float32),) * 4)
    layout.pack(Longer([np.zeros((3,))]), row)
    assert same(layout.decode(row), (np.zeros(3, np.float32),))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Sequence(Tuple(())), "length 1099511627776 is not one of 0 to 4"),
        (Text(3, charset="ab"), "length [0-9]+ is not one of 0 to 3"),
    ],
)
def test_actions_whose_lengths_are_out_of_range_are_refused(space: Any, message: str) -> None:
    """Rather than read for ever, or silently as something else."""
    layout = action_layout(space, **BOUNDS)
    row = np.zeros(layout.flat_space.shape, np.int64)
    row[-1] = 1 << 40
    with pytest.raises(SpaceError, match=message):
        layout.unpack(row)
