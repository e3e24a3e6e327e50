"""Conversions of rows to views of their leaves, of views to samples, and of flat actions to environments' actions."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from pufferlib.errors import SpaceError
from pufferlib.layout.leaves import Choice, Fixed, Graph, Items, Node, Path, Record, Stored, Text, where
from pufferlib.layout.pack import UTF32, describe, parts
from pufferlib.util.annotations import Array

__all__ = [
    "ActionPart",
    "Cut",
    "compile_unpack",
    "lone_plan",
    "nest",
    "read",
    "require",
    "sampled",
    "slices",
    "unpacking_plan",
    "whole_number",
]

Finish = Callable[[Fixed, Array], Any]


def read(node: Node, views: Sequence[Any], finish: Finish) -> Any:
    """Return a copy of the sample that the views of a node's leaves hold.

    finish: a function of (leaf, view) that converts a view of one value, or of a batch of values, to the type of the
    leaf's samples. Raises SpaceError for a stored length, index or character out of range.
    """
    if isinstance(node, Fixed):
        return finish(node, views[0])
    if isinstance(node, Record):
        values = [
            read(child, child_views, finish)
            for child, child_views in zip(node.children, parts(node, views), strict=True)
        ]
        return tuple(values) if node.keys is None else dict(zip(node.keys, values, strict=True))
    if isinstance(node, Text):
        codes = views[0][: _within(node.path, "length", views[1], len(views[0]))]
        if node.alphabet is not None:
            last = len(node.alphabet) - 1
            return "".join(node.alphabet[_within(node.path, "character", code, last)] for code in codes)
        if codes.itemsize == 1:
            return codes.tobytes().decode("latin-1")
        return codes.tobytes().decode(UTF32, "surrogatepass")
    if isinstance(node, Items):
        count = _within(node.path, "length", views[-1], node.max_length)
        if node.stacked:
            return _read_stack(node.element, views[:-1], count, finish)
        return _read_each(node.element, views[:-1], count, finish)
    if isinstance(node, Graph):
        return _read_graph(node, views, finish)
    if isinstance(node, Choice):
        index = _within(node.path, "index", views[0], len(node.options.children) - 1)
        option_views = parts(node.options, views[1:])[index]
        return np.int64(index), read(node.options.children[index], option_views, finish)
    return node.codec.unpack(node.space, read(node.inner, views, finish))


def _within(path: Path, what: str, view: Any, most: int) -> int:
    """Return a length, index or character code from a row as an int. Raises SpaceError unless it is from 0 to most."""
    number = int(view)
    if not 0 <= number <= most:
        raise SpaceError(f"{where(path)}: {what} {number} is not one of 0 to {most}")
    return number


def _read_each(node: Node, views: Sequence[Any], count: int, finish: Finish) -> tuple[Any, ...]:
    return tuple(read(node, [view[i, ...] for view in views], finish) for i in range(count))


def _read_stack(node: Node, views: Sequence[Any], count: int, finish: Finish) -> Any:
    """Read ``count`` samples of a node, batched as in Gymnasium."""
    if isinstance(node, Fixed):
        return finish(node, views[0][:count])
    if isinstance(node, Record):
        values = [
            _read_stack(child, child_views, count, finish)
            for child, child_views in zip(node.children, parts(node, views), strict=True)
        ]
        return tuple(values) if node.keys is None else dict(zip(node.keys, values, strict=True))
    return _read_each(node, views, count, finish)


def _read_graph(node: Graph, views: Sequence[Any], finish: Finish) -> Any:
    num_nodes = int(views[node.nodes.num_leaves - 1])
    nodes = read(node.nodes, views[: node.nodes.num_leaves], finish)
    num_edges = -1 if node.edges is None else int(views[-2])
    if num_edges < 0 or (node.clamp and not num_nodes):
        return spaces.GraphInstance(nodes, None, None)
    assert node.edges is not None
    edges = read(node.edges, views[node.nodes.num_leaves : -1], finish)
    links = finish(node.links, views[-1][:num_edges])
    if node.clamp:
        links = np.minimum(links, links.dtype.type(num_nodes - 1))
    return spaces.GraphInstance(nodes, edges, links)


def nest(node: Node, views: Sequence[Any]) -> Any:
    """Return the views of a node's leaves, nested like the space; variable-length parts stay padded."""
    if isinstance(node, Fixed):
        return views[0]
    values, start = {}, 0
    for key, child, _ in node.parts:
        values[key] = nest(child, views[start : start + child.num_leaves])
        start += child.num_leaves
    if None in values and not isinstance(node, Record):
        return values[None]
    return tuple(values.values()) if isinstance(node, Record) and node.keys is None else values


class Cut(NamedTuple):
    """A leaf's path, dtype and shape, and its position in a row, counted in elements of the row."""

    path: Path
    start: int
    stop: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def slices(rows: Any, cuts: Sequence[Cut], mixed: bool) -> list[Any]:
    """Return a view of each leaf in rows (NumPy or torch). mixed: whether rows are bytes with leaves of several dtypes.

    Raises SpaceError if mixed rows are not bytes, or if a view is not possible.
    """
    torch = sys.modules.get("torch")  # a caller with a tensor has imported it
    tensor = torch is not None and isinstance(rows, torch.Tensor)
    if mixed and str(rows.dtype) not in ("uint8", "torch.uint8"):
        raise SpaceError(f"expected rows of uint8, the bytes of mixed leaves, got {describe(rows)}; cast the leaves")
    leading = tuple(rows.shape[:-1])
    views = []
    for cut in cuts:
        part = rows[..., cut.start : cut.stop]
        if mixed and cut.dtype != np.uint8:
            dtype = getattr(torch, cut.dtype.name, None) if tensor else cut.dtype
            if dtype is None:
                raise SpaceError(f"{where(cut.path)}: this version of torch has no {cut.dtype}; unflatten in NumPy")
            try:
                # torch cannot view a row without bytes, whose strides NumPy has set to 0.
                empty = tensor and cut.start == cut.stop
                part = part.new_empty(part.shape, dtype=dtype) if empty else part.view(dtype)
            except (ValueError, RuntimeError) as error:
                raise SpaceError(
                    f"{where(cut.path)}: no view of {describe(rows)} as {cut.dtype}, because rows are not contiguous "
                    f"or not aligned in memory; copy them first"
                ) from error
        views.append(part.reshape((*leading, *cut.shape)))  # splitting the last dimension never copies
    return views


def sampled(leaf: Fixed, view: Any) -> Any:
    """Return a copy of a leaf's value, or of a batch of values, with the type of its space's samples."""
    array = np.array(view, dtype=leaf.space.dtype)
    return array[()] if isinstance(leaf.space, spaces.Discrete) and array.ndim == 0 else array


def acted(leaf: Fixed, view: Any) -> Any:
    """Return a copy like ``sampled``, except that a single Discrete value becomes the int that environments expect."""
    return int(view) if isinstance(leaf.space, spaces.Discrete) and view.ndim == 0 else sampled(leaf, view)


class ActionPart:
    """A leaf of a flat action: its slice of a component, and the conversion back to the leaf's dtype.

    Raises SpaceError for an integer Box with bounds beyond ±2**24, where float32 cannot hold all integers.
    """

    where: slice

    def __init__(self, stored: Stored) -> None:
        self.leaf = stored.leaf
        self.shape = stored.shape
        self.is_box = isinstance(stored.leaf.space, spaces.Box)
        self.low, self.high = low, high = stored._replace(padded=False).value_range()
        with np.errstate(over="ignore"):  # bounds beyond float32 become infinite: no bounds
            self.near_low, self.near_high = (bound.astype(np.float32) for bound in (low, high))
        self.is_integer = self.is_box and self.leaf.dtype.kind != "f"
        if self.is_integer and low.size and not -(2**24) <= int(low.min()) <= int(high.max()) <= 2**24:
            raise SpaceError(
                f"{where(self.leaf.path)}: actions of {self.leaf.space} go through float32, which holds whole numbers "
                f"up to 2**24 only; use narrower bounds or a float Box"
            )

    def restore(self, component: Any) -> Any:
        """Return the leaf's value from its component; a discrete component must already include ``start``.

        Values of integer Boxes are rounded and clipped to the bounds. Values of float Boxes may stay beyond the bounds,
        but values of float16 Boxes are clipped to the range of float16. In float16 and float64 Boxes, a value equal to
        the float32 approximation of a bound becomes the exact bound. Raises SpaceError for NaN in an integer Box.
        """
        value = component[self.where].reshape(self.shape)
        if not self.is_box or value.dtype == self.leaf.dtype:
            return value
        if self.is_integer:
            if np.isnan(value).any():
                raise SpaceError(f"{where(self.leaf.path)}: NaN is no value of {self.leaf.space}")
            return np.rint(np.clip(value, self.near_low, self.near_high)).astype(self.leaf.dtype)
        if self.leaf.dtype == np.float16:
            limits = np.finfo(np.float16)
            value = np.clip(value, np.float32(limits.min), np.float32(limits.max))
        converted = value.astype(self.leaf.dtype)
        return np.where(value == self.near_low, self.low, np.where(value == self.near_high, self.high, converted))


def compile_unpack(tree: Node, action_parts: Sequence[ActionPart], start: Array) -> Callable[[Any, Any], Any]:
    """Return a compiled function ``unpack(discrete, box)``, which converts the components of a row to an action.

    discrete: 1-D int64, to which ``unpack`` adds start. box: 1-D float32. Either is None if rows lack this component.
    The action's leaves may be views of one new array. ``unpack`` is compiled because, like the writer, it runs at every
    step.
    """
    scope: dict[str, Any] = {"read": read, "acted": acted, "sampled": sampled}
    scope.update(START=start, FLOAT32=np.float32)
    remaining = iter(action_parts)

    def constant(value: Any) -> str:
        name = f"k{len(scope)}"
        scope[name] = value
        return name

    def restored(part: ActionPart) -> str:
        return f"{constant(part.restore)}({'box' if part.is_box else 'discrete'})"

    def emit(node: Node) -> str:
        """Return a Python expression for the value of a node."""
        if isinstance(node, Record):
            values = [emit(child) for child in node.children]
            if node.keys is None:
                return f"({''.join(value + ', ' for value in values)})"
            keys = [repr(key) if type(key) is str else constant(key) for key in node.keys]
            return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"
        if not isinstance(node, Fixed):
            views = ", ".join(restored(next(remaining)) for _ in range(node.num_leaves))
            return f"read({constant(node)}, [{views}], acted)"
        part = next(remaining)
        if isinstance(node.space, spaces.Discrete):
            return f"ints[{part.where.start}]"
        if node.space.dtype != (np.float32 if part.is_box else np.int64):
            return f"sampled({constant(node)}, {restored(part)})"
        view = f"{'box' if part.is_box else 'discrete'}[{part.where.start}:{part.where.stop}]"
        return view if len(node.shape) == 1 else f"{view}.reshape({node.shape})"

    result = emit(tree)
    lines = ["def unpack(discrete, box):"]
    if start.size:
        lines.append("    discrete = discrete + START")
    if any(part.is_box for part in action_parts):
        lines.append("    box = box.astype(FLOAT32)")
    if "ints[" in result:
        lines.append("    ints = discrete.tolist()")
    source = "\n".join([*lines, f"    return {result}", ""])
    exec(compile(source, f"<unpack of {len(action_parts)} leaves>", "exec"), scope)
    unpack: Callable[[Any, Any], Any] = scope["unpack"]
    return unpack


def unpacking_plan(tree: Node, action_parts: Sequence[ActionPart]) -> tuple[Any, ...]:
    """Return a tree's plan for ``_native.pack.Unpacker``, as nested tuples.

    The plan is ("careful",) if the unpacker does not support all of the tree's nodes.
    """
    remaining = iter(action_parts)

    def plan(node: Node) -> tuple[Any, ...] | None:
        if isinstance(node, Record):
            children = tuple([plan(child) for child in node.children])
            if any(child is None for child in children):
                return None
            return ("tuple", children) if node.keys is None else ("dict", node.keys, children)
        if not isinstance(node, Fixed):
            return None
        part, dtype = next(remaining), np.dtype(node.space.dtype)
        if isinstance(node.space, spaces.Discrete):
            return "number", part.where.start
        if dtype == np.float16 or not dtype.isnative:
            return None
        kind = "choices"
        if part.is_box:
            kind = "wholes" if part.is_integer else "floats" if dtype == np.float32 else "doubles"
        return kind, part.where.start, part.shape, dtype, part.low, part.high

    return plan(tree) or ("careful",)


def lone_plan(leaf: Fixed) -> tuple[Any, ...]:
    """Return the ``_native.pack.Unpacker`` plan for a space that is a single leaf."""
    dtype = np.dtype(leaf.space.dtype)
    kind = "lone"
    if isinstance(leaf.space, spaces.Discrete):
        kind = "lone int64" if dtype == np.int64 else "lone item"
    return kind, 0, leaf.shape, dtype, None, None


def require(component: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a flat action, or a component of one, as an array.

    Raises SpaceError if its shape differs from ``shape``, or its kind of number is not suitable for ``dtype``.
    """
    array = np.asarray(component)
    if array.shape != shape or array.dtype.kind not in ("biu" if dtype.kind in "biu" else "fiu"):
        raise SpaceError(f"the action: expected {dtype} of shape {shape}, got {describe(component)}")
    return array


def whole_number(value: Any) -> int:
    """Return a flat Discrete action as an int. Raises SpaceError unless it is a single integer."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise SpaceError(f"the action: expected an integer, got {describe(value)}") from error
