"""The state of each environment: never reset, waiting for an action, or in flight."""

from __future__ import annotations

from typing import Any

import numpy as np

from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.call_errors import NEW

__all__ = ["Ids", "States"]

Ids = range | Array  # env ids: consecutive ones, or any


class States:
    """The state of each environment: NEW, WAITING or FLYING. Reading and setting are cheap while all states are equal.

    all: the state of all environments, or None if they may differ.
    """

    def __init__(self, num_envs: int) -> None:
        self.all: int | None = NEW
        self._states = np.full(num_envs, NEW, np.int8)

    def of(self, ids: Ids) -> Array:
        """Return the states of these environments, as a view or a copy that the caller must not modify."""
        self._expand()
        states: Array = self._states[_indices(ids)]
        return states

    def where(self, state: int) -> Array:
        """Return the ids of the environments in a state."""
        self._expand()
        return np.flatnonzero(self._states == state)

    def set(self, ids: Ids, state: int) -> None:
        """Set the state of these environments."""
        if len(ids) == len(self._states):
            self.all = state
        else:
            self._expand()
            self.all = None
            self._states[_indices(ids)] = state

    def _expand(self) -> None:
        if self.all is not None:
            self._states[:] = self.all


def _indices(ids: Ids) -> Any:
    return slice(ids.start, ids.stop) if isinstance(ids, range) else ids
