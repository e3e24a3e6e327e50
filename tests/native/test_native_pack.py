"""The compiled packer and unpacker: the same bytes, actions and errors as their Python twins, whatever comes."""

from __future__ import annotations

import copy
import enum
import gc
import inspect
import pickle
import sys
import threading
import time
import types
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from hypothesis import example, given
from hypothesis import strategies as st
from spaces import BOUNDS, any_spaces, fixed_spaces, leaf_spaces, same, sample, samples

from pufferlib import _native
from pufferlib.emulation.common import observation_writer
from pufferlib.errors import SpaceError
from pufferlib.layout import Layout, action_layout, observation_layout
from pufferlib.layout.layout import ActionLayout
from pufferlib.layout.leaves import registry

pytestmark = pytest.mark.beside

native = pytest.importorskip("pufferlib._native.pack", reason=_native.reason, exc_type=ImportError)

FLOATS = Box(-1, 1, (3,))
IMAGE = Box(0, 255, (4, 4, 2), np.uint8)
NESTED = Dict({"a": FLOATS, "b": Tuple((Discrete(4, start=2), IMAGE)), "c": Text(5), "d": Box(-1, 1, (), np.float64)})


@pytest.fixture(scope="module", autouse=True)
def compiled() -> Iterator[None]:
    """Layouts made here have the compiled half, whether or not the other compiled modules are in use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "available", True)
        patch.setattr(_native, "pack", native)
        yield


def plain(layout: Any) -> Any:
    """The same layout without its compiled half."""
    python_layout = copy.copy(layout)
    python_layout.packer = python_layout.unpacker = None
    return python_layout


def dirty_row(layout: Layout) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytearray(b"\xaa" * layout.nbytes), layout.dtype).reshape(layout.shape)


def outcome(act: Callable[[], Any]) -> Any:
    """What a call returns, or the type and words of what it raises, and what it warns of (NumPy with each attempt)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = act()
        except Exception as error:
            result = type(error), str(error)
    return result, list(dict.fromkeys(str(warning.message) for warning in caught))


def packed(layout: Layout, x: Any) -> Any:
    row = dirty_row(layout)
    layout.pack(x, row)
    return row.tobytes()


def agree(space: Any, make: Callable[[], Any]) -> None:
    """Check that both layouts do the same with a sample; each gets a new one, so that neither spoils the other's."""
    layout = observation_layout(space, **BOUNDS)
    assert layout.packer is not None
    assert outcome(lambda: packed(layout, make())) == outcome(lambda: packed(plain(layout), make()))


# ------------------------------------------------------------------------------------------------ what is plain


@given(samples(any_spaces(), odd=True))
def test_packs_the_same_bytes(drawn: Any) -> None:
    space, [x] = drawn
    agree(space, lambda: x)


@given(samples(any_spaces(), odd=True))
def test_takes_what_the_twin_takes_without_care(drawn: Any) -> None:
    """Or the compiled half might leave everything to the twin and never be caught."""
    space, [x] = drawn
    layout = observation_layout(space, **BOUNDS)

    def careful(*_: Any) -> None:
        raise AssertionError

    layout.pack_into.__globals__["careful"] = careful
    try:
        layout.pack_into(x, layout.views(dirty_row(layout)))
    except AssertionError:
        return
    assert layout.packer.pack(x, dirty_row(layout)) or ">" in str(space)


@pytest.mark.parametrize(
    ("space", "x"),
    [
        (Discrete(4), 3),
        (Discrete(4), np.int64(3)),
        (Discrete(4), np.int32(3)),
        (Discrete(4), -(2**63)),
        (Box(0, 1, ()), np.float32(0.5)),
        (Box(0, 1, ()), np.array(0.5, np.float32)),
        (Box(0, 1, (), np.float64), np.float64(0.5)),
        (Box(0, 1, (), np.float16), np.float16(0.5)),
        (Box(0, 1, (), np.bool_), np.True_),
        (Box(0, 9, (2,), np.uint16), np.array([1, 2], np.uint16)),
        (FLOATS, pickle.loads(pickle.dumps(np.ones(3, np.float32)))),  # its dtype is an object of its own
        (FLOATS, np.ones(3, np.dtype(np.float32, metadata={"unit": "m"}))),
        (FLOATS, np.frombuffer(b"abcdefghijkl", np.float32)),  # read-only
        (FLOATS, np.frombuffer(b"_abcdefghijkl", np.float32, 3, 1)),  # unaligned
        (FLOATS, np.arange(6, dtype=np.float32)[::2]),
        (FLOATS, np.arange(3, dtype=np.float32)[::-1]),
        (FLOATS, np.broadcast_to(np.float32(3), 3)),
        (IMAGE, np.arange(32, dtype=np.uint8).reshape(2, 4, 4).transpose(1, 2, 0)),
        (IMAGE, np.arange(64, dtype=np.uint8).reshape(4, 4, 4)[:, ::-1, ::2]),
        (IMAGE, np.asfortranarray(np.arange(32, dtype=np.uint8).reshape(4, 4, 2))),
        (Box(0, 1, (2, 3), np.float64), np.arange(6.0).reshape(3, 2).T),
        (Box(0, 9, (2, 3), np.int16), np.arange(6, dtype=np.int16).reshape(3, 2).T),
        (Box(0, 1, (2,), np.bool_), np.array([2, 7], np.uint8).view(np.bool_)),
        (Dict({"a": FLOATS}), OrderedDict(a=np.ones(3, np.float32))),
        (Tuple((FLOATS,)), [np.ones(3, np.float32)]),
        (Dict({}), {}),
        (Tuple(()), ()),
        (Text(4, charset="aé"), "aé"),
        (Text(4, charset="a€"), "a€\udc80"),
        (Sequence(FLOATS), (np.ones(3, np.float32), np.zeros(3, np.float32))),
        (Sequence(FLOATS), [np.ones(6, np.float32)[::2]]),
        (Sequence(FLOATS), ()),
        (Sequence(Discrete(3)), (1, np.int64(2), np.int32(0))),
        (Sequence(Box(0, 1, ())), (np.float32(1), np.array(0, np.float32))),
        (Sequence(FLOATS, stack=True), np.ones((2, 3), np.float32)),
        (Sequence(FLOATS, stack=True), np.ones((3, 4), np.float32).T[:4]),
        (Sequence(Discrete(3), stack=True), np.array([1, 2])),
        (Sequence(Tuple((FLOATS, Discrete(2)))), ((np.ones(3, np.float32), 1),)),
    ],
)
def test_takes_what_is_plain(space: Any, x: Any) -> None:
    for wrapped, value in ((space, x), (Dict({"k": space, "l": IMAGE}), {"k": x, "l": np.ones((4, 4, 2), np.uint8)})):
        layout = observation_layout(wrapped, **BOUNDS)
        row = dirty_row(layout)
        assert layout.packer.pack(value, row)
        assert row.tobytes() == packed(plain(layout), value)


@pytest.mark.parametrize(
    ("space", "x"),
    [
        (Text(4, charset="ab"), "a" * 5),
        (Text(4, charset="ab"), "a" * 5000),
        (Text(4, charset="a€"), "€" * 5),
        (Text(4, charset="ab"), "€"),
        (Text(4, charset="ab"), "\ud800"),
        (Sequence(FLOATS), (np.ones(3, np.float32),) * 5),
        (Sequence(FLOATS), [np.ones(3, np.float32)] * 5000),
        (Sequence(FLOATS, stack=True), np.ones((5, 3), np.float32)),
        (Sequence(FLOATS, stack=True), np.ones((3, 5000), np.float32).T),
        (Sequence(Discrete(3)), (1,) * 5),
        (Tuple((FLOATS,)), (np.ones(3, np.float32),) * 2),
        (Tuple((FLOATS,)), ()),
        (FLOATS, np.ones(3000, np.float32)),
        (FLOATS, np.ones((3, 1), np.float32)),
        (FLOATS, np.ones((), np.float32)),
        (Discrete(3), 2**63),
        (Discrete(3), -(2**63) - 1),
    ],
)
def test_leaves_what_does_not_fit_to_the_twin(space: Any, x: Any) -> None:
    """And writes nothing beyond the row."""
    layout = observation_layout(Tuple((space, Discrete(2))), **BOUNDS)
    memory = np.full(layout.nbytes + 128, 0xAA, np.uint8)
    row = memory[64:-64].view(layout.dtype)
    assert not layout.packer.pack((x, 1), row)
    assert (memory[:64] == 0xAA).all() and (memory[-64:] == 0xAA).all()
    agree(Tuple((space, Discrete(2))), lambda: (x, 1))


# ------------------------------------------------------------------------------------------------------- casts

DTYPES = "?bhilBHILfd"
VALUES_OF: dict[str, list[Any]] = {
    "b": [False, True],
    "iu": [0, 1, -1, 100, 127, 128, -129, 255, 256, 2**31, 2**32 - 1, 2**53 + 1, -(2**63), 2**63 - 1],
    "f": [0.0, -0.0, 1.0, 0.1, -2.5, 1e-45, 2.0**53 + 2, 1e300, float("inf"), float("nan")],
}
# Gymnasium 0.29 has int64 alone.
SHORT = [Discrete(5, dtype=np.int32)] if "dtype" in inspect.signature(Discrete).parameters else []
CAST_LEAVES = [
    *(Box(0, 1, (3,), np.dtype(code).type) for code in DTYPES),
    *(Box(0, 1, (2, 2), np.dtype(code).type) for code in "Bfd"),
    *(Box(0, 1, (), np.dtype(code).type) for code in "?bBlfd"),
    *(Discrete(5), *SHORT, MultiBinary(3), MultiDiscrete([3, 4, 5])),
]


def values_of(dtype: Any) -> list[Any]:
    """Numbers of all sizes that a dtype has, and some that are special to it."""
    (values,) = (values for kinds, values in VALUES_OF.items() if np.dtype(dtype).kind in kinds)
    if np.dtype(dtype).kind not in "iu":
        return values
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return [value for value in (*values, 2**64 - 1) if low <= value <= high]


@st.composite
def arrays_of_any_dtype(draw: Any, shape: tuple[int, ...]) -> Any:
    """Draw an array of a shape, of any number type, byte order and strides, which may be a subclass's; or a scalar."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    size = int(np.prod(shape))
    values = draw(st.lists(st.sampled_from(values_of(dtype)), min_size=size, max_size=size))
    array = np.array(values, dtype).reshape(shape)
    how = draw(st.sampled_from(["plain", "swapped", "strided", "reversed", "subclass", "scalar"]))
    if how == "swapped":
        return array.astype(dtype.newbyteorder())
    if how == "strided" and shape:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if how == "reversed" and shape:
        return np.ascontiguousarray(array[::-1])[::-1]
    if how == "subclass":
        return array.view(np.matrix if len(shape) == 2 else np.ma.MaskedArray)
    return array[()] if how == "scalar" else array


@st.composite
def lists_of(draw: Any, shape: tuple[int, ...]) -> Any:
    """Draw a list or tuple of a shape, nested, of Python's numbers and NumPy's."""
    if not shape:
        kinds = draw(st.sampled_from([["?"], ["l"], ["d"], ["?", "l"], ["?", "l", "d"], list(DTYPES)]))
        dtype = np.dtype(draw(st.sampled_from(kinds)))
        value = dtype.type(draw(st.sampled_from(values_of(dtype))))
        return value if draw(st.booleans()) else value.item()
    size = shape[0] if draw(st.integers(0, 9)) else shape[0] + draw(st.sampled_from([-1, 1]))
    return draw(st.sampled_from([list, tuple]))([draw(lists_of(shape[1:])) for _ in range(size)])


@given(st.sampled_from(CAST_LEAVES), st.booleans(), st.data())
def test_casts_alike(space: Any, nested: bool, data: st.DataObject) -> None:
    """Also once a cast has been warned of, from when on nobody is told."""
    x = data.draw(arrays_of_any_dtype(space.shape) | lists_of(space.shape))
    if nested:
        space, x = Dict({"x": space, "y": Discrete(3)}), {"x": x, "y": 2}
    agree(space, lambda: x)
    layout = observation_layout(space)
    python_layout = plain(layout)
    for side in (layout, python_layout):
        side._warned.add("cast")
    assert outcome(lambda: packed(layout, x)) == outcome(lambda: packed(python_layout, x))


@pytest.mark.parametrize(
    ("space", "x"),
    [
        (FLOATS, np.ones(3)),
        (FLOATS, np.arange(6.0)[::2]),
        (FLOATS, np.arange(3, dtype=">f4")),
        (FLOATS, np.arange(3, dtype=">f8")),
        (FLOATS, np.arange(3)),
        (FLOATS, np.array([True, False, True])),
        (FLOATS, np.ones(3).view(np.ma.MaskedArray)),
        (FLOATS, [0.5, 1, True]),
        (FLOATS, (0.5, np.float32(0.1), np.float64(0.1))),
        (IMAGE, np.ones((4, 4, 2), np.bool_)),
        (IMAGE, np.ones((4, 4, 2), int).tolist()),
        (MultiBinary(3), np.array([True, False, True])),
        (MultiBinary(3), [True, False, True]),
        (Discrete(4), np.uint8(3)),
        (Discrete(4), np.array(3)),
        *((space, 3) for space in SHORT),
        (Box(0, 1, (), np.float32), 0.5),
        (Box(0, 1, (), np.float32), np.float64(0.5)),
        (Box(0, 1, (), np.float32), np.array(0.5)),
        (Box(0, 9, (2,), np.int64), np.array([1, 2], np.int32)),
    ],
)
def test_casts_in_the_compiled_half_once_warned_of(space: Any, x: Any) -> None:
    for wrapped, value in ((space, x), (Dict({"k": space, "l": Discrete(2)}), {"k": x, "l": 1})):
        layout = observation_layout(wrapped)
        layout._warned.add("cast")
        row = dirty_row(layout)
        assert layout.packer.pack(value, row)
        assert row.tobytes() == packed(plain(layout), value)


def test_the_first_cast_is_warned_of() -> None:
    layout = observation_layout(FLOATS)
    assert not layout.packer.pack(np.ones(3), dirty_row(layout))
    with pytest.warns(UserWarning, match="float64 is cast to float32"):
        layout.pack(np.ones(3), dirty_row(layout))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layout.pack(np.ones(3), dirty_row(layout))
    assert layout.packer.pack(np.ones(3), dirty_row(layout))


@pytest.mark.parametrize(
    ("space", "x"),
    [
        (Box(0, 255, (2,), np.uint8), [1, 256]),
        (Box(0, 255, (2,), np.uint8), [1, -1]),
        (Box(0, 255, (2,), np.uint8), np.array([1.0, 2.0])),
        (Box(0, 255, (2,), np.uint8), np.array([1, 2])),
        (Box(-9, 9, (2,), np.int8), np.array([1, 200], np.int16)),
        (Box(-9, 9, (2,), np.int64), np.array([1, 2**63], np.uint64)),
        (MultiBinary(2), [0, 1.0]),
        (Box(0, 1, (2,), np.bool_), [0, 2]),
        (FLOATS, ["1", "2", "3"]),
        (FLOATS, [1.0, 2.0]),
        (FLOATS, [1.0, 2.0, [3.0]]),
    ],
)
def test_values_that_a_cast_would_lose_are_refused(space: Any, x: Any) -> None:
    layout = observation_layout(space)
    layout._warned.add("cast")
    with pytest.raises(SpaceError):
        layout.pack(x, dirty_row(layout))


# ------------------------------------------------------------------------------------------------ what is not


class Raises(str):
    """A key that collides with "a" and does harm when it is compared."""

    def __hash__(self) -> int:
        return hash("a")

    def __eq__(self, other: object) -> bool:
        raise self.error("compared")

    error: type[BaseException] = KeyError


class Mischief(Raises):
    """Empties the dict that is being looked up, once."""

    target: dict[Any, Any]

    def __eq__(self, other: object) -> bool:
        self.target.clear()
        return False


class Missing(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        return np.zeros(3, np.float32)


class Doubling(dict[Any, Any]):
    """Gives something else than it holds."""

    def __getitem__(self, key: Any) -> Any:
        return 2 * super().__getitem__(key)


class Backwards(tuple[Any, ...]):
    def __iter__(self) -> Iterator[Any]:
        return iter(self[::-1])


class Odd:
    """An object that messages call the same each time."""

    def __repr__(self) -> str:
        return "odd"


class Lying(Odd):
    """Says that it is an array like another."""

    def __init__(self, like: Any) -> None:
        self.shape, self.dtype = like.shape, like.dtype


class Failing(Odd):
    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape today")


class Sub(np.ndarray[Any, Any]):
    """A subclass that is what it seems."""


class Level(enum.IntEnum):
    LOW = 1


class Crooked(Odd):
    """Makes an array of another shape than it says."""

    def __init__(self, like: Any) -> None:
        self.shape, self.dtype = like.shape, like.dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.zeros((7, 7), np.float32)


VALUES: list[Callable[[Any], Any]] = [
    lambda x: None,
    lambda x: {},
    lambda x: (),
    lambda x: [],
    lambda x: "text",
    lambda x: "x" * 40,
    lambda x: "\U0001f600\ud800",
    lambda x: b"bytes",
    lambda x: 1.5,
    lambda x: True,
    lambda x: -1,
    lambda x: 2**63,
    lambda x: -(2**200),
    lambda x: Level.LOW,
    lambda x: np.uint8(3),
    lambda x: np.longlong(3),
    lambda x: np.datetime64(3, "s"),
    lambda x: np.array(3),
    lambda x: np.array(["a"]),
    lambda x: np.array([Odd()]),
    lambda x: np.zeros(3, [("f", "f4")]),
    lambda x: [x],
    lambda x: (x, x),
    lambda x: {"a": x},
    lambda x: np.asarray(x).astype(np.float64) if isinstance(x, np.ndarray) else x,
    lambda x: x.astype(x.dtype.newbyteorder()) if isinstance(x, np.ndarray) else x,
    lambda x: x.tolist() if isinstance(x, np.ndarray) else x,
    lambda x: x.view(np.matrix) if isinstance(x, np.ndarray) and x.ndim <= 2 else x,
    lambda x: np.ma.masked_array(x) if isinstance(x, np.ndarray) else x,
    lambda x: x.view(Sub) if isinstance(x, np.ndarray) else x,
    lambda x: x[..., None] if isinstance(x, np.ndarray) else x,
    lambda x: x.ravel()[:0] if isinstance(x, np.ndarray) else x,
    lambda x: Lying(x) if isinstance(x, np.ndarray) else x,
    lambda x: Crooked(x) if isinstance(x, np.ndarray) else x,
    lambda x: Failing(),
    lambda x: Missing(x) if isinstance(x, dict) else x,
    lambda x: Missing(list(x.items())[1:]) if isinstance(x, dict) else x,
    lambda x: dict(list(x.items())[1:]) if isinstance(x, dict) else x,
    lambda x: {**x, "more": 1} if isinstance(x, dict) else x,
    lambda x: {**dict(list(x.items())[1:]), "else": 1} if isinstance(x, dict) else x,
    lambda x: dict(reversed(x.items())) if isinstance(x, dict) else x,
    lambda x: OrderedDict(x) if isinstance(x, dict) else x,
    lambda x: types.MappingProxyType(x) if isinstance(x, dict) else x,
    lambda x: list(x) if isinstance(x, tuple) else x,
    lambda x: x[:-1] if isinstance(x, (tuple, np.ndarray)) and len(np.shape(x) or x) else x,
    lambda x: Doubling(x) if isinstance(x, dict) else x,
    lambda x: Backwards(x) if isinstance(x, tuple) else x,
    lambda x: namedtuple("Pair", "a b")(x, x),
]


def mutated(x: Any, path: list[int], change: Callable[[Any], Any]) -> Any:
    """A copy of a sample in which one of its parts, found by counting along the path, is changed."""
    parts = list(x.values()) if isinstance(x, dict) else list(x) if type(x) in (tuple, list) else []
    if not parts or not path:
        return change(x)
    at = path[0] % len(parts)
    parts[at] = mutated(parts[at], path[1:], change)
    return dict(zip(x, parts, strict=True)) if isinstance(x, dict) else type(x)(parts)


@given(
    st.one_of(samples(any_spaces(), odd=True), samples(fixed_spaces(), odd=True)),
    st.lists(st.integers(0, 5), max_size=4),
    st.sampled_from(VALUES),
)
def test_what_is_unusual_ends_the_same(drawn: Any, path: list[int], change: Callable[[Any], Any]) -> None:
    space, [x] = drawn
    agree(space, lambda: mutated(x, path, change))


@pytest.mark.parametrize("index", range(len(VALUES)))
def test_each_oddity_in_each_kind_of_leaf_ends_the_same(index: int) -> None:
    rng = np.random.default_rng(0)
    for space in (FLOATS, IMAGE, Discrete(3), MultiBinary(2), MultiDiscrete([3, 2]), Box(0, 1, ()), Text(3), NESTED):
        for wrapped in (space, Dict({"k": space, "l": FLOATS}), Sequence(space), Sequence(space, stack=True)):
            x = sample(wrapped, rng)
            for path in ([], [0], [1]):
                agree(wrapped, lambda: mutated(x, path, VALUES[index]))  # noqa: B023  called at once


@pytest.mark.parametrize("error", [KeyError, TypeError, ZeroDivisionError, KeyboardInterrupt])
def test_keys_that_raise_when_compared(error: type[BaseException]) -> None:
    space = Dict({"a": FLOATS, "b": FLOATS})
    key = Raises("a")
    key.error = error
    x = {key: np.ones(3, np.float32), "b": np.ones(3, np.float32)}
    if issubclass(error, Exception):
        agree(space, lambda: x)
    else:
        with pytest.raises(KeyboardInterrupt):
            observation_layout(space).flatten(x)


def test_keys_that_change_the_dict_when_compared() -> None:
    def make() -> dict[Any, Any]:
        key = Mischief("a")
        key.target = {"c": np.ones(3, np.float32), key: np.ones(3, np.float32), "b": np.ones(3, np.float32)}
        return key.target

    agree(Dict({"c": FLOATS, "a": FLOATS, "b": FLOATS}), make)


class Word:
    """What a space of the user's has for samples."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Words(Text):
    """A space whose samples are packed by code that lets other threads run, or does what a test wants."""


@pytest.fixture
def on_pack() -> Iterator[list[Callable[[Any], Any]]]:
    """Layouts know Words; the functions in the list are called with each sample that is packed."""
    calls: list[Callable[[Any], Any]] = []

    def pack(space: Any, word: Any) -> Any:
        for call in calls:
            call(word)
        return word.inner

    Layout.register(Words, lambda space: Text(space.max_length), pack, lambda space, text: Word(text))
    yield calls
    del registry[Words]


def test_code_of_the_sample_may_pack_with_the_same_layout(on_pack: list[Any]) -> None:
    layout = observation_layout(Tuple((Sequence(Words(8)), FLOATS)), max_length=3)
    inner, rows = [Word("inner"), Word("words")], []

    def pack_inner(word: Word) -> None:
        if word not in inner:
            rows.append(layout.flatten((inner, np.zeros(3, np.float32))))

    on_pack.append(pack_inner)
    rows.append(layout.flatten(([Word("an"), Word("outer"), Word("word")], np.ones(3, np.float32))))
    words = [[word.inner for word in layout.decode(row)[0]] for row in rows]
    assert words == [["inner", "words"]] * 3 + [["an", "outer", "word"]]


def test_threads_may_pack_with_the_same_layout(on_pack: list[Any]) -> None:
    layout = observation_layout(Tuple((Sequence(Words(8)), FLOATS)), max_length=3)
    on_pack.append(lambda word: time.sleep(0.0005))
    wrong = []

    def pack_many(name: str) -> None:
        for i in range(20):
            x = ([Word(f"{name}{i}")] * 3, np.full(3, i, np.float32))
            words, floats = layout.decode(layout.flatten(x))
            if {word.inner for word in words} != {f"{name}{i}"} or (floats != i).any():
                wrong.append((name, i, words))

    threads = [threading.Thread(target=pack_many, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_space_may_be_stored_as_nothing() -> None:
    Layout.register(Words, lambda space: Dict({}), lambda space, word: {}, lambda space, stored: "word")
    try:
        space = Tuple((Words(8), FLOATS))
        agree(space, lambda: ("word", np.ones(3, np.float32)))
        layout = action_layout(space)
        row = np.zeros(3, np.float32)
        assert same(layout.unpack(row), plain(layout).unpack(row)) and layout.unpack(row)[0] == "word"
    finally:
        del registry[Words]


@pytest.mark.parametrize("error", [RuntimeError("no"), ValueError("bad"), KeyboardInterrupt()])
def test_what_the_code_of_the_sample_raises_comes_through(on_pack: list[Any], error: BaseException) -> None:
    layout = observation_layout(Tuple((Words(8), FLOATS)))
    x = (Word("w"), np.ones(3, np.float32))

    def fail(word: Word) -> None:
        if not isinstance(error, ValueError):
            on_pack.clear()  # who tried again would not see it
        raise error

    for side in (layout, plain(layout)):
        on_pack.append(fail)
        with pytest.raises(type(error)) as raised:
            side.flatten(x)
        assert raised.value is error
    on_pack.clear()
    assert layout.packer.pack(x, dirty_row(layout))  # and nothing is the worse for it


# ------------------------------------------------------------------------------------------------ rows


ROWS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda row: row,
    "read-only": lambda row: np.frombuffer(row.tobytes(), row.dtype),
    "strided": lambda row: np.zeros(2 * row.size, row.dtype)[::2],
    "reversed": lambda row: row[::-1],
    "too short": lambda row: row[:-1],
    "too long": lambda row: np.zeros(row.size + 1, row.dtype),
    "two of them": lambda row: np.stack([row, row]),
    "another dtype": lambda row: row.view(np.int8),
    "a subclass": lambda row: row.view(Sub),
    "unaligned": lambda row: np.frombuffer(bytearray(row.nbytes + 1), row.dtype, row.size, 1),
    "a list": lambda row: row.tolist(),
    "nothing": lambda row: None,
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("space", [NESTED, FLOATS, Dict({"a": FLOATS})])
def test_rows_are_taken_or_refused_alike(space: Any, kind: str) -> None:
    layout = observation_layout(space)
    x = sample(space, np.random.default_rng(0))

    def written(layout: Layout) -> Any:
        row = ROWS[kind](dirty_row(layout))
        layout.pack(x, row)
        return row.tobytes()

    assert outcome(lambda: written(layout)) == outcome(lambda: written(plain(layout)))


def test_a_row_may_hold_the_sample_itself() -> None:
    layout = observation_layout(FLOATS)
    for part in (slice(None), slice(None, None, -1)):
        rows = [np.arange(3, dtype=np.float32) for _ in range(2)]
        layout.pack(rows[0][part], rows[0])
        plain(layout).pack(rows[1][part], rows[1])
        assert same(*rows) and same(rows[0], np.arange(3, dtype=np.float32)[part])


@given(
    samples(any_spaces(), odd=True),
    st.sampled_from(["the same", "longer", "bytes"]),
    st.integers(0, 9),
    st.sampled_from(VALUES),
    st.booleans(),
)
def test_writes_into_larger_rows_alike(
    drawn: Any, kind: str, extra: int, change: Callable[[Any], Any], odd: bool
) -> None:
    space, [x] = drawn
    layout = observation_layout(space, **BOUNDS)
    flat = int(np.prod(layout.shape))
    if kind == "the same":
        row_space: Any = layout.flat_space
    elif kind == "longer":
        row_space = Box(0, 1, (flat + extra,), layout.dtype.type)
    else:
        row_space = Box(0, 255, (layout.nbytes + extra,), np.uint8)

    def written(layout: Layout) -> bytes:
        row = np.zeros(row_space.shape, row_space.dtype)
        row[...] = 1
        observation_writer(layout, row_space)(change(x) if odd else x, row)
        return row.tobytes()

    assert outcome(lambda: written(layout)) == outcome(lambda: written(plain(layout)))


def test_larger_rows_are_written_by_the_compiled_half() -> None:
    layout = observation_layout(NESTED)
    x = sample(NESTED, np.random.default_rng(0))
    row = np.full(layout.nbytes + 5, 7, np.uint8)
    assert layout.packer.pack_padded(x, row)
    assert row.tobytes() == packed(plain(layout), x) + bytes(5)
    for refused in (row[:-6], row.view(np.int8), row[::-1], row.reshape(1, -1), row.view(Sub), row.tolist()):
        assert not layout.packer.pack_padded(x, refused)
    same_dtype = observation_layout(Tuple((FLOATS, FLOATS)))
    x = (np.ones(3, np.float32), np.ones(3, np.float32))
    longer = np.full(8, 7, np.float32)
    assert same_dtype.packer.pack_padded(x, longer) and longer.tolist() == [1] * 6 + [0] * 2
    assert not same_dtype.packer.pack_padded(x, longer[:5])


# ------------------------------------------------------------------------------------------------ actions


ODD_REALS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, 1e-40, 3e38, -3e38, 0.1, 0.3, 100.4, 100.5]


def reads(layout: ActionLayout, row: Any) -> Any:
    """What a layout makes of a row, comparable with ==: NaN by its bits."""
    return [
        (type(leaf), leaf.dtype.str, leaf.shape, leaf.tobytes()) if isinstance(leaf, np.ndarray) else (type(leaf), leaf)
        for leaf in flattened(layout.unpack(row))
    ]


def flattened(action: Any) -> Iterator[Any]:
    """The leaves of an action with what holds them: dicts by their keys, in order."""
    if isinstance(action, dict):
        yield tuple(action)
        action = tuple(action.values())
    if isinstance(action, tuple):
        yield len(action)
        for part in action:
            yield from flattened(part)
    else:
        yield action


@given(any_spaces() | fixed_spaces() | leaf_spaces(), st.data())
def test_unpacks_the_same_actions(space: Any, data: st.DataObject) -> None:
    try:
        layout = action_layout(space, **BOUNDS)
    except TypeError:
        return  # such an action has no layout
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    components = []
    for component in layout.components:
        row = np.asarray(sample(component, rng))
        if row.dtype == np.float32 and row.size and data.draw(st.booleans()):
            row = rng.choice(np.array(ODD_REALS, np.float32), row.shape)
        components.append(row)
    row = tuple(components) if len(components) == 2 else components[0]
    assert outcome(lambda: reads(layout, row)) == outcome(lambda: reads(plain(layout), row))


ACTIONS = Dict(
    {
        "b": MultiBinary((2, 2)),
        "d": Discrete(5, start=-2),
        "f": Box(np.array([[-1, 0], [-1, -0.0]], np.float32), np.array([[1, 1], [0, 1]], np.float32)),
        "i": Box(np.array([-7, 5], np.int16), np.array([1, 100], np.int16), dtype=np.int16),
        "m": MultiDiscrete(np.array([[2, 3], [4, 1]])),
        "t": Tuple((Box(0.7, 0.9, (), np.float64), Box(0.1, 0.3, (2,), np.float64), Box(0, 1, (2,), np.bool_))),
        "u": Box(0, 255, (3,), np.uint8),
    }
)


@given(st.lists(st.sampled_from(ODD_REALS), min_size=14, max_size=14), st.integers(0, 2**32 - 1))
@example([-0.0] * 14, 0)
@example([0.0] * 14, 0)
@example([0.1] * 14, 0)
@example([0.3] * 14, 0)
def test_reals_are_clipped_cast_and_rounded_alike(reals: list[float], seed: int) -> None:
    layout = action_layout(ACTIONS)
    row = np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, 9), np.array(reals, np.float32)
    assert layout.unpacker.unpack(tuple(map(np.copy, row))) is not NotImplemented if not np.isnan(reals).any() else True
    assert outcome(lambda: reads(layout, row)) == outcome(lambda: reads(plain(layout), row))


SMALL = Discrete(4)
SMALL.dtype = np.dtype(np.int8)  # which newer versions of gymnasium take as an argument


PAIRS: list[Callable[[Any, Any], Any]] = [
    lambda d, b: (d, b),
    lambda d, b: [d, b],
    lambda d, b: (b, d),
    lambda d, b: (d,),
    lambda d, b: (d, b, b),
    lambda d, b: d,
    lambda d, b: None,
    lambda d, b: (d.astype(np.int32), b.astype(np.float64)),
    lambda d, b: (d.astype(">i8"), b.astype(">f4")),
    lambda d, b: (d[:-1], b),
    lambda d, b: (d, b[:-1]),
    lambda d, b: (d[None], b),
    lambda d, b: (d[::-1], b[::-1]),
    lambda d, b: (d.tolist(), b.tolist()),
    lambda d, b: (d.view(Sub), b.view(Sub)),
    lambda d, b: (d * 1.0, b),
    lambda d, b: (d, b > 0),
    lambda d, b: (np.frombuffer(b" " + d.tobytes(), d.dtype, d.size, 1), b),
    lambda d, b: (Lying(d), Lying(b)),
]


@pytest.mark.parametrize("index", range(len(PAIRS)))
@pytest.mark.parametrize("space", [ACTIONS, Dict({"d": Discrete(3)}), Dict({"f": FLOATS}), FLOATS, Discrete(3)])
def test_rows_of_actions_are_taken_or_refused_alike(space: Any, index: int) -> None:
    layout = action_layout(space)
    components = [np.atleast_1d(component.sample()) for component in layout.components]
    row = PAIRS[index](components[0], components[-1])
    assert outcome(lambda: reads(layout, row)) == outcome(lambda: reads(plain(layout), row))


@pytest.mark.parametrize(
    "space", [FLOATS, Box(0, 1, (2, 2), ">f4"), MultiBinary(3), MultiDiscrete([2, 3]), Discrete(4), SMALL]
)
def test_a_lone_leaf_is_copied(space: Any) -> None:
    layout = action_layout(space)
    row = np.asarray(space.sample(), space.dtype)
    action = layout.unpacker.unpack(row)
    assert same(action, plain(layout).unpack(row))
    assert not isinstance(action, np.ndarray) or (action.flags.owndata and not np.shares_memory(action, row))


# ------------------------------------------------------------------------------------------------ memory


def test_nothing_leaks() -> None:
    space = Dict({"n": NESTED, "s": Sequence(FLOATS), "q": Sequence(Tuple((FLOATS,)), stack=True)})
    layout, actions = observation_layout(space, max_length=3), action_layout(ACTIONS)
    x = sample(space, np.random.default_rng(1))
    bad = {**x, "n": {**x["n"], "d": np.zeros(2)}}
    worse = {**x, "n": {Raises("a"): 1, **{key: part for key, part in x["n"].items() if key != "a"}}}
    row, flat = dirty_row(layout), actions.flat_space.sample()
    nan = flat[0], np.full_like(flat[1], np.nan)
    watched = [x, x["n"], x["n"]["a"], x["n"]["c"], x["s"], row, *flat, row.dtype, x["n"]["a"].dtype, None, True, False]

    def work(times: int) -> None:
        for _ in range(times):
            layout.packer.pack(x, row)
            layout.packer.pack(bad, row)
            layout.packer.pack(worse, row)
            layout.packer.pack(x, bad)
            layout.packer.pack_padded(x, row)
            actions.unpacker.unpack(flat)
            outcome(lambda: actions.unpacker.unpack(nan))

    work(200)
    gc.collect()  # empties the free lists of tuples and the like
    counts, blocks = [sys.getrefcount(watched_object) for watched_object in watched], sys.getallocatedblocks()
    work(10_000)
    gc.collect()
    grown = [sys.getrefcount(watched_object) - count for watched_object, count in zip(watched, counts, strict=True)]
    assert max(map(abs, grown)) < 100 and sys.getallocatedblocks() - blocks < 1000


def test_layouts_leave_nothing_when_they_go() -> None:
    def make() -> None:
        layout = observation_layout(Tuple((NESTED, Sequence(Tuple((FLOATS,))))), max_length=3)
        layout.flatten((NESTED.sample(), ()))
        actions = action_layout(ACTIONS)
        actions.unpack(actions.flat_space.sample())

    for _ in range(5):
        make()
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(50):
        make()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 500


def test_layouts_travel_between_processes() -> None:
    layout, actions = observation_layout(NESTED), action_layout(ACTIONS)
    x, row = sample(NESTED, np.random.default_rng(0)), actions.flat_space.sample()
    for travel in (lambda it: pickle.loads(pickle.dumps(it)), lambda it: cloudpickle.loads(cloudpickle.dumps(it))):
        assert travel(layout).packer.pack(x, dirty_row(layout))
        assert reads(travel(actions), row) == reads(actions, row)
