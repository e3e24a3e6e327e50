"""States: whether each environment waits for an action, or is in flight."""

from __future__ import annotations

from typing import Any

import numpy as np

from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.call_errors import NEW

__all__ = ["Ids", "States"]

Ids = range | Array  # of environments: neighbours, or any


class States:
    """The state of each environment: NEW, WAITING or FLYING. If all are the same, reading and setting cost little.

    all: the state of all, or None if they differ.
    """

    def __init__(self, num_envs: int) -> None:
        self.all: int | None = NEW
        self._states = np.full(num_envs, NEW, np.int8)

    def of(self, ids: Ids) -> Array:
        """Return the states of environments: a view or a copy, which the caller does not change."""
        self._expand()
        states: Array = self._states[_indices(ids)]
        return states

    def where(self, state: int) -> Array:
        """Return the environments that are in a state."""
        self._expand()
        return np.flatnonzero(self._states == state)

    def set(self, ids: Ids, state: int) -> None:
        """Set the state of environments."""
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
