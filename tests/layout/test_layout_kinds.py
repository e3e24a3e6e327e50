"""Which spaces layouts know: those with bounds, and those that they are taught."""

from __future__ import annotations

import pickle
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
    Sequence,
    Text,
    Tuple,
)
from spaces import same

from pufferlib.errors import SpaceError
from pufferlib.layout import Layout, action_layout, observation_layout
from pufferlib.layout.leaves import registry

pytestmark = pytest.mark.beside

FLOATS = Box(-1, 1, (3,))
GRAPH = Graph(FLOATS, Discrete(3))


@pytest.mark.parametrize(
    ("space", "given_bounds", "message"),
    [
        (Sequence(FLOATS), {}, "the observation: nothing bounds this Sequence; pass max_length=…"),
        (Dict({"k": Sequence(FLOATS)}), {}, "or for it alone bounds={'k': {'max_length': …}}"),
        (Dict({"k": Sequence(FLOATS)}), {"bounds": {"j": {"max_length": 3}}}, "(which has ['j'] only)"),
        (Sequence(Sequence(FLOATS)), {"bounds": {"": {"max_length": 3}}}, "data: nothing bounds this Sequence"),
        (Dict({"k": GRAPH}), {"max_edges": 3}, "k: nothing bounds this Graph; pass max_nodes=…"),
        (Dict({"k": GRAPH}), {"max_nodes": 3}, "k: nothing bounds this Graph; pass max_edges=…"),
        (FLOATS, {"max_length": -1}, "max_length=-1; expected a whole number, 0 or more"),
        (FLOATS, {"max_nodes": 2.5}, "max_nodes=2.5; expected a whole number, 0 or more"),
        (FLOATS, {"bounds": {"k": {"max_len": 3}}}, "bounds['k']: 'max_len' is not a bound; the bounds are max_length"),
        (FLOATS, {"bounds": {"k": 3}}, "bounds['k']: expected a dict such as {'max_length': 5}, got 3"),
        (FLOATS, {"bounds": 5}, "bounds=5; expected a dict such as {'a.b': {'max_length': 5}}"),
        (Box(-1, 1, (3,), np.longdouble), {}, "the observation: longdouble differs from machine to machine"),
        (Dict({"k": Box(-1, 1, (3,), np.longdouble)}), {}, "k: longdouble differs from machine to machine"),
    ],
)
def test_spaces_that_cannot_be_stored_are_named(space: Any, given_bounds: Any, message: str) -> None:
    for make in (observation_layout, action_layout):
        with pytest.raises(SpaceError) as caught:
            make(space, **given_bounds)
        expected = message if make is observation_layout else message.replace("the observation", "the action")
        assert expected in str(caught.value)


def test_bounds_by_path_override_the_others() -> None:
    space = Dict({"a": Sequence(Discrete(2)), "b.c": Sequence(Discrete(2)), "d": Text(9), "e": Dict({"f": Text(9)})})
    bounds = {"b.c": {"max_length": 5}, ("d",): {"max_length": 6}, "e.f": {"max_length": 7}}
    shapes = {leaf.name: leaf.shape for leaf in observation_layout(space, max_length=3, bounds=bounds).leaves}
    assert shapes["a.data"] == (3,) and shapes["'b.c'.data"] == (5,)
    assert shapes["d.data"] == (6,) and shapes["e.f.data"] == (7,)
    assert observation_layout(Text(9), max_length=3).leaves[0].shape == (9,)  # has a bound of its own


class Words(Space[Any]):
    """Tuples of words: nothing that Gymnasium knows."""

    def __init__(self, num_words: int) -> None:
        super().__init__()
        self.num_words = num_words

    def sample(self, *_: Any, **__: Any) -> Any:
        return ("ab",) * self.num_words


class FewWords(Words):
    pass


class Spoken(Space[str]):
    """Text without charset or bound, as MiniGrid's missions are."""

    def __init__(self) -> None:
        super().__init__(dtype=str)


@pytest.fixture
def known_words() -> Any:
    before = dict(registry)
    Layout.register(
        Words,
        lambda space: Tuple((Text(space.num_words * 3, charset="ab "), Discrete(9))),
        lambda _, words: (" ".join(words), len(words)),
        lambda _, stored: tuple(stored[0].split(" ")),
    )
    yield
    registry.clear()
    registry.update(before)


def test_a_space_that_nobody_knows_says_how_to_teach_it() -> None:
    for make in (observation_layout, action_layout):
        with pytest.raises(SpaceError, match=r"k: a Words has no layout; register one with .*register\(Words, leaves"):
            make(Dict({"k": Words(2)}))


@pytest.mark.parametrize("kind", [Words, FewWords])
def test_registered_spaces_are_stored_as_another(kind: Any, known_words: None) -> None:
    space = Dict({"k": kind(2), "l": Sequence(kind(1)), "m": Discrete(3)})
    x = {"k": ("ab", "ba"), "l": (("a",), ("b",)), "m": np.int64(1)}
    layout, actions = observation_layout(space, max_length=3), action_layout(space, max_length=3)
    assert same(layout.decode(layout.flatten(x)), x)
    assert same(actions.unpack(actions.flatten(x)), {**x, "m": 1})
    assert layout.unflatten(layout.flatten(x))["k"][1] == 2
    with pytest.raises(SpaceError, match=r"k\.0: a text of 8 characters is longer than max_length=6"):
        layout.flatten({**x, "k": ("abab", "abb")})


def test_what_was_registered_travels_with_the_layout(known_words: None) -> None:
    layout = observation_layout(Dict({"k": Words(2)}))
    row = layout.flatten({"k": ("a", "b")})
    travelling = cloudpickle.dumps(layout)
    del registry[Words]
    there = pickle.loads(travelling)
    assert there == layout and same(there.decode(row), {"k": ("a", "b")})


def test_registering_by_name_needs_no_import() -> None:
    name = f"{Words.__module__}.Words"
    Layout.register(name, lambda _: Discrete(5), lambda _, words: len(words), lambda _, count: ("ab",) * int(count))
    try:
        layout = observation_layout(Words(2))
        assert same(layout.decode(layout.flatten(("ab", "ab"))), ("ab", "ab"))
    finally:
        del registry[name]


def test_gymnasiums_own_spaces_keep_their_layout() -> None:
    with pytest.raises(SpaceError, match=r"gymnasium.spaces.box.Box is gymnasium's own"):
        Layout.register(Box, lambda space: space, lambda _, x: x, lambda _, x: x)


@pytest.mark.parametrize("returned", [Words(1), None])
def test_leaves_must_return_a_space_of_another_kind(returned: Any, known_words: None) -> None:
    Layout.register(Words, lambda _: returned, lambda _, x: x, lambda _, x: x)
    with pytest.raises(SpaceError, match=r"k: leaves\(.*\) returned .*, expected a space of another kind"):
        observation_layout(Dict({"k": Words(2)}))


def test_text_without_a_bound_of_its_own_needs_one() -> None:
    with pytest.raises(SpaceError, match=r"k: nothing bounds this Spoken; pass max_length=…"):
        observation_layout(Dict({"k": Spoken()}))
    layout = observation_layout(Dict({"k": Spoken()}), max_length=8)
    for text in ("", "go ✓", "\x00\udc80"):
        assert layout.decode(layout.flatten({"k": text})) == {"k": text}
    with pytest.raises(SpaceError, match=r"k: an action's text needs a charset"):
        action_layout(Dict({"k": Spoken()}), max_length=8)


class Simplex(Space[Any]):
    """A space of arrays that is none of Gymnasium's."""

    def __init__(self) -> None:
        super().__init__((3,), np.float32)


def test_an_unknown_space_of_arrays_is_a_leaf() -> None:
    space = Simplex()
    assert observation_layout(space).flat_space is space and action_layout(space).flat_space is space
    layout = observation_layout(Tuple((space, FLOATS)))
    x = (np.ones(3, np.float32), np.zeros(3, np.float32))
    assert same(layout.decode(layout.flatten(x)), x) and layout.dtype == np.float32
    with pytest.raises(SpaceError, match=r"0: a Simplex has no layout"):
        action_layout(Tuple((space, FLOATS)))


def test_a_lone_observation_and_a_lone_action_are_called_so():
    for space in (Box(0, 1, (2,)), Tuple([Box(0, 1, (2,))]), Text(4), Sequence(Discrete(3))):
        for layout, name in ((observation_layout, "observation"), (action_layout, "action")):
            with pytest.raises(SpaceError, match=f"^the {name}: expected "):
                layout(space, max_length=4).check(3)
    with pytest.raises(SpaceError, match="^the action: nothing bounds this Sequence"):
        action_layout(Sequence(Discrete(3)))
    with pytest.raises(SpaceError, match="^the action: expected an integer"):
        action_layout(Discrete(3)).unpack("a")


def test_a_kind_of_ones_own_is_called_so_too():
    class CustomSpace(Space):
        """A space that is stored as another."""

    Layout.register(CustomSpace, lambda space: Discrete(3), lambda space, sample: sample, lambda space, stored: stored)
    for layout, name in ((observation_layout, "observation"), (action_layout, "action")):
        with pytest.raises(SpaceError, match=f"^the {name}: "):
            layout(CustomSpace()).check("a")
