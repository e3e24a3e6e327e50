"""Functions that copy infos for the user, and add the episode statistics that Gymnasium's recorder would add."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

__all__ = ["add_episode", "copy_value"]

_UNCHANGING = frozenset({float, int, bool, str, bytes, type(None), np.float64, np.float32, np.int64, np.bool_})


def copy_value(value: Any) -> Any:
    """Copy the dicts, arrays, plain lists and plain tuples in a value, at any depth; other objects are shared.

    Backends in this process pass infos to the user directly, and other backends pickle infos later. In either case, an
    environment that writes to its own arrays again must not change infos that it has returned.
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        # Most values are numbers: testing for them here costs a quarter of a call.
        return {key: item if type(item) in _UNCHANGING else copy_value(item) for key, item in value.items()}
    if type(value) is list:
        return [copy_value(item) for item in value]
    if type(value) is tuple:  # a named tuple is shared
        return tuple([copy_value(item) for item in value])
    return value


def add_episode(info: dict[str, Any], episode_return: float, length: int, start_s: float) -> None:
    """Add an episode's statistics to an info as "episode", unless it already has that key.

    The statistics are {"r": the return, "l": the number of steps, "t": the seconds since start_s}. start_s: the value
    of perf_counter() at the episode's first row.
    """
    if "episode" not in info:
        info["episode"] = {"r": float(episode_return), "l": int(length), "t": float(perf_counter() - start_s)}
