"""Hostile samples: both ways of packing refuse them in the same words or write the same bytes, and none beside the row.

The rows lie between guard bytes. ``test_native_pack.py`` has single oddities; here they are worse, and come together.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from spaces import BOUNDS, any_spaces, fixed_spaces, sample, samples
from test_native_pack import VALUES, compiled, mutated, plain, reads  # noqa: F401  compiled is a fixture

from pufferlib.emulation.common import observation_writer
from pufferlib.errors import SpaceError
from pufferlib.layout import action_layout, observation_layout
from pufferlib.layout.leaves import where

pytestmark = pytest.mark.beside

GUARD_NBYTES = 256
HUGE = 1 << 40
ADDRESS = re.compile(" at 0x[0-9a-f]+")


class Refused(Exception):
    """What the code of a hostile sample raises."""


class Plenty(list[Any]):
    """Has many more elements than it says."""

    def __iter__(self) -> Iterator[Any]:
        return iter([self[0]] * 200)


class Longer(list[Any]):
    def __len__(self) -> int:
        return super().__len__() + 1


class LongerTuple(tuple[Any, ...]):
    def __len__(self) -> int:
        return super().__len__() + 1

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index if isinstance(index, slice) else min(index, super().__len__() - 1))


class Shorter(tuple[Any, ...]):
    def __len__(self) -> int:
        return 0


class RaisingIteration(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise Refused


class RaisingItem(dict[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        raise Refused


class RaisingLength(tuple[Any, ...]):
    def __len__(self) -> int:
        raise Refused


class Everything(dict[Any, Any]):
    """Says that it contains every key, and has none."""

    def __contains__(self, key: Any) -> bool:
        return True

    def __len__(self) -> int:
        return 0


class Nameless:
    """Messages call it the same each time."""

    def __repr__(self) -> str:
        return "nameless"


class SequenceOfNothing(Nameless):
    """Says how many elements it has, and has none of them."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        raise Refused


class SequenceOfMore(Nameless):
    """Has more elements than it says."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        if index > 4000:
            raise IndexError
        return 0.5


class NoLength(Nameless):
    def __len__(self) -> int:
        return -1

    def __getitem__(self, index: int) -> Any:
        return 1


class RaisingArray(Nameless):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise self.error


class Changing(Nameless):
    """An array that is another one each time that it is asked for."""

    def __init__(self, like: Any) -> None:
        self.like = np.asarray(like)
        self.times = 0

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.times += 1
        return self.like if self.times % 2 else np.zeros((self.times, 2), np.float32)


class NotAnArray(Nameless):
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return [1.0, 2.0]


class Interface(Nameless):
    def __init__(self, interface: Any) -> None:
        self.__array_interface__ = interface


class Struct(Nameless):
    __array_struct__ = "no capsule"


class RaisingRepr:
    def __repr__(self) -> str:
        raise Refused


class RaisingDtype(Nameless):
    @property
    def dtype(self) -> Any:
        raise Refused


class ShapeLiar(np.ndarray[Any, Any]):
    """Its memory is another than it says."""

    @property
    def shape(self) -> Any:  # type: ignore[override]
        return 2, 2

    def __len__(self) -> int:
        return 5000


class ItemLiar(np.ndarray[Any, Any]):
    def __getitem__(self, index: Any) -> Any:
        return "no number"

    def __iter__(self) -> Iterator[Any]:
        raise Refused


class FinalizeRaises(np.ndarray[Any, Any]):
    armed = False

    def __array_finalize__(self, other: Any) -> None:
        if self.armed:
            raise Refused


def of_array(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Change arrays, of a shape or without, and nothing else."""
    return lambda x: change(x) if isinstance(x, np.ndarray) else x


def shifted(x: Any) -> Any:
    """The same array at an odd address."""
    return np.frombuffer(b"_" + x.tobytes(), x.dtype, x.size, 1).reshape(x.shape)


def reversed_memory(x: Any) -> Any:
    """The same array, in which every stride is negative."""
    everything = (slice(None, None, -1),) * x.ndim
    return np.ascontiguousarray(x[everything])[everything]


def every_other(x: Any) -> Any:
    """The same array, with gaps between its elements along the last axis."""
    return np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x


def armed(x: Any) -> Any:
    view = x.view(FinalizeRaises)
    FinalizeRaises.armed = True
    return view


HOSTILE: list[Callable[[Any], Any]] = [
    # the same values, lying otherwise in memory
    of_array(np.asfortranarray),
    of_array(shifted),
    of_array(reversed_memory),
    of_array(every_other),
    of_array(lambda x: every_other(reversed_memory(x)).T.copy().T),
    of_array(lambda x: np.broadcast_to(x.ravel()[:1].reshape(()), x.shape) if x.size else x),
    of_array(lambda x: reversed_memory(x.astype(x.dtype.newbyteorder()))),
    of_array(lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape)),
    of_array(lambda x: np.lib.stride_tricks.as_strided(x, (*x.shape, 2), (*x.strides, 0))),
    # other values and dtypes
    of_array(lambda x: x.astype(object)),
    of_array(lambda x: np.full(x.shape, np.nan)),
    of_array(lambda x: np.full(x.shape, -np.inf, np.float32)),
    of_array(lambda x: np.full(x.shape, 1e300)),
    of_array(lambda x: np.full(x.shape, 2**63, np.uint64)),
    of_array(lambda x: np.full(x.shape, -1, np.int8)),
    of_array(lambda x: np.full(x.shape, 300, np.int16).tolist()),
    of_array(lambda x: np.full(x.shape, np.nan).tolist()),
    of_array(lambda x: np.full(x.shape, 10**400, object).tolist()),
    of_array(lambda x: np.full(x.shape, "1.5")),
    of_array(lambda x: np.full(x.shape, "1.5").tolist()),
    of_array(lambda x: np.full(x.shape, b"1")),
    of_array(lambda x: x.astype(np.complex64)),
    of_array(lambda x: x.astype(np.longdouble)),
    of_array(lambda x: x.astype([("f", x.dtype)])),
    of_array(lambda x: np.full(x.shape, None)),
    of_array(lambda x: np.array([[1.0], [1.0, 2.0]], object)),
    lambda x: [[1.0], [1.0, 2.0]],
    lambda x: [[[]], []],
    lambda x: float("nan"),
    lambda x: 10**400,
    lambda x: np.float64(1e300),
    lambda x: np.float16(1),
    lambda x: complex(1, 2),
    lambda x: Ellipsis,
    lambda x: "1",
    lambda x: "\ud800" * 4,
    lambda x: "a" * 100_000,
    lambda x: bytearray(b"ab"),
    lambda x: memoryview(b"abcdefghijkl"),
    lambda x: array.array("f", [1, 2, 3]),
    lambda x: (ctypes.c_float * 3)(1, 2, 3),
    # other sizes
    of_array(lambda x: np.broadcast_to(np.zeros((), x.dtype), (HUGE, *x.shape[1:]))),
    of_array(lambda x: np.broadcast_to(np.zeros((), x.dtype), (*x.shape, HUGE))),
    of_array(lambda x: np.broadcast_to(np.zeros((), x.dtype), (0, HUGE))),
    of_array(lambda x: x.reshape(-1)),
    of_array(lambda x: x.reshape(1, *x.shape)),
    of_array(lambda x: x[..., :0] if x.ndim else x),
    of_array(lambda x: np.zeros((0, *x.shape), x.dtype)),
    of_array(lambda x: np.array(x.ravel()[0]) if x.size else x),
    of_array(lambda x: np.concatenate([x.ravel()] * 9)),
    lambda x: np.zeros(HUGE // 2**30, np.float32),
    lambda x: (x,) * 300,
    lambda x: [x] * 5,
    # lies
    lambda x: Plenty([x]),
    lambda x: Longer(x if isinstance(x, (tuple, list)) else [x]),
    lambda x: LongerTuple(x if isinstance(x, tuple) and x else (x,)),
    lambda x: Shorter(x if isinstance(x, tuple) else (x,)),
    lambda x: RaisingIteration([x]),
    lambda x: RaisingLength((x,)),
    lambda x: RaisingItem(x if isinstance(x, dict) else {"a": x}),
    lambda x: Everything(x if isinstance(x, dict) else {"a": x}),
    lambda x: Everything(),
    lambda x: SequenceOfNothing(),
    lambda x: SequenceOfMore(),
    lambda x: NoLength(),
    lambda x: RaisingArray(KeyError("a")),
    lambda x: RaisingArray(MemoryError()),
    lambda x: RaisingArray(RecursionError()),
    lambda x: RaisingArray(OverflowError()),
    lambda x: Changing(x) if isinstance(x, np.ndarray) else x,
    lambda x: NotAnArray(),
    lambda x: Interface(None),
    lambda x: Interface({"shape": (3,), "typestr": "nonsense", "version": 3}),
    lambda x: Struct(),
    lambda x: RaisingRepr(),
    lambda x: RaisingDtype(),
    of_array(lambda x: x.view(ShapeLiar)),
    of_array(lambda x: x.view(ItemLiar)),
    of_array(armed),
]

Change = tuple[list[int], Callable[[Any], Any]]


def paths_of(layout: Any) -> set[str]:
    """How messages may begin: with a part of the layout's space."""

    def walk(node: Any) -> Iterator[str]:
        yield where(node.path)
        for key in getattr(node, "keys", None) or ():
            yield where((*node.path, key))
        for _, child, _ in getattr(node, "parts", ()):
            yield from walk(child)

    return set(walk(layout._tree))


def attempt(write: Callable[[Any, Any], None], make: Callable[[], Any], shape: Any, dtype: Any) -> Any:
    """Return what comes of writing a sample into a row: its bytes, or the error; and the warnings.

    The row lies between guard bytes, which nobody may touch.
    """
    nbytes = int(np.prod(shape)) * dtype.itemsize
    memory = np.full(nbytes + 2 * GUARD_NBYTES, 0xA5, np.uint8)
    row = memory[GUARD_NBYTES : GUARD_NBYTES + nbytes].view(dtype).reshape(shape)
    result: Any = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            write(make(), row)
            result = row.tobytes()
        except Exception as error:
            result = error
        finally:
            FinalizeRaises.armed = False
    for guard in (memory[:GUARD_NBYTES], memory[GUARD_NBYTES + nbytes :]):
        assert (guard == 0xA5).all(), "bytes beside the row were written"
    return result, list(dict.fromkeys(str(warning.message) for warning in caught))


def layouts_of(space: Any) -> tuple[Any, Any]:
    """The layout of a space, and the same without its compiled half."""
    layout = observation_layout(space, **BOUNDS)
    assert layout.packer is not None
    return layout, plain(layout)


def raised_by_sample(error: Exception) -> bool:
    """Whether it was the code of the sample, all of which is in the tests, that raised."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return Path(__file__).parents[1] in Path(frames[-1][0].f_code.co_filename).parents


def check(both: tuple[Any, Any], make: Callable[[], Any], extra: int = 0) -> Any:
    """Write a sample by both layouts, into a row that may be longer than it needs; return the result."""
    layout, _ = both
    for written_by in both:
        written_by._warned.clear()
    if extra and len(layout.shape) == 1:
        row_space: Any = Box(0, 255, (layout.nbytes + extra,), np.uint8)
        results = [
            attempt(observation_writer(written_by, row_space), make, row_space.shape, row_space.dtype)
            for written_by in both
        ]
    else:
        results = [attempt(written_by.pack, make, layout.shape, layout.dtype) for written_by in both]
    (result, said), (expected, said_by_plain) = results
    assert type(result) is type(expected), results
    if isinstance(expected, Exception):
        assert raised_by_sample(expected) or isinstance(expected, SpaceError), repr(expected)
        assert ADDRESS.sub("", str(result)) == ADDRESS.sub("", str(expected))
        if isinstance(expected, SpaceError):
            surplus = ": not in the space, whose keys are " in str(expected)  # it names the key that is too many
            assert surplus or any(str(expected).startswith(f"{path}: ") for path in paths_of(layout)), str(expected)
    else:
        assert result == expected
        assert said == said_by_plain
    return expected


def changed(x: Any, changes: list[Change]) -> Any:
    for path, change in changes:
        with contextlib.suppress(Exception):  # what was made hostile before need not bear to be changed
            x = mutated(x, path, change)
    return x


SOME = settings(max_examples=settings().max_examples)
MANY = settings(max_examples=6 * settings().max_examples)
CHANGES = st.tuples(st.lists(st.integers(0, 5), max_size=4), st.sampled_from(HOSTILE + VALUES))


hostile_samples = given(
    st.one_of(samples(any_spaces(), odd=True), samples(fixed_spaces(), odd=True)),
    st.lists(CHANGES, min_size=1, max_size=3),
    st.sampled_from([0, 0, 1, 8]),
)


@SOME
@hostile_samples
def test_hostile_samples_end_the_same_on_both_paths(drawn: Any, changes: list[Change], extra: int) -> None:
    assert_same_end(drawn, changes, extra)


@pytest.mark.long
@MANY
@hostile_samples
def test_many_hostile_samples_end_the_same_on_both_paths(drawn: Any, changes: list[Change], extra: int) -> None:
    assert_same_end(drawn, changes, extra)


def assert_same_end(drawn: Any, changes: list[Change], extra: int) -> None:
    space, [x] = drawn
    check(layouts_of(space), lambda: changed(x, changes), extra)


LEAVES = (
    Box(-1, 1, (3,)),
    Box(0, 255, (4, 2, 2), np.uint8),
    Box(-1, 1, (), np.float64),
    Box(0, 9, (2, 2), ">i4"),
    Box(0, 1, (0,), np.float16),
    Discrete(3),
    MultiBinary((2, 2)),
    MultiDiscrete([3, 2]),
    Text(3),
    Text(3, charset="aβ"),
)


@pytest.fixture(scope="module")
def layouts() -> list[tuple[Any, Any]]:
    """Layouts of each kind of leaf, alone and inside of each kind of space, with a sample of each."""
    rng = np.random.default_rng(0)
    spaces: list[Any] = []
    for leaf in LEAVES:
        spaces += [leaf, Dict({"k": leaf, "l": LEAVES[0]}), Tuple((leaf,)), Sequence(leaf), Sequence(leaf, stack=True)]
    return [(layouts_of(space), sample(space, rng)) for space in spaces]


@pytest.mark.parametrize("index", range(len(HOSTILE)))
def test_each_kind_of_hostility_in_each_kind_of_leaf(index: int, layouts: list[tuple[Any, Any]]) -> None:
    for both, x in layouts:
        for path in ([], [0], [1]) if isinstance(x, (dict, tuple)) else ([],):
            check(both, lambda: mutated(x, path, HOSTILE[index]))  # noqa: B023  called at once


def test_the_guards_and_the_comparison_would_notice() -> None:
    """Or a packer that writes beside its row, or another value, might pass."""
    space = Box(0, 255, (8,), np.uint8)
    x = np.arange(8, dtype=np.uint8)

    def write_past_row(sample: Any, row: Any) -> None:
        row[...] = sample
        row.base[GUARD_NBYTES - 1] = 0

    with pytest.raises(AssertionError, match="beside the row"):
        attempt(write_past_row, lambda: x, space.shape, space.dtype)
    layout = observation_layout(space)
    assert attempt(layout.pack, lambda: x, space.shape, space.dtype) == (x.tobytes(), [])


BITS = st.integers(0, 2**32 - 1)


any_bits = given(any_spaces() | fixed_spaces(), BITS, st.sampled_from(["bits", "extremes"]))


@SOME
@any_bits
def test_any_bits_at_all_are_unpacked_the_same(space: Any, seed: int, kind: str) -> None:
    assert_unpacked_the_same(space, seed, kind)


@pytest.mark.long
@MANY
@any_bits
def test_many_bits_are_unpacked_the_same(space: Any, seed: int, kind: str) -> None:
    assert_unpacked_the_same(space, seed, kind)


def assert_unpacked_the_same(space: Any, seed: int, kind: str) -> None:
    """Of an action row whatever is in it: indices far out of range, NaNs with payloads, infinities."""
    try:
        layout = action_layout(space, **BOUNDS)
    except TypeError:
        return  # such an action has no layout
    rng = np.random.default_rng(seed)
    rows = []
    for component in layout.components:
        shape, dtype = component.shape or (), np.dtype(component.dtype)
        row = np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape).copy()
        if kind == "extremes" and dtype.kind == "f":
            row[...] = rng.choice(np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45], np.float32), shape)
        elif kind == "extremes" and dtype == np.int64:
            row[...] = rng.choice(np.array([-(2**63), 2**63 - 1, 0, -1, 2**32], np.int64), shape)
        rows.append(row)
    row = tuple(rows) if len(rows) == 2 else rows[0]

    def read(read_by: Any) -> Any:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            try:
                return reads(read_by, row)
            except Exception as error:
                return type(error), str(error)

    assert read(layout) == read(plain(layout))
