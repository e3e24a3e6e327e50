"""PufferLib's ``spaces``: classes of spaces for ``isinstance``, and the joint space of several agents."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Box", "Dict", "Discrete", "MultiBinary", "MultiDiscrete", "Tuple", "joint_space"]


def _classes(name: str) -> tuple[type, ...]:
    """Return the classes of spaces with this name: Gymnasium's, and that of old gym if the program has imported it."""
    old = getattr(sys.modules.get("gym.spaces"), name, None)
    return (getattr(spaces, name),) if old is None else (old, getattr(spaces, name))


Box, Dict, Discrete = _classes("Box"), _classes("Dict"), _classes("Discrete")
MultiBinary, MultiDiscrete, Tuple = _classes("MultiBinary"), _classes("MultiDiscrete"), _classes("Tuple")


def joint_space(space: gymnasium.Space[Any], n: int) -> gymnasium.Space[Any]:
    """Return the space of ``n`` agents' values, one row each.

    Discrete: a MultiDiscrete of shape (n,). MultiDiscrete: a Box of shape (n, k). Box: a Box of shape (n, \\*shape).
    Raises ValueError for any other space.
    """
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        if start:
            return spaces.Box(start, start + int(space.n) - 1, (n,), np.int64)
        return spaces.MultiDiscrete([int(space.n)] * n)
    if isinstance(space, spaces.MultiDiscrete):
        high = np.broadcast_to(space.nvec - 1, (n, *space.nvec.shape))
        return spaces.Box(np.zeros_like(high), high, dtype=space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return spaces.Box(0, 1, (n, *space.shape), np.int8)
    if isinstance(space, spaces.Box):
        low, high = (np.broadcast_to(bound, (n, *space.shape)).copy() for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype)
    raise ValueError(f"joint_space takes a Discrete, MultiDiscrete, MultiBinary or Box space, got {space}")
