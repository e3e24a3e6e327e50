"""Infos on their way out: copies that are given away, with the episode entries that Gymnasium's recorder would add."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

__all__ = ["add_episode", "own"]

_UNCHANGING = frozenset({float, int, bool, str, bytes, type(None), np.float64, np.float32, np.int64, np.bool_})


def own(value: Any) -> Any:
    """Return a copy of value in which no dict, list, tuple or array is shared; other objects are kept as they are.

    A backend within the process hands infos to the user as they are, one across processes pickles them: what an
    environment later writes into its own buffers must show in neither.
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        # Most are numbers: to look for them here takes a quarter of a call.
        return {key: item if type(item) in _UNCHANGING else own(item) for key, item in value.items()}
    if type(value) is list:
        return [own(item) for item in value]
    if type(value) is tuple:  # a named tuple stays what it is
        return tuple([own(item) for item in value])
    return value


def add_episode(info: dict[str, Any], episode_return: float, length: int, start_s: float) -> None:
    """Add {"episode": {"r": return, "l": steps, "t": seconds since start_s}}, unless the environment supplied its own.

    start_s: perf_counter() at the episode's first row.
    """
    if "episode" not in info:
        info["episode"] = {"r": float(episode_return), "l": int(length), "t": float(perf_counter() - start_s)}
