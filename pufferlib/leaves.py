"""Spaces as trees of leaves: what has to be stored of a space, before anyone says where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from pufferlib.errors import SpaceError

__all__ = ["Fixed", "Node", "Path", "Record", "name_of", "plan", "value_range", "walk"]

Array = np.ndarray[Any, Any]
Path = tuple[Any, ...]  # Dict keys and Tuple indices from the root down


@dataclass(frozen=True)
class Fixed:
    """A leaf: one array of a fixed shape. dtype: the space's, in native byte order."""

    path: Path
    space: Space[Any]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Record:
    """A Dict (keys in gymnasium's order) or, where keys is None, a Tuple."""

    path: Path
    keys: tuple[Any, ...] | None
    children: tuple[Node, ...]


Node = Fixed | Record


def plan(space: Space[Any], path: Path = ()) -> Node:
    """Return the tree of a space. Raises SpaceError, naming the path, for what cannot be stored in rows."""
    if isinstance(space, spaces.Dict):
        keys = tuple(space.spaces)
        return Record(path, keys, tuple(plan(space.spaces[key], (*path, key)) for key in keys))
    if isinstance(space, spaces.Tuple):
        return Record(path, None, tuple(plan(child, (*path, i)) for i, child in enumerate(space.spaces)))
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return fixed(space, path)
    raise SpaceError(f"{name_of(path)}: {type(space).__name__} cannot be flattened")


def fixed(space: Space[Any], path: Path) -> Fixed:
    """Return the leaf of a space that has a shape and a dtype."""
    dtype = np.dtype(space.dtype).newbyteorder("=")
    if dtype.char in "gG":
        raise SpaceError(f"{name_of(path)}: longdouble has no portable layout; use a Box of float64")
    assert space.shape is not None
    return Fixed(path, space, dtype, tuple(space.shape))


def walk(node: Node, lead: tuple[int, ...] = ()) -> Iterator[tuple[Fixed, tuple[int, ...]]]:
    """Yield each leaf in the order in which it is stored, with the dimensions that come before its own shape."""
    if isinstance(node, Fixed):
        yield node, lead
    else:
        for child in node.children:
            yield from walk(child, lead)


def value_range(leaf: Fixed) -> tuple[Array, Array]:
    """Return the least and greatest value of each element, of the leaf's dtype and shape."""
    space = leaf.space
    low: Any
    high: Any
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        low = getattr(space, "start", 0)
        high = low + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1
    else:
        low, high = 0, 1
    full = np.zeros(leaf.shape, leaf.dtype)
    return full + np.asarray(low, leaf.dtype), full + np.asarray(high, leaf.dtype)


def name_of(path: Path) -> str:
    """Return a path as users write it: ``a.b.0``; keys that would be ambiguous so are quoted."""
    return ".".join(key if isinstance(key, str) and key.isidentifier() else repr(key) for key in path) or "(root)"
