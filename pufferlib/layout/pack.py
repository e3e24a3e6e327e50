"""Writers, which copy the leaves of samples into the views of rows."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from pufferlib.errors import SpaceError, argument_error
from pufferlib.layout.leaves import (
    Choice,
    Fixed,
    Graph,
    Items,
    Node,
    Path,
    Record,
    Text,
    name_of,
    value_range,
    where,
)
from pufferlib.util.annotations import Array

__all__ = ["PackedLeaf", "Views", "Writer", "compile_writer", "describe", "fills", "packing_plan", "parts"]

Views = Sequence[Array]

UTF32 = f"utf-32-{sys.byteorder[0]}e"
ZERO = np.zeros((), np.uint8)  # filling from an array takes half the time of filling from an int


class Writer:
    """A careful writer, which writes every sample that fits its space, and raises errors that explain each misfit.

    ``compile_writer`` makes a fast writer. strict: whether to also check that values are in their space. lenient:
    whether two kinds of misfit cause only a warning instead of a SpaceError: storable values outside a Box or Text, and
    shapes that differ only by axes of length 1. Observations need this, because rounding errors often move them out of
    their bounds.
    """

    def __init__(self, tree: Node, warned: set[str], *, strict: bool = False, lenient: bool = True) -> None:
        self.tree = tree
        self.warned = warned  # the kinds of past warnings; one set for all writers of a layout
        self.strict = strict
        self.lenient = lenient
        self.whose = ""  # the prefix of warnings

    def __call__(self, sample: Any, views: Views) -> None:
        """Write a sample into the views of its leaves, and zeros into the remaining views.

        Raises SpaceError if the sample does not fit.
        """
        for padding in views[self.tree.num_leaves :]:
            padding[...] = ZERO
        self.write(self.tree, sample, views[: self.tree.num_leaves])

    def write(self, node: Node, sample: Any, views: Views) -> None:
        """Write a node's sample into the views of the node's leaves, setting all of their elements."""
        if isinstance(node, Fixed):
            views[0][...] = self.fit(node, sample)
        elif isinstance(node, Record):
            for (_, child, _), part, child_views in zip(
                node.parts, split(node, sample), parts(node, views), strict=True
            ):
                self.write(child, part, child_views)
        elif isinstance(node, Text):
            self.write_text(node, sample, views)
        elif isinstance(node, Items):
            self.write_items(node, sample, views)
        elif isinstance(node, Graph):
            self.write_graph(node, sample, views)
        elif isinstance(node, Choice):
            self.write_choice(node, sample, views)
        else:
            self.write(node.inner, node.codec.pack(node.space, sample), views)

    def fit(self, leaf: Fixed, sample: Any, count: int | None = None) -> Array:
        """Return a sample as an array of the leaf's dtype and shape, or ``count`` stacked samples as (count, *shape).

        The dtype is cast if NumPy's same_kind rule allows it, or if the numbers are Python integers; integers must fit
        the new dtype. If lenient, a shape that differs only by axes of length 1 is reshaped. Raises SpaceError for all
        other samples. If strict, values outside the space raise SpaceError or cause a warning, as the class describes.
        """
        shape = leaf.shape if count is None else (count, *leaf.shape)
        try:
            array = np.asarray(sample)
        except Exception as error:  # ragged lists, tensors on another device, any error of __array__
            raise _mismatch(leaf, shape, sample) from error
        plain = not hasattr(sample, "dtype")  # Python numbers have no dtype
        if plain and array.size == 0 and 0 in shape and len(array) == shape[0]:
            array = np.zeros(shape, leaf.dtype)
        actual = array.shape
        if actual != shape:
            if not (self.lenient and fills(actual, leaf.shape, count)):
                raise _mismatch(leaf, shape, sample)
            array = array.reshape(shape)
        if np.dtype(array.dtype.type) != leaf.dtype:
            array = self.cast(leaf, sample, array, plain)
        if actual != shape:
            self.warn(
                "shape", f"{where(leaf.path)}: shape {actual} is reshaped to {shape}, the space's shape, at every step"
            )
        if self.strict and array.size:
            self.check_range(leaf, array)
        return array

    def cast(self, leaf: Fixed, sample: Any, array: Array, plain: bool) -> Array:
        """Cast an array to the leaf's dtype, with a warning unless the leaf is Discrete or the sample is plain.

        sample: the original of the array. plain: whether the sample has no dtype, like Python numbers. Raises
        SpaceError if the array's kind of number cannot be cast, or an integer does not fit the leaf's dtype.
        """
        integers = array.dtype.kind in "biu" and leaf.dtype.kind in "biu"
        if not (np.can_cast(array.dtype, leaf.dtype, "same_kind") or (plain and integers)):
            raise _mismatch(leaf, array.shape, sample)
        with np.errstate(over="ignore"):
            cast = array.astype(leaf.dtype)
        if integers and (cast != array).any():
            raise SpaceError(f"{where(leaf.path)}: {describe(sample)} has values that {leaf.dtype} cannot hold")
        if not plain and not isinstance(leaf.space, spaces.Discrete):
            self.warn(
                "cast", f"{where(leaf.path)}: {array.dtype} is cast to {leaf.dtype}, the space's dtype, at every step"
            )
        return cast

    def check_range(self, leaf: Fixed, array: Array) -> None:
        low, high = value_range(leaf)
        inside = (array >= low) & (array <= high)
        if inside.all():
            return
        first = array[~inside].flat[0]
        message = f"{where(leaf.path)}: the value {first} is not in {leaf.space}"
        if isinstance(leaf.space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            raise SpaceError(message)
        self.stray(message)

    def stray(self, message: str) -> None:
        """Report a value that can be stored but is outside its space: warn if lenient, otherwise raise SpaceError."""
        if not self.lenient:
            raise SpaceError(message)
        self.warn("range", f"{message}; it is passed on as it is")

    def warn(self, kind: str, message: str) -> None:
        """Issue a warning, unless one of this kind has already been issued for the layout."""
        if kind not in self.warned:
            self.warned.add(kind)
            warnings.warn(f"{self.whose}{message}", stacklevel=2)

    def write_text(self, node: Text, sample: Any, views: Views) -> None:
        data, length = views
        if not isinstance(sample, str):
            raise SpaceError(f"{where(node.path)}: expected a str, got {describe(sample)}")
        size = len(sample)
        _require_room(node.path, "a text", size, "characters", len(data), "max_length", node.path)
        try:
            if node.alphabet is not None:
                codes: Any = [node.alphabet.index(character) for character in sample]
            elif data.itemsize == 1:
                codes = np.frombuffer(sample.encode("latin-1"), np.uint8)
            else:
                codes = np.frombuffer(sample.encode(UTF32, "surrogatepass"), np.int32)
        except ValueError as error:
            raise SpaceError(f"{where(node.path)}: {describe(sample)} has characters outside of its charset") from error
        if self.strict and isinstance(node.space, spaces.Text) and not node.space.contains(sample):
            self.stray(f"{where(node.path)}: {describe(sample)} is not in {node.space}")
        data[:size] = codes
        data[size:] = 0
        length[...] = size

    def write_items(self, node: Items, sample: Any, views: Views) -> None:
        data, length = views[:-1], views[-1]
        if node.stacked:
            count = stack_length(node.element, sample)
        else:
            sample = _elements(node.path, sample)
            count = len(sample)
        _require_room(node.path, "a sequence", count, "elements", node.max_length, node.bound, node.owner)
        if node.stacked:
            self.write_stack(node.element, sample, data, count)
        elif not self.write_alike(node.element, sample, data, count):
            for i, part in enumerate(sample):
                self.write(node.element, part, [view[i, ...] for view in data])
        for view in data:
            view[count:] = 0
        length[...] = count

    def write_alike(self, element: Node, sample: Any, data: Views, count: int) -> bool:
        """Write all elements at once if each is an array of exactly the element's shape and dtype.

        Returns whether they were written. A strict writer never writes elements at once, because it has to check each
        of them.
        """
        if not isinstance(element, Fixed) or self.strict or not count:
            return False
        shape, dtype = element.shape, element.dtype
        if any(type(part) is not np.ndarray or part.shape != shape or part.dtype != dtype for part in sample):
            return False
        data[0][:count] = sample
        return True

    def write_stack(self, node: Node, sample: Any, views: Views, count: int) -> None:
        """Write ``count`` elements of a node, batched as in Gymnasium."""
        if isinstance(node, Fixed):
            views[0][:count] = self.fit(node, sample, count)
        elif isinstance(node, Record):
            for (_, child, _), part, child_views in zip(
                node.parts, split(node, sample), parts(node, views), strict=True
            ):
                self.write_stack(child, part, child_views, count)
        else:
            sample = _elements(node.path, sample)
            if len(sample) != count:
                raise SpaceError(f"{where(node.path)}: expected {count} elements, got {len(sample)}")
            for i, part in enumerate(sample):
                self.write(node, part, [view[i, ...] for view in views])

    def write_graph(self, node: Graph, sample: Any, views: Views) -> None:
        try:
            nodes, edges, links = sample
        except (TypeError, ValueError) as error:
            raise SpaceError(f"{where(node.path)}: expected a GraphInstance, got {describe(sample)}") from error
        if (edges is None) != (links is None):
            raise SpaceError(f"{where(node.path)}: edges and edge_links must both be arrays or both be None")
        self.write_items(node.nodes, nodes, views[: node.nodes.num_leaves])
        if node.edges is None:
            if edges is not None:
                raise SpaceError(f"{where(node.path)}: the graph has edges, but its space has no edge_space")
            return
        views = views[node.nodes.num_leaves :]
        if edges is None:
            for view in views:
                view[...] = 0
            views[-2][...] = -1
            return
        self.write_items(node.edges, edges, views[:-1])
        count = int(views[-2])
        array = np.asarray(links)
        # Any integers pass, as in Gymnasium; most environments use int64.
        if array.shape != (count, 2) or array.dtype.kind not in "iu":
            raise SpaceError(f"{where(node.links.path)}: expected int32 of shape {(count, 2)}, got {describe(links)}")
        views[-1][:count] = self.fit(node.links, array.tolist(), count)
        views[-1][count:] = 0

    def write_choice(self, node: Choice, sample: Any, views: Views) -> None:
        options = node.options.children
        try:
            index, value = sample
            chosen = range(len(options))[operator.index(index)]
            if index < 0:
                raise IndexError(index)
        except (TypeError, ValueError, IndexError) as error:
            raise SpaceError(
                f"{where(node.path)}: expected (index, value), index 0 to {len(options) - 1}, got {describe(sample)}"
            ) from error
        views[0][...] = chosen
        for i, option_views in enumerate(parts(node.options, views[1:])):
            if i == chosen:
                self.write(options[i], value, option_views)
            else:
                for view in option_views:
                    view[...] = 0


def fills(actual: tuple[int, ...], shape: tuple[int, ...], count: int | None = None) -> bool:
    """Return whether two shapes are equal or differ only by axes of length 1.

    count: if given, ``actual`` must have an additional first axis, of this length.
    """
    if count is not None:
        if actual[:1] != (count,):
            return False
        actual = actual[1:]
    return [size for size in actual if size != 1] == [size for size in shape if size != 1]


def _mismatch(leaf: Fixed, shape: tuple[int, ...], sample: Any) -> SpaceError:
    return SpaceError(f"{where(leaf.path)}: expected {leaf.dtype} of shape {shape}, got {describe(sample)}")


def _elements(path: Path, sample: Any) -> Any:
    elements = _true_length(sample) if isinstance(sample, (tuple, list, np.ndarray)) else None
    if elements is None or getattr(elements, "shape", None) == ():
        raise SpaceError(f"{where(path)}: expected a tuple of elements, got {describe(sample)}")
    return elements


def _true_length(sample: Sequence[Any] | Array) -> Sequence[Any] | Array:
    """Return the sample as a plain tuple, list or array, since a subclass may report the wrong length."""
    if type(sample) in (tuple, list, np.ndarray):
        return sample
    return np.asarray(sample) if isinstance(sample, np.ndarray) else tuple(iter(sample))


def _require_room(path: Path, what: str, size: int, units: str, most: int, bound: str, owner: Path) -> None:
    if size > most:
        alone = f"{{{name_of(owner)!r}: {{{bound!r}: {size}}}}}"
        raise argument_error(
            SpaceError,
            lambda written, within: (
                f"{where(path)}: {what} of {size} {units} is longer than {bound}={most}; "
                f"pass a larger {bound}{within}, or for it alone {written(bounds=alone)}"
            ),
        )


def describe(sample: Any) -> str:
    """Return a brief description of a sample, for error messages."""
    try:
        if hasattr(sample, "dtype") and hasattr(sample, "shape"):
            return f"{sample.dtype} of shape {tuple(sample.shape)}"
        text = repr(sample)
    except Exception:  # from its repr; errors still need a text
        return f"{type(sample).__name__} that cannot be shown"
    return f"{type(sample).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def split(node: Record, sample: Any) -> Sequence[Any] | Array:
    """Return the parts of a Dict's or Tuple's sample in the order of the node's children.

    Raises SpaceError if the sample is of the wrong type, or if parts are missing or extra.
    """
    path, keys = node.path, node.keys
    if keys is None:
        elements = _true_length(sample) if isinstance(sample, (tuple, list, np.ndarray)) else None
        if elements is None or getattr(elements, "shape", None) == ():
            raise SpaceError(f"{where(path)}: expected a tuple of {len(node.children)}, got {describe(sample)}")
        if len(elements) != len(node.children):
            raise SpaceError(f"{where(path)}: expected a tuple of {len(node.children)}, got one of {len(elements)}")
        return elements
    if not isinstance(sample, Mapping):
        raise SpaceError(f"{where(path)}: expected a dict with keys {list(keys)}, got {describe(sample)}")
    for key in keys:
        if key not in sample:
            raise SpaceError(f"{where((*path, key))}: missing; the dict has keys {list(sample)}")
    for key in sample:
        if key not in keys:
            raise SpaceError(f"{where((*path, key))}: not in the space, whose keys are {list(keys)}")
    try:
        return [sample[key] for key in keys]
    except KeyError as error:  # __contains__ and __getitem__ disagree
        raise SpaceError(f"{where(path)}: the dict contains all keys, but raised {error!r}") from error


def stack_length(node: Node, sample: Any) -> int:
    """Return the number of elements in a batched sample of a node. Raises SpaceError if the sample has no length."""
    if isinstance(node, Record):
        filled = (pair for pair in zip(node.children, split(node, sample), strict=True) if pair[0].num_leaves)
        return next((stack_length(child, part) for child, part in filled), 0)
    if not isinstance(node, Fixed):
        return len(_elements(node.path, sample))
    try:
        return len(sample)
    except (TypeError, ValueError) as error:  # a negative length raises ValueError
        raise _mismatch(node, (0, *node.shape), sample) from error


def parts(node: Record, views: Sequence[Any]) -> list[Sequence[Any]]:
    """Return the views of a node's leaves, grouped by child."""
    result, start = [], 0
    for child in node.children:
        result.append(views[start : start + child.num_leaves])
        start += child.num_leaves
    return result


def compile_writer(careful: Writer, num_clears: int) -> Callable[[Any, Views], None]:
    """Return a tree's fast writer, ``pack_into(sample, views)``: straight-line code, equivalent to the careful writer.

    Walking the tree would take six times as long (a Dict of 12 leaves: 15 µs against 2.4 µs). All checks come first
    (all shapes in one comparison, all dtypes in another); a sample that fails one of them goes to the careful writer.
    num_clears: the number of views that follow those of the leaves and are zeroed before the leaves are written.
    """
    scope: dict[str, Any] = {
        "careful": careful,
        "write": careful.write,
        "ZERO": ZERO,
        "INTS": (int, np.int64, np.int32),
    }
    checks: list[str] = []
    writes: list[str] = [f"z{i}[...] = ZERO" for i in range(num_clears)]
    arrays: list[tuple[str, Fixed]] = []
    ints: list[str] = []
    num_views = 0

    def constant(value: Any) -> str:
        name = f"k{len(scope)}"
        scope[name] = value
        return name

    def emit(node: Node, name: str) -> None:
        """Emit the code that writes a node's sample from the variable ``name``."""
        nonlocal num_views
        if isinstance(node, Record):
            names = [f"{name}_{i}" for i in range(len(node.children))]
            if node.keys is None:
                checks.append(f"if type({name}) is not tuple and type({name}) is not list: raise TypeError")
                checks.append(f"[{', '.join(names)}] = {name}")
            else:
                checks.append(f"if len({name}) != {len(names)}: raise TypeError")
                for part, key in zip(names, node.keys, strict=True):
                    checks.append(f"{part} = {name}[{repr(key) if type(key) is str else constant(key)}]")
            for part, child in zip(names, node.children, strict=True):
                emit(child, part)
            return
        views = [f"v{num_views + i}" for i in range(node.num_leaves)]
        num_views += node.num_leaves
        if not isinstance(node, Fixed):
            writes.append(f"write({constant(node)}, {name}, [{', '.join(views)}])")
            return
        writes.append(f"{views[0]}[...] = {name}")
        if _is_int(node):
            ints.append(name)
        else:
            arrays.append((name, node))

    emit(careful.tree, "x")
    if arrays:
        shapes, dtypes = ("".join(f"{name}.{what}, " for name, _ in arrays) for what in ("shape", "dtype"))
        scope["SHAPES"] = tuple(leaf.shape for _, leaf in arrays)
        scope["DTYPES"] = tuple(leaf.dtype for _, leaf in arrays)
        checks.append(f"if ({shapes}) != SHAPES or ({dtypes}) != DTYPES: raise TypeError")
    if ints:
        checks.append("if " + " or ".join(f"type({name}) not in INTS" for name in ints) + ": raise TypeError")
    targets = [*(f"v{i}" for i in range(num_views)), *(f"z{i}" for i in range(num_clears))]
    lines = [f"[{', '.join(targets)}] = views", *checks, *writes]
    source = (
        "def pack_into(x, views):\n"
        "    try:\n"
        + "".join(f"        {line}\n" for line in lines)
        + "    except (TypeError, ValueError, LookupError, AttributeError, OverflowError):\n"
        "        careful(x, views)\n"
    )
    exec(compile(source, f"<pack_into of {num_views} leaves>", "exec"), scope)
    pack_into: Callable[[Any, Views], None] = scope["pack_into"]
    return pack_into


class PackedLeaf(NamedTuple):
    """A leaf's shape, dtype and byte offset in a row."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


def packing_plan(careful: Writer, leaves: Sequence[PackedLeaf]) -> tuple[Any, ...]:
    """Return a tree's plan for ``_native.pack.Packer``, as nested tuples. leaves: the tree's leaves, in order.

    Nodes other than Dicts, Tuples, texts, fixed leaves and sequences of fixed leaves are written by the careful writer
    into arrays, which the packer then copies.
    """
    remaining = iter(leaves)

    def leaf_plan(leaf: Fixed, offset: int) -> tuple[Any, ...]:
        if _is_int(leaf):
            return "int", offset
        warned = None if isinstance(leaf.space, spaces.Discrete) else careful.warned  # as in Writer.cast
        return "array", offset, leaf.shape, leaf.dtype, warned

    def plan(node: Node) -> tuple[Any, ...]:
        if isinstance(node, Record):
            children = tuple([plan(child) for child in node.children])
            return ("tuple", children) if node.keys is None else ("dict", node.keys, children)
        packed = [next(remaining) for _ in range(node.num_leaves)]
        if isinstance(node, Fixed):
            return leaf_plan(node, packed[0].offset)
        if isinstance(node, Text):
            data, length = packed
            return "text", data.offset, data.dtype.itemsize, data.shape[0], length.offset
        if isinstance(node, Items) and isinstance(node.element, Fixed):
            element, (data, length) = node.element, packed
            if node.stacked:
                return "stack", data.offset, element.shape, element.dtype, node.max_length, length.offset
            return "each", data.offset, leaf_plan(element, 0), node.max_length, length.offset
        arrays = [np.zeros(leaf.shape, leaf.dtype) for leaf in packed]
        return "python", lambda sample: careful.write(node, sample, arrays), arrays, [leaf.offset for leaf in packed]

    return plan(careful.tree)


def _is_int(leaf: Fixed) -> bool:
    """Return whether a leaf is a Discrete of int64.

    The samples of such a leaf are integers (NumPy's or Python's) rather than arrays.
    """
    return isinstance(leaf.space, spaces.Discrete) and leaf.dtype == np.int64
