"""A test of whether an environment's episodes depend on those that it played before: one is played a second time.

The first environment that begins its second episode records it. A new environment then plays the same seed, and the
records are compared.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pufferlib.util.annotations import Array

__all__ = ["MAX_STEPS", "HistoryError", "Trace", "difference"]

MAX_STEPS = 500  # of an episode that are recorded


class HistoryError(Exception):
    """Raised if an environment's episode depends on those that it played before. Its text says how."""


class Trace:
    """A record of one episode's rows and actions, as digests. Only the first MAX_STEPS steps are recorded."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.actions: list[bytes] = []

    @property
    def full(self) -> bool:
        """Whether further rows are ignored."""
        return len(self.rows) > MAX_STEPS

    def add_rows(self, *arrays: Array) -> None:
        """Add the rows that a reset or a step returned."""
        if not self.full:
            self.rows.append(_digest(arrays))

    def add_actions(self, actions: Any) -> None:
        """Add the actions for the last rows: an array, or a tuple of arrays."""
        if len(self.actions) < MAX_STEPS:
            self.actions.append(_digest(actions if isinstance(actions, tuple) else (actions,)))


def difference(first: Trace, second: Trace) -> tuple[str, int] | None:
    """Return what first differs between two traces of one seed, "rows" or "actions", and at which step.

    Returns None if nothing differs.
    """
    for step in range(max(len(first.rows), len(second.rows))):
        if first.rows[step : step + 1] != second.rows[step : step + 1]:
            return "rows", step
        if first.actions[step : step + 1] != second.actions[step : step + 1]:
            return "actions", step
    return None


def _digest(arrays: tuple[Array, ...]) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(array.tobytes())
    return digest.digest()
