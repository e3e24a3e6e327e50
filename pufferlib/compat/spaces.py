"""PufferLib's ``spaces``: classes of spaces for ``isinstance``, and the joint space of several agents."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

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
    MultiBinary: a Box of shape (n, \\*shape). Raises ValueError for any other space.
    """
    if not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)):
        raise ValueError(f"joint_space takes a Discrete, MultiDiscrete, MultiBinary or Box space, got {space}")
    joint: gymnasium.Space[Any] = batch_space(space, n)
    return joint
