"""Recursive random spaces with samples of them, for Hypothesis, and what it means for two samples to be the same."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from hypothesis import strategies as st

ONE_OF: Any = getattr(spaces, "OneOf", None)  # Gymnasium 0.29 has none
BOUNDS = {"max_length": 4, "max_nodes": 5, "max_edges": 6}  # of what ``sample`` makes

# "a.b" beside {"a": {"b": …}}, "0" beside 0: names that would collide were they joined carelessly
KEYS = st.sampled_from(["a", "b", "c", "a.b", "0", 0, 1, "", "an id", ("t", 1)])
SHAPES = st.sampled_from([(), (1,), (3,), (2, 2), (0,), (2, 0)])
DTYPES = ["f2", "f4", "f8", ">f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", "?"]


@st.composite
def boxes(draw: st.DrawFn, dtypes: tuple[str, ...] = tuple(DTYPES)) -> spaces.Box:
    """Boxes of every dtype, among them empty ones, 0-d ones and those that float32 cannot bound exactly."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = draw(SHAPES)
    if dtype.kind == "f":
        low, high = draw(st.sampled_from([(-np.inf, np.inf), (-0.1, 0.3), (0.1, np.inf), (0.0, 1.0)]))
    elif dtype.kind == "b":
        low, high = 0, 1
    else:
        low, high = draw(st.sampled_from([(0, 3), (5, 100)] + [(-7, 1)] * (dtype.kind == "i")))
    return spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), dtype=dtype)


def leaf_spaces() -> st.SearchStrategy[Space[Any]]:
    """Box, Discrete, MultiDiscrete and MultiBinary."""
    return st.one_of(
        boxes(),
        st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
        st.sampled_from([[3], [2, 4], [[2, 3], [4, 1]]]).map(lambda nvec: spaces.MultiDiscrete(np.array(nvec))),
        st.builds(spaces.MultiBinary, st.sampled_from([2, (2, 2)])),
    )


def text_spaces() -> st.SearchStrategy[Space[Any]]:
    """Texts of one-byte and of wider characters."""
    charsets = st.sampled_from(["ab", "aé", "aβ", "a😀\x00"])
    return st.builds(lambda low, charset: spaces.Text(3, min_length=low, charset=charset), st.integers(0, 2), charsets)


def records(children: st.SearchStrategy[Space[Any]]) -> st.SearchStrategy[Space[Any]]:
    """Dicts and Tuples of the children."""
    dicts: st.SearchStrategy[spaces.Dict[Any]] = st.builds(spaces.Dict, st.dictionaries(KEYS, children, max_size=4))
    return dicts | st.lists(children, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts)))


def fixed_spaces(max_leaves: int = 6) -> st.SearchStrategy[Space[Any]]:
    """Spaces, nested at will, whose samples are all of one size."""
    return st.recursive(leaf_spaces(), records, max_leaves=max_leaves)


def any_spaces(max_leaves: int = 6) -> st.SearchStrategy[Space[Any]]:
    """All kinds of spaces, nested at will; those without a bound of their own need ``BOUNDS``."""

    def extend(children: st.SearchStrategy[Space[Any]]) -> st.SearchStrategy[Space[Any]]:
        sequences = st.builds(lambda space, stack: spaces.Sequence(space, stack=stack), children, st.booleans())
        strategies = [records(children), sequences]
        if ONE_OF is not None:
            strategies.append(st.lists(children, min_size=1, max_size=3).map(ONE_OF))
        return st.one_of(*strategies)

    plain = boxes(("f4", "f8", "u1")) | st.builds(spaces.Discrete, st.integers(1, 4))
    graphs = st.builds(spaces.Graph, plain, st.none() | plain)
    return st.recursive(st.one_of(leaf_spaces(), text_spaces(), graphs), extend, max_leaves=max_leaves)


def sample(space: Any, rng: np.random.Generator, odd: bool = False) -> Any:
    """Return a sample within ``BOUNDS``. odd: with NaN and infinities where the dtype has them, bounds or not."""
    if isinstance(space, spaces.Dict):
        return {key: sample(child, rng, odd) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sample(child, rng, odd) for child in space.spaces)
    if isinstance(space, spaces.Sequence):
        return _many(space.feature_space, int(rng.integers(0, BOUNDS["max_length"] + 1)), space.stack, rng, odd)
    if isinstance(space, spaces.Graph):
        num_nodes = int(rng.integers(0, BOUNDS["max_nodes"] + 1))
        nodes = _many(space.node_space, num_nodes, True, rng, odd)
        if space.edge_space is None or not num_nodes or rng.random() < 0.3:
            return spaces.GraphInstance(nodes, None, None)
        num_edges = int(rng.integers(0, BOUNDS["max_edges"] + 1))
        links = rng.integers(0, num_nodes, (num_edges, 2)).astype(np.int32)
        return spaces.GraphInstance(nodes, _many(space.edge_space, num_edges, True, rng, odd), links)
    if ONE_OF is not None and isinstance(space, ONE_OF):
        index = rng.integers(0, len(space.spaces))
        return index, sample(space.spaces[index], rng, odd)
    if isinstance(space, spaces.Text):
        size, charset = int(rng.integers(space.min_length, space.max_length + 1)), sorted(space.character_set)
        return "".join(charset[i] for i in rng.integers(0, len(charset), size))
    if isinstance(space, spaces.Box):
        return _in_box(space, rng, odd)
    space.seed(int(rng.integers(2**31)))
    return space.sample()


def _in_box(space: spaces.Box, rng: np.random.Generator, odd: bool) -> np.ndarray[Any, Any]:
    if odd and space.dtype.kind == "f":
        # Any bits: NaNs with payloads, infinities, subnormals, negative zeros.
        size = int(np.prod(space.shape)) * space.dtype.itemsize
        return np.frombuffer(rng.bytes(size), space.dtype).reshape(space.shape).copy()
    low = np.maximum(space.low.astype(np.float64), -100)
    high = np.minimum(space.high.astype(np.float64), 100)
    values = low + (high - low) * rng.random(space.shape)
    values = np.asarray(values if space.dtype.kind == "f" else np.rint(values))
    return np.asarray(np.clip(values.astype(space.dtype), space.low, space.high), space.dtype)


def _many(space: Space[Any], count: int, stack: bool, rng: np.random.Generator, odd: bool) -> Any:
    items = tuple(sample(space, rng, odd) for _ in range(count))
    return _stacked(space, items) if stack else items


def _stacked(space: Any, items: tuple[Any, ...]) -> Any:
    """Return samples of a space in a batch, as gymnasium's ``concatenate`` does, if empty too."""
    if isinstance(space, spaces.Dict):
        return {key: _stacked(child, tuple(item[key] for item in items)) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_stacked(child, tuple(item[i] for item in items)) for i, child in enumerate(space.spaces))
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        shape: tuple[int, ...] = space.shape or ()
        return np.array(items, space.dtype).reshape((len(items), *shape))
    return items


@st.composite
def samples(
    draw: st.DrawFn, of: st.SearchStrategy[Space[Any]], count: int = 1, odd: bool = False
) -> tuple[Space[Any], list[Any]]:
    """A space and ``count`` samples of it."""
    space = draw(of)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return space, [sample(space, rng, odd) for _ in range(count)]


def same(one: Any, other: Any) -> bool:
    """Whether two samples are the same to the bit, in structure, types, dtypes and shapes."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return type(one) is type(other) and bool(one == other)


def leaves_of(nested: Any) -> list[Any]:
    """The arrays of a nested structure, in order."""
    if isinstance(nested, dict):
        nested = tuple(nested.values())
    return [leaf for part in nested for leaf in leaves_of(part)] if isinstance(nested, tuple) else [nested]


def fits(space: Space[Any], value: Any) -> bool:
    """Whether a space contains a value, in Gymnasium's eyes (which cannot see stacks of nothing)."""
    if re.search(r"(Dict|Tuple)\(\).*stack=True", str(space)):
        return True
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Casting input x")
        return space.contains(value)
