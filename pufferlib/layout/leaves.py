"""Trees of leaves: the arrays that a nested space needs, without their offsets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from pufferlib.errors import SpaceError, argument_error
from pufferlib.util.annotations import Array

__all__ = [
    "WHOLE_ACTION",
    "Bounds",
    "Choice",
    "Codec",
    "Custom",
    "Fixed",
    "Graph",
    "Items",
    "Node",
    "Path",
    "Record",
    "Stored",
    "Text",
    "name_of",
    "register",
    "registry",
    "tree_of",
    "walk",
    "where",
]

Path = tuple[Any, ...]  # Dict keys and Tuple indices from the root down


class _WholeAction(tuple[Any, ...]):
    """The empty path of a whole action.

    Error messages recognize it by its class, because the path of a whole observation is also empty.
    """

    __slots__ = ()


WHOLE_ACTION: Path = _WholeAction()
Shape = tuple[int, ...]

OneOf: Any = getattr(spaces, "OneOf", ())  # Gymnasium 0.29 has none; isinstance(x, ()) is False


@dataclass(frozen=True)
class _Nest:
    """The base class of nodes with children."""

    path: Path

    @property
    def parts(self) -> tuple[tuple[Any, Node, Shape], ...]:
        """A tuple (key, child, dimensions) per child; this node adds the dimensions in front of the child's own."""
        raise NotImplementedError

    @cached_property
    def num_leaves(self) -> int:
        return sum(child.num_leaves for _, child, _ in self.parts)


@dataclass(frozen=True)
class Fixed:
    """A leaf: one array of a fixed shape. dtype: the space's dtype in native byte order."""

    path: Path
    space: Space[Any]
    dtype: np.dtype[Any]
    shape: Shape
    num_leaves = 1


@dataclass(frozen=True)
class Record(_Nest):
    """A Dict or, if ``keys`` is None, a Tuple. Keys are in Gymnasium's order."""

    keys: tuple[Any, ...] | None
    children: tuple[Node, ...]

    @property
    def parts(self) -> tuple[tuple[Any, Node, Shape], ...]:
        keys = range(len(self.children)) if self.keys is None else self.keys
        return tuple((key, child, ()) for key, child in zip(keys, self.children, strict=True))


@dataclass(frozen=True)
class Text(_Nest):
    """A string, stored as its length and its characters: code points or, with an alphabet, indices into it."""

    space: Space[Any] = field(compare=False)
    data: Fixed
    length: Fixed
    alphabet: str | None

    @property
    def parts(self) -> tuple[tuple[Any, Node, Shape], ...]:
        return ("data", self.data, ()), ("length", self.length, ())


@dataclass(frozen=True)
class Items(_Nest):
    """A Sequence, or the nodes or edges of a Graph: up to ``max_length`` elements of one kind, and their number.

    The number is stored as ``length``; a length of -1 stands for edges that are None.

    stacked: whether a sample is one batch of all elements, as from a Gymnasium Sequence with ``stack=True``, rather
    than a tuple of elements.
    """

    element: Node
    length: Fixed
    max_length: int
    stacked: bool
    bound: str  # the name of the argument that bounds it
    owner: Path  # the path of the space to which the argument applies

    @property
    def parts(self) -> tuple[tuple[Any, Node, Shape], ...]:
        return ("data", self.element, (self.max_length,)), ("length", self.length, ())


@dataclass(frozen=True)
class Graph(_Nest):
    """A graph's nodes, its edges, and the pair of nodes that each edge links.

    clamp: whether links to missing nodes are read as links to the last node, and a graph without nodes as one without
    edges.
    """

    nodes: Items
    edges: Items | None
    links: Fixed
    clamp: bool

    @property
    def parts(self) -> tuple[tuple[Any, Node, Shape], ...]:
        if self.edges is None:
            return (("nodes", self.nodes, ()),)
        links = ("edge_links", self.links, (self.edges.max_length,))
        return ("nodes", self.nodes, ()), ("edges", self.edges, ()), links


@dataclass(frozen=True)
class Choice(_Nest):
    """One of several options: its index, and storage for every option, zero except for the chosen one."""

    index: Fixed
    options: Record

    @property
    def parts(self) -> tuple[tuple[Any, Node, Shape], ...]:
        return ("index", self.index, ()), ("options", self.options, ())


class Codec(NamedTuple):
    """The functions passed to ``Layout.register`` for a class of spaces."""

    leaves: Callable[[Any], Space[Any]]
    pack: Callable[[Any, Any], Any]
    unpack: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Custom(_Nest):
    """A sample of a registered class of spaces, stored as a sample of another space."""

    space: Space[Any] = field(compare=False)
    kind: type | str
    codec: Codec = field(compare=False)
    inner: Node

    @property
    def parts(self) -> tuple[tuple[Any, Node, Shape], ...]:
        return ((None, self.inner, ()),)


Node = Fixed | Record | Text | Items | Graph | Choice | Custom

registry: dict[type | str, Codec] = {}


def register(
    space_type: type | str,
    leaves: Callable[[Any], Space[Any]],
    pack: Callable[[Any, Any], Any],
    unpack: Callable[[Any, Any], Any],
) -> None:
    """Register a class of spaces; see ``Layout.register``. Raises SpaceError for Gymnasium's own classes."""
    name = space_type if isinstance(space_type, str) else f"{space_type.__module__}.{space_type.__qualname__}"
    if name.startswith("gymnasium.spaces."):
        raise SpaceError(f"{name} is gymnasium's own and already has a layout; register a subclass of it instead")
    registry[space_type] = Codec(leaves, pack, unpack)


class Bounds:
    """The bounds of variable lengths: for a whole layout and, by path, for individual spaces.

    Raises SpaceError if the name of a bound is unknown, if its value is neither None nor an integer of at least 0, or
    if the bounds, or those of a path, are not a mapping.
    """

    def __init__(
        self,
        max_length: int | None = None,
        max_nodes: int | None = None,
        max_edges: int | None = None,
        bounds: Mapping[Any, Mapping[str, int]] | None = None,
    ) -> None:
        self.everywhere = {"max_length": max_length, "max_nodes": max_nodes, "max_edges": max_edges}
        if not isinstance(bounds or {}, Mapping):
            raise SpaceError(f"bounds={bounds!r}; expected a dict such as {{'a.b': {{'max_length': 5}}}}")
        self.by_path = dict(bounds or {})
        for prefix, limits in [
            ("", self.everywhere),
            *((f"bounds[{key!r}]: ", limits) for key, limits in self.by_path.items()),
        ]:
            if not isinstance(limits, Mapping):
                raise SpaceError(f"{prefix}expected a dict such as {{'max_length': 5}}, got {limits!r}")
            for name, value in limits.items():
                if name not in self.everywhere:
                    raise SpaceError(f"{prefix}{name!r} is not a bound; the bounds are {', '.join(self.everywhere)}")
                is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
                if not ((is_integer and value >= 0) or value is None):
                    raise SpaceError(f"{prefix}{name}={value!r}; expected a whole number, 0 or more")

    def find(self, path: Path, kind: str, name: str, default: int | None = None) -> int:
        """Return the bound called ``name`` for the space at a path.

        The bound passed for this path comes first, then ``default``, then the bound passed for the whole layout. kind:
        the name of the space's class, for the error. default: the bound that the space itself defines, if any. Raises
        SpaceError if there is no bound.
        """
        for key, limits in self.by_path.items():
            if key in (path, name_of(path), ".".join(map(str, path))) and limits.get(name) is not None:
                return int(limits[name])
        value = self.everywhere[name] if default is None else default
        if value is None:
            bounded_paths = f" (which has {list(self.by_path)} only)" if self.by_path else ""
            alone = f"{{{name_of(path)!r}: {{{name!r}: …}}}}"
            raise argument_error(
                SpaceError,
                lambda written, within: (
                    f"{where(path)}: nothing bounds this {kind}; pass {written(**{name: '…'})}, "
                    f"or for it alone {written(bounds=alone)}{bounded_paths}"
                ),
            )
        return int(value)


def tree_of(space: Space[Any], bounds: Bounds, *, actions: bool, path: Path = ()) -> Node:
    """Return the tree of leaves of a space.

    actions: whether the tree is for actions. If so, text is stored as indices into its charset, and the spaces of the
    leaves contain only valid values. path: the path to the space from the root of the tree. Raises SpaceError, whose
    message contains the path, for a space that cannot be stored in rows and for a variable length without a bound.
    """

    def below(child: Any, *keys: Any) -> Node:
        return tree_of(child, bounds, actions=actions, path=(*path, *keys) if keys else path)

    for kind in type(space).__mro__:
        for key in (kind, f"{kind.__module__}.{kind.__qualname__}"):
            if key in registry:
                codec = registry[key]
                inner = codec.leaves(space)
                if type(inner) is type(space) or not isinstance(inner, Space):
                    raise SpaceError(
                        f"{where(path)}: leaves({space}) returned {inner!r}, expected a space of another kind"
                    )
                return Custom(path, space, key, codec, below(inner))
    if isinstance(space, spaces.Dict):
        return Record(path, tuple(space.spaces), tuple(below(child, key) for key, child in space.spaces.items()))
    if isinstance(space, spaces.Tuple):
        return Record(path, None, tuple(below(child, i) for i, child in enumerate(space.spaces)))
    if isinstance(space, spaces.Sequence):
        max_length = bounds.find(path, "Sequence", "max_length")
        return _items(path, below(space.feature_space, "data"), max_length, space.stack)
    if isinstance(space, spaces.Graph):
        nodes = _graph_items(path, "nodes", space.node_space, bounds, below)
        edges = None
        if space.edge_space is not None:
            edges = _graph_items(path, "edges", space.edge_space, bounds, below)
        return Graph(path, nodes, edges, _links(path, nodes.max_length, actions), actions)
    if isinstance(space, OneOf):
        options = Record((*path, "options"), None, tuple(below(s, "options", i) for i, s in enumerate(space.spaces)))
        return Choice(path, _fixed(spaces.Discrete(len(options.children)), (*path, "index")), options)
    dtype = None if getattr(space, "dtype", None) is None else np.dtype(space.dtype)
    if isinstance(space, spaces.Text) or (dtype is not None and dtype.kind == "U"):
        return _text(space, bounds, actions, path)
    is_fixed = isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
    shaped = dtype is not None and dtype.kind in "biuf" and getattr(space, "shape", None) is not None
    if is_fixed or (shaped and not (actions and path)):
        return _fixed(space, path)
    raise SpaceError(
        f"{where(path)}: a {type(space).__name__} has no layout; register one with "
        f"pufferlib.layout.Layout.register({type(space).__name__}, leaves, pack, unpack)"
    )


def _fixed(space: Any, path: Path) -> Fixed:
    dtype = np.dtype(np.dtype(space.dtype).type)  # by its type: NumPy's canonical object, in native byte order
    if dtype.char == "g":
        raise SpaceError(f"{where(path)}: longdouble differs from machine to machine; use a Box of float64")
    return Fixed(path, space, dtype, tuple(space.shape))


def _items(path: Path, element: Node, max_length: int, stacked: bool) -> Items:
    length = _fixed(spaces.Discrete(max_length + 1), (*path, "length"))
    return Items(path, element, length, max_length, stacked, "max_length", path)


def _graph_items(path: Path, what: str, space: Any, bounds: Bounds, below: Callable[..., Node]) -> Items:
    bound, least = f"max_{what}", -(what == "edges")  # -1 edges stand for None
    most = bounds.find(path, "Graph", bound)
    length = _fixed(spaces.Discrete(most + 1 - least, start=least), (*path, what, "length"))
    return Items((*path, what), below(space, what, "data"), length, most, True, bound, path)


def _links(path: Path, max_nodes: int, actions: bool) -> Fixed:
    last = max(max_nodes - 1, 0)
    # int32, like Gymnasium's samples
    pair: Any = spaces.MultiDiscrete([last + 1] * 2, np.int32) if actions else spaces.Box(0, last, (2,), np.int32)
    return _fixed(pair, (*path, "edge_links"))


def _text(space: Any, bounds: Bounds, actions: bool, path: Path) -> Text:
    charset = getattr(space, "character_set", None)
    min_length = int(getattr(space, "min_length", 0))
    max_length = bounds.find(path, type(space).__name__, "max_length", getattr(space, "max_length", None))
    data, length = (*path, "data"), (*path, "length")
    if not actions:
        # Code points rather than indices into the charset: fast to encode, and text outside the charset survives. One
        # byte each where the charset allows it; torch barely supports uint16.
        narrow = charset is not None and max(map(ord, charset), default=0) < 256
        codes: Any = spaces.Box(0, 255 if narrow else sys.maxunicode, (max_length,), np.uint8 if narrow else np.int32)
        return Text(path, space, _fixed(codes, data), _fixed(spaces.Discrete(max_length + 1), length), None)
    if not charset and (charset is None or max_length):
        raise SpaceError(f"{where(path)}: an action's text needs a charset, and {space} has none")
    if min_length > max_length:
        raise SpaceError(f"{where(path)}: max_length={max_length} is less than the min_length={min_length} of {space}")
    alphabet = "".join(sorted(charset))  # in some versions Gymnasium's order differs between processes
    codes = spaces.MultiDiscrete(np.full(max_length, max(len(alphabet), 1), np.int64))
    lengths = spaces.Discrete(max_length + 1 - min_length, start=min_length)
    return Text(path, space, _fixed(codes, data), _fixed(lengths, length), alphabet)


class Stored(NamedTuple):
    """A leaf as it is stored in a row.

    leading: the dimensions in front of the leaf's own. padded: whether some of its elements may be padding zeros.
    """

    leaf: Fixed
    leading: Shape
    padded: bool

    @property
    def shape(self) -> Shape:
        return self.leading + self.leaf.shape

    def value_range(self) -> tuple[Array, Array]:
        """Return the lowest and the highest value of each element, in the leaf's dtype and the stored shape.

        The range includes 0 if elements may be padding.
        """
        low, high = value_range(self.leaf)
        if self.padded:
            zero = low.dtype.type(0)
            low, high = np.minimum(low, zero), np.maximum(high, zero)
        return np.broadcast_to(low, self.shape), np.broadcast_to(high, self.shape)


def walk(node: Node, leading: Shape = (), padded: bool = False) -> Iterator[Stored]:
    """Yield each leaf of a tree as a ``Stored``, in storage order."""
    if isinstance(node, Fixed):
        yield Stored(node, leading, padded)
        return
    padded = padded or isinstance(node, (Items, Choice))
    for _, child, added in node.parts:
        yield from walk(child, leading + added, padded or bool(added))


def value_range(leaf: Fixed) -> tuple[Array, Array]:
    """Return the lowest and the highest value of each element, in the leaf's dtype and shape."""
    space: Any = leaf.space
    low: Any = 0
    high: Any = 1
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, spaces.Discrete):
        low = int(space.start)
        high = low + int(space.n) - 1
    elif isinstance(space, spaces.MultiDiscrete):
        low = getattr(space, "start", np.zeros_like(space.nvec))
        high = low + (space.nvec - 1)
    elif not isinstance(space, spaces.MultiBinary):
        if leaf.dtype.kind == "f":
            low, high = -np.inf, np.inf
        elif leaf.dtype.kind != "b":
            low, high = np.iinfo(leaf.dtype).min, np.iinfo(leaf.dtype).max
    return (
        np.broadcast_to(np.asarray(low, leaf.dtype), leaf.shape),
        np.broadcast_to(np.asarray(high, leaf.dtype), leaf.shape),
    )


def name_of(path: Path) -> str:
    """Return a path as users write it, such as ``a.b.0``; ambiguous keys are quoted."""
    return ".".join(
        key if isinstance(key, str) and key and "." not in key and not key.isdigit() else repr(key) for key in path
    )


def where(path: Path) -> str:
    """Return the name of the part at a path, or of the whole observation or action, for error messages."""
    return name_of(path) or ("the action" if isinstance(path, _WholeAction) else "the observation")
