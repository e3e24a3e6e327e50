"""A test of whether an environment's episodes depend on those that it played before: two are played a second time.

Recorded are the second episode of the environment that is the first to begin one, and the last episode of the
environment that has played most. New environments then play the same seeds, and the records are compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from pufferlib.util.annotations import Array

__all__ = ["MAX_STEPS", "Comparison", "HistoryError", "Trace", "difference"]

MAX_STEPS = 500  # of an episode that are recorded
NONE = -1  # in place of an episode's index


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


class Comparison:
    """An episode that is recorded where it is played, and played again in a new environment.

    episode: the recorded episode's index; -1 for none yet. num_before: how many episodes the environment had begun
    before it. recording, replaying: the slots in which the two are played; None before and after. begun: whether the
    second has begun.
    """

    def __init__(self) -> None:
        self.episode, self.num_before, self.begun = NONE, 0, False
        self.recording: int | None = None
        self.replaying: int | None = None
        self._traces = Trace(), Trace()

    def clear(self) -> None:
        """Forget the recorded episode, so that another can be recorded."""
        self.episode, self.num_before, self.recording = NONE, 0, None
        self._traces = Trace(), Trace()

    def record(self, slot: int, episode: int, num_before: int) -> None:
        """Begin to record an episode, in place of any other."""
        self.clear()
        self.recording, self.episode, self.num_before = slot, episode, num_before

    def replay(self, slot: int) -> None:
        """Begin to play the recorded episode again."""
        self.replaying, self.begun = slot, True

    def traced(self) -> Iterator[tuple[int, Trace]]:
        """Yield the slots of the episodes that are being played, with their traces."""
        for slot, trace in zip((self.recording, self.replaying), self._traces, strict=True):
            if slot is not None:
                yield slot, trace

    def is_replayed_enough(self, slot: int) -> bool:
        """Return whether a slot plays the episode again, and has played all that is compared."""
        return slot == self.replaying and self._traces[1].full

    def drop(self, slot: int) -> bool:
        """Give up the comparison if the episode in a slot failed; return whether it was the one that is played again.

        The recorded episode may be replaced by another one if it has not been played again yet.
        """
        if slot == self.replaying:
            self.replaying, self._traces = None, (Trace(), Trace())
            return True
        if slot == self.recording:
            episode = self.episode
            self.clear()
            if self.begun:
                self.episode = episode
        return False

    def finish(self, slot: int) -> tuple[bool, int | None]:
        """Record that the episode in a slot has ended.

        Returns whether it was the one that is played again, and, once both have ended, the step from which on their
        rows differ, or None.
        """
        replayed = slot == self.replaying
        if replayed:
            self.replaying = None
        elif slot == self.recording:
            self.recording = None
        else:
            return False, None
        first, second = self._traces
        complete = self.begun and self.recording is self.replaying is None and first.rows and second.rows
        parting = difference(first, second) if complete else None
        return replayed, parting[1] if parting is not None and parting[0] == "rows" else None


def _digest(arrays: tuple[Array, ...]) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(array.tobytes())
    return digest.digest()
