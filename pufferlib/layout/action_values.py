"""Checks of the shape, dtype and values of actions.

Discrete values must be in their space. Other values must be finite and fit the space's dtype, but may exceed its
bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from pufferlib import _native
from pufferlib.errors import ActionError
from pufferlib.util.annotations import Array

__all__ = ["ActionValues", "checked_actions", "dtype_error", "shape_error", "unreadable_error"]

MOST_PRINTED = 8  # the most elements of an action that an error prints


class ActionValues:
    """A check of the values of actions. space: the space of one action: Discrete, MultiDiscrete, MultiBinary or Box.

    A discrete value must be in its space. A value of a float Box must be finite, also after a cast to the space's
    dtype, but may exceed the bounds. A value of an integer Box must fit the space's dtype, and may exceed the bounds.
    """

    check: Any  # the compiled ``fit``, a ``_native.pack.ValueCheck``; None if not available

    def __init__(self, space: Space[Any]) -> None:
        self.space = space
        self._shape = space.shape or ()
        self._dtype = np.dtype(space.dtype)
        self._low: Any = None  # the least value, a scalar or one per element; None for a Box
        self._high: Any = None
        low: Array | None = None
        high: Array | None = None
        if isinstance(space, spaces.Discrete):
            self._low, self._high = int(space.start), int(space.start) + int(space.n) - 1
        elif isinstance(space, spaces.MultiDiscrete):
            self._low = np.asarray(getattr(space, "start", 0))  # since gymnasium 1.0
            self._high = self._low + space.nvec.astype(np.int64) - 1
        elif isinstance(space, spaces.MultiBinary):
            self._low, self._high = 0, 1
        if self._low is not None:
            low, high = (np.full(self._shape, bound, self._dtype).reshape(-1) for bound in (self._low, self._high))
        self.check = None
        if _native.available:
            try:
                self.check = _native.pack.ValueCheck(self._dtype, self._shape, low, high)
            except TypeError:  # a dtype that the compiled check lacks
                pass

    def fit(self, values: Array) -> bool:
        """Return whether all values are valid. values: any number of actions, (…, \\*space.shape)."""
        return (self.check is not None and self.check.fit(values)) or self._wrong(values) is None

    def refuse(self, values: Array, env_ids: Sequence[int]) -> None:
        """Raise ActionError for the first row with an invalid value, if any.

        values: (len(env_ids), agents, \\*space.shape). env_ids: the environments' indices, for the message.
        """
        if self.fit(values):
            return
        wrong = self._wrong(values)
        assert wrong is not None
        env_index, agent = (int(index) for index in np.argwhere(wrong)[0][:2])
        num_agents = values.shape[1]
        whose = f"environment {env_ids[env_index]}" + (f", agent {agent}" if num_agents > 1 else "")
        self.refuse_one(values[env_index, agent], f" of row {env_index * num_agents + agent} ({whose})")

    def refuse_one(self, action: Any, whose: str = "") -> None:
        """Raise ActionError if one action has an invalid value. whose: text that follows the action in the message."""
        values = np.asarray(action)
        if self.fit(values):
            return
        wrong = self._wrong(values)
        assert wrong is not None
        where = np.unravel_index(int(np.argmax(wrong)), values.shape)
        element = f": element {', '.join(map(str, where))} is {values[where]}" if values.ndim else ""
        printed = f" {values.tolist()}" if values.size <= MOST_PRINTED else ""
        raise ActionError(f"action{printed}{whose} is not in {self.space}{element}; {self._way_out(where)}")

    def _wrong(self, values: Array) -> Array | None:
        """Return a bool mask of the invalid values, with the shape of values; None if all are valid."""
        if self._low is not None:
            wrong = (values < self._low) | (values > self._high)
        elif self._dtype.kind == "f":
            with np.errstate(over="ignore"):
                wrong = ~np.isfinite(values.astype(self._dtype, copy=False))
        elif values.dtype == self._dtype:
            return None
        else:
            least, most = self._dtype_range()
            wrong = (values < least) | (values > most)
        return wrong if wrong.any() else None

    def _dtype_range(self) -> tuple[int, int]:
        """Return the least and the greatest value of the dtype of an integer or bool Box."""
        if self._dtype.kind == "b":
            return 0, 1
        limits = np.iinfo(self._dtype)
        return int(limits.min), int(limits.max)

    def _way_out(self, where: tuple[Any, ...]) -> str:
        if self._low is not None:
            low, high = (int(np.broadcast_to(bound, self._shape)[where]) for bound in (self._low, self._high))
            return f"use {low} to {high}"
        if self._dtype.kind == "f":
            return "use finite numbers: a NaN or an infinity often comes from the learner's network or its loss"
        return f"use values that {self._dtype} holds"


def checked_actions(
    actions: object, values: Sequence[ActionValues], env_ids: Sequence[int], agents_per_env: int
) -> list[Array]:
    """Check actions, and return one array for each component of the action space.

    Each array has the shape (len(env_ids), agents_per_env, …). values: one check per component. env_ids: the
    environments that the actions are for, in the order of the actions. Raises ActionError for dicts, for values that
    cannot be converted to arrays, and for a wrong number of components, shape, dtype or value.
    """
    num_envs, spaces = len(env_ids), [column.space for column in values]
    if isinstance(actions, Mapping) or (
        isinstance(actions, (list, tuple)) and isinstance(next(iter(actions), None), Mapping)
    ):
        raise ActionError("actions are arrays of rows, not dicts; vec.action_layout.flatten(action) converts a dict")
    if len(spaces) == 1:
        parts: Sequence[object] = (actions,)
    elif isinstance(actions, (tuple, list)) and len(actions) == len(spaces):
        parts = actions
    else:
        raise ActionError(f"actions for {list(spaces)} must be a tuple of {len(spaces)} arrays, one for each space")
    checked = []
    for part, space in zip(parts, spaces, strict=True):
        try:
            array = np.asarray(part)
            if array.dtype.hasobject:  # what NumPy 1.23 makes of ragged lists; later ones raise
                raise ValueError("it holds objects, or rows of different lengths")
        except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors on a GPU or with gradients
            raise unreadable_error("actions", error) from error
        shape = (num_envs * agents_per_env, *(space.shape or ()))
        if array.shape != shape:
            raise shape_error("actions", array.shape, shape, agents_per_env, num_envs)
        if not np.can_cast(array.dtype, space.dtype, "same_kind"):  # type: ignore[arg-type]
            raise dtype_error("actions", array.dtype, space.dtype)
        checked.append(array.reshape(num_envs, agents_per_env, *(space.shape or ())))
    for array, column in zip(checked, values, strict=True):
        column.refuse(array, env_ids)
    return checked


def unreadable_error(name: str, error: Exception) -> ActionError:
    """Return the error for values that cannot be converted to an array. name: the argument's name."""
    return ActionError(f"{name} cannot be read as an array: {error}")


def shape_error(
    name: str, shape: Sequence[int], expected: Sequence[int], agents_per_env: int, num_envs: int, columns: str = ""
) -> ActionError:
    """Return the error for rows of the wrong shape.

    name: the argument's name. shape, expected: the actual and the expected shape. columns: text at the end of the
    message that describes the contents of a row.
    """
    return ActionError(
        f"{name} have shape {tuple(shape)}, expected {tuple(expected)}: {agents_per_env} row(s) for each of "
        f"{num_envs} environments{columns}"
    )


def dtype_error(name: str, dtype: object, expected: object) -> ActionError:
    """Return the error for values of the wrong dtype. name: the argument's name."""
    return ActionError(f"{name} have dtype {dtype}, expected {expected}; convert them")
