"""Layouts of observations: nothing is lost on the way into a flat row and back."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections import OrderedDict
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium import Space
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    GraphInstance,
    MultiBinary,
    MultiDiscrete,
    Sequence,
    Text,
    Tuple,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from spaces import BOUNDS, ONE_OF, any_spaces, fixed_spaces, leaves_of, same, samples

from pufferlib.layout import Layout, action_layout, observation_layout
from pufferlib.layout.pack import Writer

pytestmark = pytest.mark.beside

FLOATS = Box(-1, 1, (3,))
IMAGE = Box(0, 255, (2, 2), np.uint8)
MIXED = Dict({"a": FLOATS, "b": Tuple((Discrete(4, start=2), IMAGE)), "c": Discrete(3)})


def dirty_rows(layout: Layout) -> list[np.ndarray[Any, Any]]:
    """Rows whose bytes are all 0x00, and all 0xAA."""
    size = int(np.prod(layout.shape)) * layout.dtype.itemsize
    return [np.frombuffer(bytearray([fill] * size), layout.dtype).reshape(layout.shape) for fill in (0, 0xAA)]


@given(samples(any_spaces(), odd=True))
def test_decode_undoes_flatten(drawn: Any) -> None:
    space, [x] = drawn
    layout = observation_layout(space, **BOUNDS)
    row = layout.flatten(x)
    assert (row.shape, row.dtype) == (layout.shape, layout.dtype)
    assert same(layout.decode(row), x)


@given(samples(any_spaces()))
def test_flat_rows_are_in_the_flat_space(drawn: Any) -> None:
    space, [x] = drawn
    layout = observation_layout(space, **BOUNDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        layout.check(x)
        assert layout.flat_space.contains(layout.flatten(x))


@given(any_spaces())
def test_leaves_are_disjoint_and_aligned_like_a_c_struct(space: Space[Any]) -> None:
    layout = observation_layout(space, **BOUNDS)
    end = 0
    for leaf in layout.leaves:
        assert leaf.offset >= end and leaf.offset % leaf.dtype.itemsize == 0
        assert leaf.dtype.isnative
        end = leaf.offset + leaf.nbytes
    assert layout.nbytes == int(np.prod(layout.shape)) * layout.dtype.itemsize
    assert (
        len({leaf.path for leaf in layout.leaves}) == len({leaf.name for leaf in layout.leaves}) == len(layout.leaves)
    )
    fields = [(f"f{i}", leaf.dtype, leaf.shape) for i, leaf in enumerate(layout.leaves)]
    struct = np.dtype(fields, align=True)
    assert [leaf.offset for leaf in layout.leaves] == [struct.fields[name][1] for name, *_ in fields]
    assert layout.nbytes == struct.itemsize


@given(any_spaces())
def test_the_flat_space_is_the_leaf_or_one_dtype_or_bytes(space: Space[Any]) -> None:
    layout = observation_layout(space, **BOUNDS)
    dtypes = {leaf.dtype for leaf in layout.leaves}
    if isinstance(space, (Box, Discrete, MultiDiscrete, MultiBinary)):
        assert layout.is_leaf and (layout.flat_space is space or not space.dtype.isnative)
        assert layout.shape == space.shape
    else:
        assert not layout.is_leaf and isinstance(layout.flat_space, Box) and len(layout.shape) == 1
        assert layout.dtype == (dtypes.pop() if len(dtypes) == 1 else np.uint8)


@given(samples(any_spaces(), odd=True))
def test_every_byte_of_a_dirty_row_is_written_and_padding_is_zero(drawn: Any) -> None:
    space, [x] = drawn
    layout = observation_layout(space, **BOUNDS)
    clean, dirty = dirty_rows(layout)
    layout.pack(x, clean)
    layout.pack(x, dirty)
    assert clean.tobytes() == dirty.tobytes()
    used = np.zeros(layout.nbytes, bool)
    for leaf in layout.leaves:
        used[leaf.offset : leaf.offset + leaf.nbytes] = True
    assert not np.frombuffer(dirty.tobytes(), np.uint8)[~used].any()


@given(samples(any_spaces(), odd=True))
def test_the_fast_writer_writes_what_the_careful_one_does(drawn: Any) -> None:
    space, [x] = drawn
    layout = observation_layout(space, **BOUNDS)
    fast, careful = dirty_rows(layout)
    layout.pack_into(x, layout.views(fast))
    Writer(layout._tree, set())(x, layout.views(careful))
    assert fast.tobytes() == careful.tobytes()


@given(samples(any_spaces(), odd=True))
def test_what_fits_never_needs_the_careful_writer(drawn: Any) -> None:
    space, [x] = drawn
    layout = observation_layout(space, **BOUNDS)
    if any(leaf.dtype != np.dtype(leaf.dtype.type) for leaf in layout.leaves) or ">" in str(space):
        return

    def never(*_: Any) -> None:
        raise AssertionError("slow")

    layout.pack_into.__globals__["careful"] = never
    layout.pack_into(x, layout.views(dirty_rows(layout)[1]))


@given(samples(any_spaces(), count=3, odd=True), st.sampled_from(["row", "batch", "rollout", "every other"]))
def test_unflatten_gives_views_of_each_leaf(drawn: Any, kind: str) -> None:
    space, xs = drawn
    layout = observation_layout(space, **BOUNDS)
    flat = np.stack([layout.flatten(x) for x in xs])
    rows = {"row": flat[1, ...], "batch": flat, "rollout": np.stack([flat, flat]), "every other": flat[::2]}[kind]
    arrays = leaves_of(layout.unflatten(rows))
    assert len(arrays) == len(layout.leaves)
    leading = rows.shape[: rows.ndim - len(layout.shape)]
    for array, leaf in zip(arrays, layout.leaves, strict=True):
        assert array.shape == (*leading, *leaf.shape) and array.dtype == leaf.dtype
        assert np.shares_memory(array, rows) or not array.size
    offsets = slice(None) if kind != "every other" else slice(None, None, 2)
    if kind in ("batch", "every other"):
        for i, x in enumerate(xs[offsets]):
            alone = leaves_of(layout.unflatten(np.asarray(layout.flatten(x))))
            assert all(one.tobytes() == many[i].tobytes() for one, many in zip(alone, arrays, strict=True))


@given(samples(fixed_spaces(), odd=True))
def test_unflatten_of_fixed_spaces_is_the_sample(drawn: Any) -> None:
    space, [x] = drawn
    layout = observation_layout(space)
    views, expected = leaves_of(layout.unflatten(layout.flatten(x))), leaves_of(x)
    assert all(np.array_equal(v, e) or np.isnan(v).any() for v, e in zip(views, expected, strict=True))


def test_unflatten_nests_as_the_space_does() -> None:
    space = Dict(
        {"t": Text(3, charset="ab"), "s": Sequence(Tuple((Discrete(3), FLOATS))), "g": Graph(FLOATS, Discrete(2))}
    )
    layout = observation_layout(space, **BOUNDS)
    graph = GraphInstance(np.ones((2, 3), np.float32), np.array([1]), np.array([[0, 1]], np.int32))
    nested = layout.unflatten(layout.flatten({"t": "ab", "s": ((1, np.zeros(3, np.float32)),) * 2, "g": graph}))
    assert list(nested) == list(space.spaces)
    assert nested["t"]["data"].tolist() == [97, 98, 0] and nested["t"]["length"] == 2
    assert nested["s"]["data"][0].tolist() == [1, 1, 0, 0] and nested["s"]["data"][1].shape == (4, 3)
    assert nested["s"]["length"] == 2
    assert nested["g"]["nodes"]["data"].shape == (5, 3) and nested["g"]["nodes"]["length"] == 2
    assert nested["g"]["edges"]["length"] == 1 and nested["g"]["edge_links"][:2].tolist() == [[0, 1], [0, 0]]


def test_graphs_distinguish_no_edges_from_none() -> None:
    layout = observation_layout(Graph(FLOATS, Discrete(3)), **BOUNDS)
    nodes = np.zeros((2, 3), np.float32)
    for graph in [GraphInstance(nodes, None, None), GraphInstance(nodes, np.zeros(0, int), np.zeros((0, 2), np.int32))]:
        assert same(layout.decode(layout.flatten(graph)), graph)
    assert layout.unflatten(layout.flatten(GraphInstance(nodes, None, None)))["edges"]["length"] == -1
    wide = GraphInstance(nodes, np.array([1]), np.array([[1, 0]], np.int64))  # as most environments make them
    assert layout.decode(layout.flatten(wide)).edge_links.tolist() == [[1, 0]]


if ONE_OF is not None:

    def test_choices_keep_room_for_every_option() -> None:
        layout = observation_layout(ONE_OF((Discrete(3), FLOATS)))
        chosen = layout.unflatten(layout.flatten((1, np.ones(3, np.float32))))
        assert chosen["index"] == 1 and chosen["options"][0] == 0 and chosen["options"][1].tolist() == [1, 1, 1]
        assert same(layout.decode(layout.flatten((np.int64(0), 2))), (np.int64(0), np.int64(2)))


@pytest.mark.parametrize("space", [Sequence(FLOATS, stack=True), Sequence(Dict({"a": Discrete(2)}), stack=True)])
def test_gymnasiums_own_stacked_samples_survive(space: Any) -> None:
    layout = observation_layout(space, max_length=60)
    space.seed(1)
    for x in [space.sample() for _ in range(20)]:
        assert same(layout.decode(layout.flatten(x)), x)


def test_a_stack_of_empty_dicts_has_the_length_of_its_neighbours() -> None:
    layout = observation_layout(Sequence(Dict({"a": Dict({}), "b": Discrete(3)}), stack=True), max_length=4)
    x = {"a": {}, "b": np.array([1, 2])}
    assert same(layout.decode(layout.flatten(x)), x)


@pytest.mark.parametrize("space", [Dict({}), Tuple(()), Dict({"a": Tuple(())})])
def test_empty_nests_have_empty_rows(space: Any) -> None:
    layout = observation_layout(space)
    x = space.sample()
    assert (layout.shape, layout.leaves) == ((0,), ())
    assert same(layout.decode(layout.flatten(x)), x) and same(layout.unflatten(layout.flatten(x)), x)
    actions = action_layout(space)
    assert actions.flat_space.shape == (0,) and same(actions.unpack(actions.flatten(x)), x)


def test_keys_may_come_in_any_order_and_in_any_mapping() -> None:
    space = Dict({"b": FLOATS, "a": Discrete(3)})
    layout = observation_layout(space)
    x = space.sample()
    assert [leaf.path for leaf in layout.leaves] == [(key,) for key in space.spaces]
    for other in (dict(reversed(x.items())), OrderedDict(reversed(x.items()))):
        assert layout.flatten(other).tobytes() == layout.flatten(x).tobytes()


def test_names_of_keys_that_look_alike_differ() -> None:
    space = Dict({"a": Dict({"b": FLOATS}), "a.b": FLOATS, "0": FLOATS, 0: FLOATS, "": FLOATS})
    assert sorted(leaf.name for leaf in observation_layout(space).leaves) == ["''", "'0'", "'a.b'", "0", "a.b"]


def test_one_dtype_keeps_its_bounds() -> None:
    flat: Any = observation_layout(Tuple((Box(-1, 1, (2,)), Box(0, 5, (1,))))).flat_space
    assert flat.low.tolist() == [-1, -1, 0] and flat.high.tolist() == [1, 1, 5]
    flat = observation_layout(Tuple((Discrete(3, start=1), MultiDiscrete([2])))).flat_space
    assert flat.dtype == np.int64 and flat.low.tolist() == [1, 0] and flat.high.tolist() == [3, 1]


def test_flat_samples_of_discrete_are_numbers_that_dicts_take_as_keys() -> None:
    space = Discrete(5, start=2)
    assert same(observation_layout(space).flatten(3), np.int64(3)) and same(
        action_layout(space).flatten(3), np.int64(3)
    )


def test_flatten_and_decode_copy() -> None:
    layout = observation_layout(FLOATS)
    x = np.zeros(3, np.float32)
    row = layout.flatten(x)
    assert not np.shares_memory(row, x) and not np.shares_memory(layout.decode(row), row)
    assert layout.unflatten(row) is row


@settings(max_examples=50)
@given(samples(any_spaces(), odd=True))
def test_layouts_travel_and_compare(drawn: Any) -> None:
    space, [x] = drawn
    for layout in (observation_layout(space, **BOUNDS), action_layout(space, **BOUNDS)):
        for other in (pickle.loads(pickle.dumps(layout)), cloudpickle.loads(cloudpickle.dumps(layout))):
            assert other == layout and hash(other) == hash(layout) and other.leaves == layout.leaves
            assert copy.deepcopy(other) == layout
        assert layout != observation_layout(Dict({"no": Discrete(77)})) and layout != 1
    there = pickle.loads(pickle.dumps(observation_layout(space, **BOUNDS)))
    assert same(there.decode(there.flatten(x)), x)


def test_layouts_of_other_bounds_differ() -> None:
    assert observation_layout(Sequence(FLOATS), max_length=2) != observation_layout(Sequence(FLOATS), max_length=3)
    assert observation_layout(FLOATS) != action_layout(FLOATS)
    assert observation_layout(Tuple((FLOATS, IMAGE))) != observation_layout(Dict({0: FLOATS, 1: IMAGE}))


def test_a_layout_prints_as_a_table() -> None:
    layout = observation_layout(MIXED)
    assert repr(layout) == f"Layout({MIXED} -> {layout.flat_space})"
    assert str(layout).splitlines() == [
        "Layout of Box(0, 255, (40,), uint8)",
        "offset  nbytes  dtype    shape   leaf",
        "0       12      float32  (3,)    a",
        "16      8       int64    ()      b.0",
        "24      4       uint8    (2, 2)  b.1",
        "32      8       int64    ()      c",
    ]
