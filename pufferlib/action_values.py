"""Which values an action may hold: discrete values inside their space, and numbers that are finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from pufferlib.errors import ActionError

__all__ = ["column_range", "discrete_range", "refuse_value", "refuse_values", "values_fit"]

Array = np.ndarray[Any, Any]
SHOWN = 8  # elements of an action that an error shows


def discrete_range(space: Space[Any]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a discrete space, each broadcastable to its shape; None for a Box."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(getattr(space, "start", 0))  # since gymnasium 1.0
        return start, start + space.nvec.astype(np.int64) - 1
    return (0, 1) if isinstance(space, spaces.MultiBinary) else None


def column_range(space: Space[Any], dtype: np.dtype[Any]) -> tuple[Array, Array] | None:
    """Return the same as two arrays of this dtype, 1-D: a value for each element of an action."""
    bounds = discrete_range(space)
    if bounds is None or space.shape is None:
        return None
    low, high = (np.array(np.broadcast_to(bound, space.shape), dtype).reshape(-1) for bound in bounds)
    return low, high


def values_fit(values: Array, space: Space[Any]) -> bool:
    """Return whether ``refuse_values`` would pass values, (rows, …) of a space's shape."""
    return _wrong(values, space) is None


def refuse_values(
    parts: Sequence[Array], action_spaces: Sequence[Space[Any]], env_ids: Sequence[int], agents_per_env: int
) -> None:
    """Raise ActionError for the first row that holds a value which no environment should be given.

    Those are discrete values outside of their space, and numbers that are not finite, or are not once they have the
    space's dtype. Finite values beyond the bounds of a Box pass.

    parts: one array (num_envs, agents_per_env, \\*space.shape) for each space, of any numeric dtype.
    """
    for part, space in zip(parts, action_spaces, strict=True):
        wrong = _wrong(part, space)
        if wrong is None:
            continue
        env_index, agent = (int(index) for index in np.argwhere(wrong)[0][:2])
        whose = f"environment {env_ids[env_index]}" + (f", agent {agent}" if agents_per_env > 1 else "")
        _refuse(part[env_index, agent], space, f" of row {env_index * agents_per_env + agent} ({whose})")


def refuse_value(part: Any, space: Space[Any], whose: str = "") -> None:
    """Raise ActionError for one action that ``refuse_values`` would refuse. whose: " of agent 'a'", for the error."""
    if isinstance(space, spaces.Discrete) and isinstance(part, (int, np.integer)):
        if 0 <= int(part) - int(space.start) < int(space.n):  # in a tenth of the time
            return
    if _wrong(np.asarray(part), space) is not None:
        _refuse(part, space, whose)


def _wrong(values: Array, space: Space[Any]) -> Array | None:
    """Return where values are wrong, as bools of their shape; None where none is."""
    bounds = discrete_range(space)
    if bounds is not None:
        wrong = (values < bounds[0]) | (values > bounds[1])
    elif np.issubdtype(space.dtype, np.floating):
        with np.errstate(over="ignore"):
            wrong = ~np.isfinite(values.astype(space.dtype, copy=False))
    elif values.dtype == space.dtype:
        return None
    else:
        holds = np.iinfo(space.dtype)
        wrong = (values < holds.min) | (values > holds.max)
    return wrong if wrong.any() else None


def _refuse(action: Any, space: Space[Any], whose: str) -> None:
    """Raise ActionError for an action."""
    values = np.asarray(action)
    wrong = _wrong(values, space)
    assert wrong is not None
    where = np.unravel_index(int(np.argmax(wrong)), values.shape)
    element = f": element {', '.join(map(str, where))} is {values[where]}" if values.ndim else ""
    shown = f" {values.tolist()}" if values.size <= SHOWN else ""
    raise ActionError(f"action{shown}{whose} is not in {space}{element}; {_way_out(space, where)}")


def _way_out(space: Space[Any], where: tuple[Any, ...]) -> str:
    bounds = discrete_range(space)
    if bounds is not None:
        low, high = (int(np.broadcast_to(bound, space.shape or ())[where]) for bound in bounds)
        return f"use {low} to {high}"
    if np.issubdtype(space.dtype, np.integer):
        return f"use values that {space.dtype} holds"
    return "use finite numbers: a NaN or an infinity often comes from the learner's network or its loss"
