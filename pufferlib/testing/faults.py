"""Explain why an observation does not fit its space, and compare observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from pufferlib.layout.pack import fills

__all__ = ["Fault", "find_fault", "same"]


class Fault(NamedTuple):
    """A mismatch between an observation and its space.

    kind: "type" (structure, shape or dtype), "shape" (a shape that emulation changes), "cast" (a dtype that emulation
    casts), or "range" (a value out of bounds).
    """

    kind: Literal["type", "shape", "cast", "range"]
    text: str


def find_fault(space: Space[Any], value: Any, path: str = "observation") -> Fault | None:
    """Return the worst fault of an observation; None if it fits its space. path: the observation's name in the text."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping):
            return Fault("type", f"{path} should be a dict, and is {_described(value)}")
        missing, foreign = set(space.spaces) - set(value), set(value) - set(space.spaces)
        if missing or foreign:
            what = [f"lacks {sorted(map(str, missing))}"] if missing else []
            what += [f"has {sorted(map(str, foreign))}, which its space does not have"] if foreign else []
            return Fault("type", f"{path} {' and '.join(what)}")
        parts = [(part, value[key], f"{path}.{key}") for key, part in space.spaces.items()]
        return _first(parts)
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list, np.ndarray)) or len(value) != len(space.spaces):
            return Fault("type", f"{path} should be a tuple of {len(space.spaces)}, and is {_described(value)}")
        return _first([(part, value[i], f"{path}.{i}") for i, part in enumerate(space.spaces)])
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return _array_fault(space, value, path)
    if isinstance(space, spaces.Text) and not isinstance(value, str):
        return Fault("type", f"{path} should be a str, and is {_described(value)}")
    return None if space.contains(value) else Fault("range", f"{path} is {_described(value)}, which is not in {space}")


def _first(parts: list[tuple[Space[Any], Any, str]]) -> Fault | None:
    """Return the worst fault of several parts, in the order type, shape, cast, range; None if all parts fit."""
    faults = [fault for part in parts if (fault := find_fault(*part)) is not None]
    for kind in ("type", "shape", "cast", "range"):
        for fault in faults:
            if fault.kind == kind:
                return fault
    return None


def _array_fault(space: Space[Any], value: Any, path: str) -> Fault | None:
    assert space.shape is not None and space.dtype is not None
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        return Fault("type", f"{path} is {_described(value)}, which cannot become an array")
    if not fills(array.shape, space.shape) or array.dtype.kind not in "biuf":
        return Fault("type", f"{path} should be {space.dtype} of shape {space.shape}, and is {_described(value)}")
    shape, array = array.shape, array.reshape(space.shape)
    # Python's numbers have no dtype to check, and single integers are as good as Python's.
    plain = not hasattr(value, "dtype") or (array.ndim == 0 and array.dtype.kind in "biu")
    safe = np.can_cast(array.dtype, space.dtype) or (plain and (space.dtype.kind == "f" or array.dtype.kind in "biu"))
    if not safe:
        castable = np.can_cast(array.dtype, space.dtype, "same_kind")
        if not castable or shape == space.shape:
            return Fault("cast" if castable else "type", f"{path} is {array.dtype}, and its space says {space.dtype}")
    if shape != space.shape:
        return Fault("shape", f"{path} has shape {shape}, and its space says {space.shape}")
    low, high = _bounds(space)
    outside = ~((array >= low) & (array <= high))
    if array.dtype.kind == "f" and outside.any():
        with np.errstate(over="ignore"):
            array = array.astype(space.dtype)  # a bound that float32 rounds is no fault of the value
        outside = ~((array >= low) & (array <= high))
    if not outside.any():
        return None
    index = tuple(int(i) for i in np.argwhere(outside)[0]) if array.ndim else ()
    bounds = np.broadcast_to(low, array.shape)[index], np.broadcast_to(high, array.shape)[index]
    where = f"{path}[{', '.join(map(str, index))}]" if index else path
    return Fault("range", f"{where} is {array[index]}, and its space goes from {bounds[0]} to {bounds[1]}")


def _bounds(space: Space[Any]) -> tuple[Any, Any]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", 0)  # since gymnasium 1.0
        return start, start + space.nvec.astype(np.int64) - 1
    return 0, 1


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} and shape {value.shape}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def same(one: Any, other: Any) -> bool:
    """Return whether two observations have equal elements; NaN equals NaN, and a list may equal a tuple."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (str, bytes)) or one is None or other is None:
        return bool(one == other)
    try:
        first, second = np.asarray(one), np.asarray(other)
        if first.shape != second.shape:
            return False
        return bool(((first == second) | ((first != first) & (second != second))).all())
    except Exception:  # objects that are not arrays
        return bool(one == other)
