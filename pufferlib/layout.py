"""Layouts: where each leaf of a nested space lies in a flat row, and the way there and back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from pufferlib.errors import SpaceError
from pufferlib.leaves import Array, Fixed, Path, name_of, plan, value_range, walk
from pufferlib.pack import Views, Writer, compile_writer, describe, read, view_tree

__all__ = ["ActionLayout", "Layout", "Leaf", "action_layout", "observation_layout"]


@dataclass(frozen=True)
class Leaf:
    """One array inside a nested space. offset: bytes from the start of the row; native byte order."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def name(self) -> str:
        """The path as one string, such as ``a.b.0``."""
        return name_of(self.path)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return self.size * self.dtype.itemsize


def observation_layout(
    space: Space[Any],
    *,
    max_length: int | None = None,
    max_nodes: int | None = None,
    max_edges: int | None = None,
    bounds: Mapping[Any, Mapping[str, int]] | None = None,
) -> Layout:
    """Return the layout of an observation space. Raises SpaceError for spaces that cannot be flattened."""
    return Layout(space, max_length=max_length, max_nodes=max_nodes, max_edges=max_edges, bounds=bounds)


def action_layout(
    space: Space[Any],
    *,
    max_length: int | None = None,
    max_nodes: int | None = None,
    max_edges: int | None = None,
    bounds: Mapping[Any, Mapping[str, int]] | None = None,
) -> ActionLayout:
    """Return the layout of an action space. Raises SpaceError for spaces that cannot be flattened."""
    return ActionLayout(space, max_length=max_length, max_nodes=max_nodes, max_edges=max_edges, bounds=bounds)


class _Base:
    """What observations and actions share: the space as leaves in a row of natural dtypes."""

    def __init__(self, space: Space[Any], **bounds: Any) -> None:
        self.space = space
        self._bounds = {key: value for key, value in bounds.items() if value is not None}
        self._tree = plan(space)
        self._writer = Writer(self._tree)
        self.is_leaf = isinstance(self._tree, Fixed)

    def __reduce__(self) -> Any:
        return _restore, (type(self), self.space, self._bounds)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key == other._key

    def __hash__(self) -> int:
        return hash((type(self), self.leaves))

    @property
    def _key(self) -> Any:
        return self.space, self.leaves, self._bounds

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """Every leaf, in the order in which they are stored."""
        placed, offset = [], 0
        for leaf, lead in walk(self._tree):
            offset += -offset % leaf.dtype.itemsize
            placed.append(Leaf(leaf.path, leaf.dtype, lead + leaf.shape, offset))
            offset += placed[-1].nbytes
        return tuple(placed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.space})"

    def _finish(self, leaf: Fixed, view: Any) -> Any:
        """Return a leaf's value, as the space samples it, of a view of its bytes."""
        array = np.array(view, dtype=leaf.space.dtype)
        return array[()] if isinstance(leaf.space, spaces.Discrete) else array


def _restore(kind: Any, space: Space[Any], bounds: dict[str, Any]) -> Any:
    return kind(space, **bounds)


class Layout(_Base):
    """How observations of one space lie in flat rows."""

    def __init__(self, space: Space[Any], **bounds: Any) -> None:
        super().__init__(space, **bounds)
        end = max((leaf.offset + leaf.nbytes for leaf in self.leaves), default=0)
        widest = max((leaf.dtype.itemsize for leaf in self.leaves), default=1)
        self.nbytes = end + -end % widest
        self.flat_space = self._flat_space()
        assert self.flat_space.shape is not None
        self.shape = tuple(self.flat_space.shape)
        self.dtype: np.dtype[Any] = np.dtype(self.flat_space.dtype)
        self._gaps = self._find_gaps()
        self.pack_into = compile_writer(self._writer, len(self.leaves) + len(self._gaps))

    def _flat_space(self) -> Space[Any]:
        dtypes = {leaf.dtype for leaf in self.leaves}
        if self.is_leaf and self.space.dtype in dtypes:
            return self.space
        if len(dtypes) != 1:
            return spaces.Box(0, 255, (self.nbytes,), np.uint8)
        (dtype,) = dtypes
        ranges = [value_range(leaf) for leaf, _ in walk(self._tree)]
        if self.is_leaf:
            return spaces.Box(*ranges[0], dtype=dtype.type)
        low, high = (np.concatenate([bound[i].ravel() for bound in ranges]) for i in (0, 1))
        return spaces.Box(low, high, dtype=dtype.type)

    def _find_gaps(self) -> list[tuple[int, int]]:
        gaps, end = [], 0
        for leaf in self.leaves:
            gaps.append((end, leaf.offset))
            end = leaf.offset + leaf.nbytes
        return [(start, stop) for start, stop in [*gaps, (end, self.nbytes)] if start < stop]

    def views(self, row: Array) -> Views:
        """Return the views that ``pack_into`` writes: of each leaf of one row, then of its padding."""
        if row.shape != self.shape or row.dtype != self.dtype:
            raise SpaceError(f"expected a row of {self.dtype} {self.shape}, got {describe(row)}")
        if self.is_leaf:
            return (row,)
        return (*self._slices(row), *(row[start:stop] for start, stop in self._gaps))

    def pack(self, sample: Any, row: Array) -> None:
        """Write a sample into a row (shape ``self.shape``, dtype ``self.dtype``), all of its bytes."""
        self.pack_into(sample, self.views(row))

    def check(self, sample: Any) -> None:
        """Raise SpaceError unless the sample fits the space."""
        self.flatten(sample)

    def flatten(self, sample: Any) -> Any:
        """Return a new row that holds the sample."""
        row: Array = np.zeros(self.shape, self.dtype)
        self.pack(sample, row)
        return row[()] if isinstance(self.space, spaces.Discrete) else row

    def unflatten(self, rows: Any) -> Any:
        """Return the nested structure as views of a row or batch of rows, NumPy or torch."""
        return rows if self.is_leaf else view_tree(self._tree, self._slices(rows))

    def decode(self, row: Any) -> Any:
        """Return the sample that a row holds, by copy."""
        row = np.asarray(row)
        return read(self._tree, self.views(row), self._finish)

    def _slices(self, rows: Any) -> list[Any]:
        """Return a view of each leaf, (..., *leaf.shape), of rows (..., *self.shape)."""
        if tuple(rows.shape[-1:]) != self.shape:
            raise SpaceError(f"expected rows of shape (..., {self.shape[0]}), got {describe(rows)}")
        torch = sys.modules.get("torch")
        tensor = torch is not None and isinstance(rows, torch.Tensor)
        scale = self.dtype.itemsize
        views = []
        for leaf in self.leaves:
            part = rows[..., leaf.offset // scale : (leaf.offset + leaf.nbytes) // scale]
            if leaf.dtype != self.dtype:
                part = part.view(getattr(torch, leaf.dtype.name) if tensor else leaf.dtype)
            views.append(part.reshape((*rows.shape[:-1], *leaf.shape)))
        return views


class ActionLayout(_Base):
    """How actions of one space lie in flat rows."""

    def __init__(self, space: Space[Any], **bounds: Any) -> None:
        super().__init__(space, **bounds)
        leaves = list(walk(self._tree))
        ranges = [value_range(leaf) for leaf, _ in leaves]
        self._parts: list[tuple[int, slice]] = []  # of each leaf: which component, where in it
        ends = [0, 0]
        for leaf, _ in leaves:
            which = int(isinstance(leaf.space, spaces.Box))
            size = int(np.prod(leaf.shape, dtype=np.int64))
            self._parts.append((which, slice(ends[which], ends[which] + size)))
            ends[which] += size
        lows: list[list[Array]] = [[np.zeros(0, np.int64)], [np.zeros(0, np.float32)]]
        highs: list[list[Array]] = [[np.zeros(0, np.int64)], [np.zeros(0, np.float32)]]
        for (which, _), (low, high), (leaf, _) in zip(self._parts, ranges, leaves, strict=True):
            if which and leaf.dtype.kind != "f" and low.size and not self.is_leaf:
                if int(low.min()) < -(2**24) or int(high.max()) > 2**24:
                    raise SpaceError(f"{name_of(leaf.path)}: {leaf.space} holds integers that float32 cannot")
            with np.errstate(over="ignore"):
                lows[which].append(low.ravel().astype((np.int64, np.float32)[which]))
                highs[which].append(high.ravel().astype((np.int64, np.float32)[which]))
        self._start = np.concatenate(lows[0])
        self._last = np.concatenate(highs[0]) - self._start
        self._low, self._high = np.concatenate(lows[1]), np.concatenate(highs[1])
        self._exact = [(low, high) for low, high in ranges]
        self.components: tuple[Space[Any], ...]
        if self.is_leaf:
            self.components = (space,)
        else:
            discrete = spaces.MultiDiscrete(self._last + 1)
            box = spaces.Box(self._low, self._high, dtype=np.float32)
            kinds = {which for which, _ in self._parts}
            self.components = (discrete, box) if len(kinds) == 2 else (box,) if kinds == {1} else (discrete,)
        self.flat_space: Space[Any] = self.components[0]
        if len(self.components) == 2:
            self.flat_space = spaces.Tuple(self.components)

    def _pair(self, row: Any) -> tuple[Any, Any]:
        if len(self.components) == 2:
            return row[0], row[1]
        return (row, None) if isinstance(self.components[0], spaces.MultiDiscrete) else (None, row)

    def unpack(self, row: Any) -> Any:
        """Return the action that a flat row holds: Discrete as int, arrays as copies."""
        if self.is_leaf:
            assert isinstance(self._tree, Fixed)
            return self._finish(self._tree, row)
        discrete, box = self._pair(row)
        if discrete is not None:
            discrete = discrete + self._start
        if box is not None:
            box = np.minimum(np.maximum(box, self._low), self._high)
        views = []
        for leaf, (which, where), (low, high) in zip(self.leaves, self._parts, self._exact, strict=True):
            part = (box if which else discrete)[where].reshape(leaf.shape)
            if which:
                part = np.rint(part) if leaf.dtype.kind != "f" else part
                part = np.clip(part.astype(leaf.dtype), low, high)
            views.append(part)
        return read(self._tree, views, self._finish)

    decode = unpack

    def _finish(self, leaf: Fixed, view: Any) -> Any:
        if isinstance(leaf.space, spaces.Discrete):
            return int(view)
        return np.array(view, dtype=leaf.space.dtype)

    def check(self, sample: Any) -> None:
        """Raise SpaceError unless the action fits the space."""
        self.flatten(sample)

    def flatten(self, sample: Any) -> Any:
        """Return the flat row (an array, or a pair of them) of an action."""
        views = tuple(np.zeros(leaf.shape, leaf.dtype) for leaf in self.leaves)
        self._writer(sample, views)
        if self.is_leaf:
            return views[0][()] if isinstance(self.space, spaces.Discrete) else views[0]
        parts: list[list[Array]] = [[np.zeros(0, np.int64)], [np.zeros(0, np.float32)]]
        for view, (which, _) in zip(views, self._parts, strict=True):
            parts[which].append(view.ravel().astype((np.int64, np.float32)[which]))
        discrete, box = np.concatenate(parts[0]) - self._start, np.concatenate(parts[1])
        if len(self.components) == 2:
            return discrete, box
        return discrete if isinstance(self.components[0], spaces.MultiDiscrete) else box

    def unflatten(self, rows: Any) -> Any:
        """Return the nested structure as views of flat rows: zero-based integers, float32."""
        if self.is_leaf:
            return rows
        pair = self._pair(rows)
        views = []
        for leaf, (which, where) in zip(self.leaves, self._parts, strict=True):
            part = pair[which][..., where]
            views.append(part.reshape((*part.shape[:-1], *leaf.shape)))
        return view_tree(self._tree, views)
