"""Layouts: the position of each leaf of a nested space in a flat row, and conversions in both directions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from pufferlib import _native
from pufferlib.errors import SpaceError
from pufferlib.layout.action_values import ActionValues
from pufferlib.layout.leaves import (
    WHOLE_ACTION,
    Bounds,
    Codec,
    Custom,
    Fixed,
    Node,
    Path,
    name_of,
    register,
    registry,
    tree_of,
    walk,
)
from pufferlib.layout.pack import PackedLeaf, Views, Writer, compile_writer, describe, packing_plan
from pufferlib.layout.unpack import (
    ActionPart,
    Cut,
    compile_unpack,
    lone_plan,
    nest,
    read,
    require,
    sampled,
    slices,
    unpacking_plan,
    whole_number,
)
from pufferlib.util.annotations import Array

__all__ = ["ActionLayout", "Layout", "Leaf", "action_layout", "observation_layout"]

SMALL_NBYTES = 4096  # up to this size, zeroing a whole row is faster than zeroing two parts


@dataclass(frozen=True)
class Leaf:
    """One array of a nested space, as it is stored in a row, in native byte order."""

    path: Path  # keys and indices, from the whole space down
    dtype: np.dtype[Any]  # in the row
    shape: tuple[int, ...]  # of one sample; the largest one if its length varies
    offset: int  # bytes from the row's start

    @property
    def name(self) -> str:
        """The path as one string, such as ``a.b.0``."""
        return name_of(self.path)

    @property
    def nbytes(self) -> int:
        """The leaf's size in bytes."""
        return _size(self.shape) * self.dtype.itemsize


def observation_layout(
    space: Space[Any],
    *,
    max_length: int | None = None,
    max_nodes: int | None = None,
    max_edges: int | None = None,
    bounds: Mapping[Any, Mapping[str, int]] | None = None,
) -> Layout:
    """Return the layout of a space's observations in flat rows.

    max_length bounds the length of each Sequence, and of each text whose space does not bound it; max_nodes and
    max_edges bound each Graph. bounds overrides these by path: ``{"a.b": {"max_length": 5}}``. A path may also be a
    tuple of keys. Raises SpaceError for an invalid bound, a variable-length space without a bound, and a space that
    cannot be stored in rows.
    """
    return Layout(space, max_length=max_length, max_nodes=max_nodes, max_edges=max_edges, bounds=bounds)


def action_layout(
    space: Space[Any],
    *,
    max_length: int | None = None,
    max_nodes: int | None = None,
    max_edges: int | None = None,
    bounds: Mapping[Any, Mapping[str, int]] | None = None,
) -> ActionLayout:
    """Return the layout of a space's actions in flat rows.

    max_length, max_nodes, max_edges, bounds: as for ``observation_layout``, which raises the same errors.
    """
    return ActionLayout(space, max_length=max_length, max_nodes=max_nodes, max_edges=max_edges, bounds=bounds)


class _Base:
    """The base class of ``Layout`` and ``ActionLayout``."""

    space: Space[Any]  # the original one
    flat_space: Space[Any]  # of one flat row
    is_leaf: bool  # the space is one array: its rows are its samples
    leaves: tuple[Leaf, ...]  # in storage order

    def __init__(self, space: Space[Any], actions: bool, bounds: dict[str, Any]) -> None:
        self.space = space
        self._bounds = {key: value for key, value in bounds.items() if value is not None}
        path = WHOLE_ACTION if actions else ()
        self._tree = tree_of(space, Bounds(**self._bounds), actions=actions, path=path)
        self._stored = list(walk(self._tree))
        self.is_leaf = isinstance(self._tree, Fixed)
        self._warned: set[str] = set()
        self._strict = Writer(self._tree, self._warned, strict=True, lenient=not actions)

    def check(self, sample: Any, whose: str = "") -> None:
        """Check a sample's structure, shapes, dtypes, lengths and values.

        whose: the prefix of warnings, such as "agent 'a': ".

        Raises SpaceError if the sample does not fit the space; the message contains the path, the expected and the
        actual value. Some differences cause only a warning: a dtype that can be cast and, in observations, values
        outside a Box or Text and shapes that differ only by axes of length 1. Each kind of warning is issued once per
        layout.
        """
        self._strict.whose = whose
        self._write_natural(sample)

    def _write_natural(self, sample: Any) -> list[Array]:
        """Check a sample fully, and return its leaves as new arrays, each in the dtype of the leaf's space."""
        views: list[Array] = [np.zeros(stored.shape, stored.leaf.dtype) for stored in self._stored]
        self._strict(sample, views)
        return views

    @staticmethod
    def register(
        space_type: type | str,
        leaves: Callable[[Any], Space[Any]],
        pack: Callable[[Any, Any], Any],
        unpack: Callable[[Any, Any], Any],
    ) -> None:
        """Register a class of spaces, so that layouts can store its samples as samples of another space.

        space_type: the class, or its dotted name if importing it is too expensive; its subclasses are included.
        leaves(space) returns the other space; pack(space, sample) converts a sample to a sample of the other space, and
        unpack(space, stored) converts it back:

            Layout.register(Word, lambda space: Text(space.longest), lambda _, word: word.text, lambda _, s: Word(s))

        Pickled layouts include the registrations for their spaces. Raises SpaceError for Gymnasium's own classes.
        """
        register(space_type, leaves, pack, unpack)

    def __reduce__(self) -> Any:
        return _restore, (type(self), self.space, self._bounds, dict(_codecs(self._tree)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Base) and type(other) is type(self) and other._tree == self._tree

    def __hash__(self) -> int:
        return hash((type(self), self.leaves))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.space} -> {self.flat_space})"

    def __str__(self) -> str:
        rows = [("offset", "nbytes", "dtype", "shape", "leaf")]
        rows += [
            (str(leaf.offset), str(leaf.nbytes), leaf.dtype.name, str(leaf.shape), leaf.name) for leaf in self.leaves
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            [f"{type(self).__name__} of {self.flat_space}"]
            + ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        )


def _codecs(node: Node) -> list[tuple[type | str, Codec]]:
    if isinstance(node, Fixed):
        return []
    codecs = [(node.kind, node.codec)] if isinstance(node, Custom) else []
    return codecs + [codec for _, child, _ in node.parts for codec in _codecs(child)]


def _restore(kind: Any, space: Space[Any], bounds: dict[str, Any], codecs: dict[type | str, Codec]) -> Any:
    for space_type, codec in codecs.items():
        registry.setdefault(space_type, codec)
    return kind(space, **bounds)


class Layout(_Base):
    """The layout of one space's observations in flat rows; created by ``observation_layout``.

    For a Box, Discrete, MultiDiscrete or MultiBinary, and for a custom space whose samples are numeric arrays of a
    fixed shape, the row is the unchanged sample. For any other space, a row is 1-D. If all leaves have the same dtype,
    that is the row's dtype. Otherwise the row is uint8, laid out like a C struct: each leaf starts at a multiple of its
    itemsize, the row is padded to a multiple of the largest itemsize, and padding is zero. The byte order is native.

    Text, Sequence, Graph and OneOf are padded with zeros. A Text or Sequence is stored as ``{"data", "length"}``; the
    data of a Text are code points. A Graph is stored as ``{"nodes": {"data", "length"}, "edges": {"data", "length"},
    "edge_links"}``, or with only the nodes if the space has no edges; if a sample's edges are None, their length is -1.
    A OneOf is stored as ``{"index", "options"}``, where options is a tuple in which all options except the chosen one
    are zero.
    """

    shape: tuple[int, ...]  # of one flat row
    dtype: np.dtype[Any]  # of one flat row
    nbytes: int  # of one flat row
    pack_into: Callable[[Any, Views], None]
    # pack_into(sample, views): write a sample into all bytes of a row, through its ``views``. Fastest if the same
    # rows are packed repeatedly, with views made once. If it raises SpaceError, the row's content is undefined.
    packer: Any  # the compiled pack_into, a ``_native.pack.Packer``; None without the compiled path

    def __init__(self, space: Space[Any], **bounds: Any) -> None:
        super().__init__(space, False, bounds)
        placed, end = [], 0
        gaps: list[tuple[int, int]] = []
        for stored in self._stored:
            offset = _aligned(end, stored.leaf.dtype.itemsize)
            gaps.append((end, offset))
            placed.append(Leaf(stored.leaf.path, stored.leaf.dtype, stored.shape, offset))
            end = offset + placed[-1].nbytes
        self.leaves = tuple(placed)
        self.nbytes = _aligned(end, max((leaf.dtype.itemsize for leaf in self.leaves), default=1))
        gaps = [(start, stop) for start, stop in [*gaps, (end, self.nbytes)] if start < stop]
        clears = [(0, self.nbytes)] if len(gaps) > 1 and self.nbytes <= SMALL_NBYTES else gaps
        self.flat_space = self._make_flat_space()
        self.shape = tuple(self.flat_space.shape or ())
        self.dtype = np.dtype(self.flat_space.dtype)
        self._mixed = any(leaf.dtype != self.dtype for leaf in self.leaves)
        self._cuts = [
            Cut(
                leaf.path,
                leaf.offset // self.dtype.itemsize,
                (leaf.offset + leaf.nbytes) // self.dtype.itemsize,
                leaf.dtype,
                leaf.shape,
            )
            for leaf in self.leaves
        ]
        packed = [PackedLeaf(leaf.shape, leaf.dtype, leaf.offset) for leaf in self.leaves]
        self._writable = packed + [PackedLeaf((stop - start,), np.dtype(np.uint8), start) for start, stop in clears]
        careful = Writer(self._tree, self._warned)
        self.pack_into = compile_writer(careful, len(clears))
        self.packer = None
        if _native.available:
            plan, is_scalar = packing_plan(careful, packed), isinstance(space, spaces.Discrete)
            self.packer = _native.pack.Packer(plan, self.shape, self.dtype, gaps, is_scalar)

    def repeated(self, num_samples: int) -> Layout:
        """Return the layout of a Tuple of ``num_samples`` copies of the space."""
        bounds = dict(self._bounds)
        if "bounds" in bounds:
            bounds["bounds"] = {
                _below(i, path): sizes for i in range(num_samples) for path, sizes in self._bounds["bounds"].items()
            }
        return Layout(spaces.Tuple([self.space] * num_samples), **bounds)

    def _make_flat_space(self) -> Space[Any]:
        dtypes = {leaf.dtype for leaf in self.leaves}
        if len(dtypes) != 1:
            return spaces.Box(0, 255, (self.nbytes,), np.uint8)
        (dtype,) = dtypes
        if self.is_leaf and self.space.dtype == dtype:
            return self.space
        ranges = [stored.value_range() for stored in self._stored]
        low, high = (np.concatenate([bound[i].ravel() for bound in ranges]) for i in (0, 1))
        shape = self.leaves[0].shape if self.is_leaf else low.shape  # a lone Box of foreign byte order keeps its shape
        return spaces.Box(low.reshape(shape), high.reshape(shape), dtype=dtype.type)

    def views(self, row: Array) -> Views:
        """Return the views through which ``pack_into`` writes one row: one per leaf, then the row's padding.

        row: a contiguous array of shape ``self.shape`` and dtype ``self.dtype``, 0-d for a Discrete space. Takes half a
        µs per leaf. Raises SpaceError for a row of another shape or dtype and, unless the space is one leaf, for a row
        that is not contiguous.
        """
        if row.shape != self.shape or row.dtype != self.dtype:
            raise SpaceError(f"expected a row of {self.dtype} of shape {self.shape}, got {describe(row)}")
        if self.is_leaf:
            return (row,)
        try:
            return tuple([np.ndarray(shape, dtype, row, offset) for shape, dtype, offset in self._writable])
        except ValueError as error:
            raise SpaceError("a row must be contiguous in memory; pack into a copy") from error

    def pack(self, sample: Any, row: Array) -> None:
        """Write a sample into all bytes of a row, like ``pack_into(sample, views(row))``.

        Raises SpaceError if the sample does not fit the space, or the row does not fit the layout.
        """
        if self.packer is None or not self.packer.pack(sample, row):
            self.pack_into(sample, self.views(row))

    def flatten(self, sample: Any) -> Any:
        """Return a sample as a new row; for a Discrete space, the row is a NumPy scalar.

        Raises SpaceError if the sample does not fit the space.
        """
        flat = None if self.packer is None else self.packer.flatten(sample)
        if flat is not None:
            return flat
        row: Array = np.empty(self.shape, self.dtype)
        self.pack_into(sample, self.views(row))
        return row[()] if isinstance(self.space, spaces.Discrete) else row

    def unflatten(self, rows: Any) -> Any:
        """Return views that share the rows' memory, nested like the space.

        rows: a NumPy array or torch tensor (on any device) of shape (..., \\*self.shape), such as one row, a batch or a
        rollout. The returned dicts and tuples hold arrays or tensors of shape (..., \\*leaf.shape), padded where the
        length varies. Rows whose leaves share a dtype may have been cast to another dtype; rows of bytes, which hold
        leaves of several dtypes, may not.

        If the space is one leaf, rows are returned unchanged and unchecked. Otherwise raises SpaceError for rows of
        another length, for rows of bytes that have been cast, and if a view is impossible: torch may lack the dtype, or
        the rows may not be contiguous or not be aligned.
        """
        return rows if self.is_leaf else nest(self._tree, self._slices(rows))

    def decode(self, row: Any) -> Any:
        """Return a copy of the sample in one row (NumPy, or torch on any device).

        The copy has the types of the space's samples: ``decode(flatten(x)) == x``. Raises SpaceError if the row's shape
        or dtype is not the layout's, as for a batch of rows, and if a stored length or index is out of range.
        """
        row = np.asarray(row.detach().cpu() if hasattr(row, "detach") else row)
        if row.shape != self.shape or row.dtype != self.dtype:
            hint = "; use unflatten for batches" if row.ndim > len(self.shape) else ""
            raise SpaceError(f"expected one row of {self.dtype} of shape {self.shape}, got {describe(row)}{hint}")
        views = [row] if self.is_leaf else self._slices(np.ascontiguousarray(row))
        return read(self._tree, views, sampled)

    def _slices(self, rows: Any) -> list[Any]:
        """Return a view of each leaf in the rows.

        Raises SpaceError if the rows' length is not the layout's, and the errors of ``slices``.
        """
        if tuple(getattr(rows, "shape", ())[-1:]) != self.shape:
            raise SpaceError(f"expected rows of {self.dtype} of shape (..., {self.shape[0]}), got {describe(rows)}")
        return slices(rows, self._cuts, self._mixed)


class ActionLayout(_Base):
    """The layout of one space's actions in flat rows; created by ``action_layout``.

    For a Box, Discrete, MultiDiscrete or MultiBinary, and for a custom space whose samples are numeric arrays of a
    fixed shape, the row is the unchanged action. For any other space, the discrete leaves become one MultiDiscrete
    (int64, zero-based) and the Box leaves one float32 Box. If there are both, ``flat_space`` is the Tuple of the two,
    and a flat row is a pair of arrays. Text is stored as indices into its sorted charset, and leaves of variable length
    are padded, as in ``Layout``. A leaf's dtype identifies the component that contains the leaf; the leaf's offset is
    relative to the start of that component.
    """

    components: tuple[Space[Any], ...]  # the flat space of each array in a row: one, or MultiDiscrete and Box
    unpacker: Any  # the compiled unpack, a ``_native.pack.Unpacker``; None without the compiled path

    def __init__(self, space: Space[Any], **bounds: Any) -> None:
        super().__init__(space, True, bounds)
        self.unpacker = None
        if self.is_leaf:
            (stored,) = self._stored
            self.leaves = (Leaf(stored.leaf.path, stored.leaf.dtype, stored.shape, 0),)
            self.components = (space,)
            self.flat_space = space
            if _native.available:
                start = np.zeros(0, np.int64)
                self.unpacker = _native.pack.Unpacker(lone_plan(stored.leaf), start, 0, False, False, None)
            return
        self._parts = [ActionPart(stored) for stored in self._stored]
        ends = {False: 0, True: 0}
        leaves = []
        for part in self._parts:
            dtype = np.dtype(np.float32 if part.is_box else np.int64)
            leaves.append(Leaf(part.leaf.path, dtype, part.shape, ends[part.is_box] * dtype.itemsize))
            part.where = slice(ends[part.is_box], ends[part.is_box] + _size(part.shape))
            ends[part.is_box] = part.where.stop
        self.leaves = tuple(leaves)
        low, high = (self._joined([getattr(p, b) for p in self._parts], True) for b in ("near_low", "near_high"))
        self._start, last = (self._joined([getattr(p, b) for p in self._parts], False) for b in ("low", "high"))
        self._unpack = compile_unpack(self._tree, self._parts, self._start)
        discrete = spaces.MultiDiscrete(last - self._start + 1)
        box = spaces.Box(low, high, dtype=np.float32)
        kinds = {part.is_box for part in self._parts}
        has_discrete, has_continuous = kinds != {True}, True in kinds
        self.components = (discrete,) * has_discrete + (box,) * has_continuous
        self.flat_space = spaces.Tuple(self.components) if len(self.components) == 2 else self.components[0]
        if _native.available:
            unpacking = unpacking_plan(self._tree, self._parts)
            self.unpacker = _native.pack.Unpacker(
                unpacking, self._start, low.size, has_discrete, has_continuous, self._unpack
            )

    def _joined(self, values: Sequence[Array], is_box: bool) -> Array:
        """Return the values of all Box leaves, or of all discrete leaves, as one 1-D array."""
        kind = np.float32 if is_box else np.int64
        flat = [value.ravel().astype(kind) for value, p in zip(values, self._parts, strict=True) if p.is_box == is_box]
        return np.concatenate([np.zeros(0, kind), *flat])

    def _pair(self, row: Any) -> tuple[Any, Any]:
        """Return a flat row's discrete and continuous components; None for a component that the layout lacks.

        Raises SpaceError if the layout has both components and the row is not a pair.
        """
        if len(self.components) == 2:
            if not isinstance(row, (tuple, list)) or len(row) != 2:
                raise SpaceError(f"expected a pair of arrays (MultiDiscrete, Box), got {describe(row)}")
            return row[0], row[1]
        return (row, None) if isinstance(self.components[0], spaces.MultiDiscrete) else (None, row)

    def unpack(self, row: Any) -> Any:
        """Return a copy of the action in one flat row, in the environment's format; a Discrete is a Python int.

        Box values are cast to the dtype of their space. In a nested space, values of integer Boxes are rounded and
        clipped to the bounds; values of float Boxes may lie beyond the bounds. Raises SpaceError if the row's shape or
        kind of number does not fit the layout, for NaN in an integer Box, and for a length or index out of range. Other
        invalid values are not detected here; ``refuse`` detects them.
        """
        action = NotImplemented if self.unpacker is None else self.unpacker.unpack(row)
        if action is not NotImplemented:
            return action
        if isinstance(self._tree, Fixed):
            if isinstance(self._tree.space, spaces.Discrete):
                return whole_number(row)
            return np.array(require(row, self._tree.shape, self._tree.dtype), dtype=self._tree.space.dtype)
        discrete, box = self._pair(row)
        if discrete is not None:
            discrete = require(discrete, self._start.shape, self._start.dtype)
        if box is not None:
            box = require(box, self.components[-1].shape or (), np.dtype(np.float32))
        return self._unpack(discrete, box)

    decode = unpack

    def unpack_checked(self, row: Any, whose: str = "") -> Any:
        """Check a row's values and return its action.

        row: a flat row, or anything that ``np.asarray`` converts to one. whose: as in ``refuse``. Raises the errors of
        ``unpack`` and ``refuse``.
        """
        checks = self._checks
        action = NotImplemented if checks is None else self.unpacker.unpack_fit(row, checks)
        if action is NotImplemented:
            action = self.unpack(row if len(self.components) == 2 else np.asarray(row))
            self.refuse(row, whose)
        return action

    @functools.cached_property
    def _values(self) -> list[ActionValues]:
        return [ActionValues(space) for space in self.components]

    @functools.cached_property
    def _checks(self) -> tuple[Any, ...] | None:
        """The compiled checks of all components; None if one of them or the unpacker is missing."""
        checks = tuple([values.check for values in self._values])
        return None if self.unpacker is None or None in checks else checks

    def refuse(self, row: Any, whose: str = "") -> None:
        """Raise ActionError if a flat row holds an invalid value.

        A discrete value is invalid outside its space; a value of a Box is invalid if it is not finite or does not fit
        the space's dtype, as ``ActionValues`` describes. row: as in ``unpack``. whose: text that follows the action in
        the message, such as " of agent 'a'".
        """
        parts = row if len(self.components) == 2 else (row,)
        for part, values in zip(parts, self._values, strict=True):
            values.refuse_one(part, whose)

    def flatten(self, sample: Any) -> Any:
        """Return a sample as a flat row: an array, a pair of arrays or, for a Discrete space, a NumPy scalar.

        ``unpack`` reverses this. Raises SpaceError if the sample does not fit the space.
        """
        values = self._write_natural(sample)
        if self.is_leaf:
            return values[0][()] if isinstance(self.space, spaces.Discrete) else values[0]
        # Padding is zero or, where the leaf's space excludes zero, the nearest value in it.
        values = [np.clip(value, part.low, part.high) for value, part in zip(values, self._parts, strict=True)]
        discrete, box = self._joined(values, False) - self._start, self._joined(values, True)
        if len(self.components) == 2:
            return discrete, box
        return discrete if isinstance(self.components[0], spaces.MultiDiscrete) else box

    def unflatten(self, rows: Any) -> Any:
        """Return views of flat rows, nested like the space.

        Discrete values are zero-based int64, Box values are unclipped float32, and variable-length parts are padded.

        rows: a NumPy array or torch tensor of shape (..., \\*shape), where shape is the flat space's; or a pair of
        these, if the flat space is a Tuple. If the space is one leaf, rows are returned unchanged and unchecked.
        Otherwise raises SpaceError for rows of another length, and for rows that should be a pair but are not.
        """
        if self.is_leaf:
            return rows
        pair = self._pair(rows)
        for component, flat in zip((c for c in pair if c is not None), self.components, strict=True):
            assert flat.shape is not None
            if tuple(getattr(component, "shape", ())[-1:]) != flat.shape:
                raise SpaceError(f"expected rows of shape (..., {flat.shape[0]}) for {flat}, got {describe(component)}")
        views = []
        for part in self._parts:
            view = pair[part.is_box][..., part.where]
            views.append(view.reshape((*view.shape[:-1], *part.shape)))
        return nest(self._tree, views)


def _below(index: int, path: Any) -> Any:
    """Return a path of ``bounds``, prefixed with the index of a Tuple's element."""
    if isinstance(path, tuple):
        return (index, *path)
    return f"{index}.{path}" if path != name_of(()) else str(index)


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _aligned(offset: int, itemsize: int) -> int:
    return offset + -offset % itemsize
