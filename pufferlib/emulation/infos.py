"""Infos for the user: copies, with the episode entries that Gymnasium's recorder would add."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

__all__ = ["add_episode", "copy_value"]

_UNCHANGING = frozenset({float, int, bool, str, bytes, type(None), np.float64, np.float32, np.int64, np.bool_})


def copy_value(value: Any) -> Any:
    """Return a copy of value that shares no dict, list, tuple or array with it; other objects are shared.

    Backends in this process pass infos to the user directly, others pickle them: later writes of an environment into
    its buffers must show in neither.
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        # Most are numbers: testing for them here costs a quarter of a call.
        return {key: item if type(item) in _UNCHANGING else copy_value(item) for key, item in value.items()}
    if type(value) is list:
        return [copy_value(item) for item in value]
    if type(value) is tuple:  # a named tuple is shared
        return tuple([copy_value(item) for item in value])
    return value


def add_episode(info: dict[str, Any], episode_return: float, length: int, start_s: float) -> None:
    """Add {"episode": {"r": return, "l": steps, "t": seconds since start_s}}, unless the environment has added one.

    start_s: perf_counter() at the episode's first row.
    """
    if "episode" not in info:
        info["episode"] = {"r": float(episode_return), "l": int(length), "t": float(perf_counter() - start_s)}
