"""Samples to bytes and back: how the leaves of one sample are written and read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.errors import SpaceError
from pufferlib.leaves import Array, Fixed, Node, Record, name_of, walk

__all__ = ["Writer", "compile_writer", "read", "view_tree"]

Views = tuple[Array, ...]


class Writer:
    """The careful writer: takes whatever fits, and says what does not. ``compile_writer`` makes the fast one."""

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        self.warned = False

    def __call__(self, sample: Any, views: Views) -> None:
        """Write a sample into the views of its leaves; views beyond those are padding. Raises SpaceError."""
        rest = self.write(self.tree, sample, views)
        for gap in views[rest:]:
            gap[...] = 0

    def write(self, node: Node, sample: Any, views: Views) -> int:
        """Write a sample of one node into the first of the views; return how many that were."""
        if isinstance(node, Fixed):
            views[0][...] = self.fit(node, sample)
            return 1
        taken = 0
        for child, part in zip(node.children, split(node, sample), strict=True):
            taken += self.write(child, part, views[taken:])
        return taken

    def fit(self, leaf: Fixed, sample: Any) -> Array:
        """Return a sample as an array of the leaf's dtype and shape, cast where nothing but precision is lost."""
        try:
            array = np.asarray(sample)
        except Exception as error:
            raise mismatch(leaf, sample) from error
        if array.shape != leaf.shape or array.dtype.kind not in "biuf":
            raise mismatch(leaf, sample)
        if array.dtype.newbyteorder("=") == leaf.dtype:
            return array
        plain = not hasattr(sample, "dtype")  # Python's own numbers have no dtype of their own to insist on
        whole = array.dtype.kind in "biu" and leaf.dtype.kind in "biu"
        if not np.can_cast(array.dtype, leaf.dtype, "same_kind") and not (plain and (whole or array.size == 0)):
            raise mismatch(leaf, sample)
        with np.errstate(over="ignore"):
            cast = array.astype(leaf.dtype)
        if whole and (cast != array).any():
            raise SpaceError(f"{name_of(leaf.path)}: {describe(sample)} has values outside the range of {leaf.dtype}")
        if not plain and not (whole and array.ndim == 0):
            self.warn(f"{name_of(leaf.path)}: {array.dtype} is cast to {leaf.dtype} at every step")
        return cast

    def warn(self, message: str) -> None:
        """Warn, once for all leaves of this layout."""
        if not self.warned:
            self.warned = True
            warnings.warn(message, stacklevel=2)


def split(node: Record, sample: Any) -> Iterable[Any]:
    """Return the parts of a Dict's or Tuple's sample, in the order of the node's children."""
    name = name_of(node.path)
    if node.keys is None:
        if not isinstance(sample, (tuple, list, np.ndarray)):
            raise SpaceError(f"{name}: expected a tuple of {len(node.children)}, got {describe(sample)}")
        if len(sample) != len(node.children):
            raise SpaceError(f"{name}: expected a tuple of {len(node.children)}, got one of {len(sample)}")
        return sample
    if not isinstance(sample, Mapping):
        raise SpaceError(f"{name}: expected a dict with keys {list(node.keys)}, got {describe(sample)}")
    missing = [key for key in node.keys if key not in sample]
    if missing:
        raise SpaceError(f"{name_of((*node.path, missing[0]))}: missing; the dict has keys {list(sample)}")
    extra = [key for key in sample if key not in node.keys]
    if extra:
        raise SpaceError(f"{name_of((*node.path, extra[0]))}: not in the space, whose keys are {list(node.keys)}")
    return [sample[key] for key in node.keys]


def mismatch(leaf: Fixed, sample: Any) -> SpaceError:
    return SpaceError(f"{name_of(leaf.path)}: expected {leaf.dtype} of shape {leaf.shape}, got {describe(sample)}")


def describe(sample: Any) -> str:
    """Return what a sample is, in a few words."""
    if hasattr(sample, "dtype") and hasattr(sample, "shape"):
        return f"{sample.dtype} of shape {tuple(sample.shape)}"
    text = repr(sample)
    return f"{type(sample).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def compile_writer(careful: Writer, num_views: int) -> Callable[[Any, Views], None]:
    """Return the fast writer of one tree: straight-line source for it, compiled once.

    Written as source because walking the tree for each sample costs three times what the copies cost. Checks come
    first, all shapes in one comparison and all dtypes in another; whatever is odd goes to the careful writer.
    """
    scope: dict[str, Any] = {"careful": careful, "INT64": (int, np.int64)}
    unpacking: list[str] = []
    leaves: list[Fixed] = []
    arrays: list[int] = []
    ints: list[int] = []
    count = 0

    def fresh(value: Any) -> str:
        name = f"c{len(scope)}"
        scope[name] = value
        return name

    def emit(node: Node, name: str) -> None:
        nonlocal count
        if isinstance(node, Fixed):
            (ints if isinstance(node.space, spaces.Discrete) and node.dtype == np.int64 else arrays).append(len(leaves))
            unpacking.append(f"x{len(leaves)} = {name}")
            leaves.append(node)
            return
        names = []
        for _ in node.children:
            names.append(f"n{count}")
            count += 1
        if node.keys is None:
            unpacking.append(f"if type({name}) is not tuple and type({name}) is not list: raise TypeError")
            unpacking.append(f"[{', '.join(names)}] = {name}")
        else:
            unpacking.append(f"if len({name}) != {len(names)}: raise TypeError")
            for part, key in zip(names, node.keys, strict=True):
                unpacking.append(f"{part} = {name}[{repr(key) if type(key) is str else fresh(key)}]")
        for child, part in zip(node.children, names, strict=True):
            emit(child, part)

    emit(careful.tree, "sample")
    if arrays:
        shapes, dtypes = (", ".join(f"x{i}.{what}" for i in arrays) for what in ("shape", "dtype"))
        scope["SHAPES"] = tuple(leaves[i].shape for i in arrays)
        scope["DTYPES"] = tuple(leaves[i].dtype for i in arrays)
        unpacking.append(f"if ({shapes},) != SHAPES or ({dtypes},) != DTYPES: raise TypeError")
    if ints:
        unpacking.append("if " + " or ".join(f"type(x{i}) not in INT64" for i in ints) + ": raise TypeError")
    for i in range(num_views):
        unpacking.append(f"v{i}[...] = {f'x{i}' if i < len(leaves) else '0'}")
    targets = "".join(f"v{i}, " for i in range(num_views))
    body = "".join(f"        {line}\n" for line in [f"[{targets}] = views", *unpacking])
    source = (
        f"def pack_into(sample, views):\n    try:\n{body}"
        "    except (TypeError, ValueError, LookupError, AttributeError, OverflowError):\n"
        "        careful(sample, views)\n"
    )
    exec(compile(source, f"<pack_into of {len(leaves)} leaves>", "exec"), scope)
    writer: Callable[[Any, Views], None] = scope["pack_into"]
    return writer


def read(node: Node, views: Sequence[Any], finish: Callable[[Fixed, Any], Any]) -> Any:
    """Return the sample that the views of a node's leaves hold; finish makes a leaf's value of its view."""
    if isinstance(node, Fixed):
        return finish(node, views[0])
    parts = []
    taken = 0
    for child in node.children:
        size = sum(1 for _ in walk(child))
        parts.append(read(child, views[taken : taken + size], finish))
        taken += size
    return tuple(parts) if node.keys is None else dict(zip(node.keys, parts, strict=True))


def view_tree(node: Node, views: Sequence[Any]) -> Any:
    """Return the views of a node's leaves nested as the space is."""
    return read(node, views, lambda _, view: view)
