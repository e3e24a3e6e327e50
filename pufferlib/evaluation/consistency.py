"""A test of whether an environment's episodes depend on those that it played before: two are played a second time.

Recorded are the second episode of the environment that is the first to begin one, and the last episode of the
environment that has played most. New environments then play the same seeds, and the records are compared.
``HistoryCheck`` is the test; each of its two Comparisons is about one episode.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from pufferlib.util.annotations import Array
from pufferlib.vectorization import Batch
from pufferlib.vectorization.core.tensors import as_numpy

__all__ = ["MAX_STEPS", "NONE", "Comparison", "HistoryCheck", "HistoryError", "Trace", "difference"]

MAX_STEPS = 500  # of an episode that are recorded
NONE = -1  # in place of an episode's index


class HistoryError(Exception):
    """Raised if an environment's episode depends on those that it played before.

    episode: its index. step: the first step with other rows. num_before: how many the environment had played before it.
    """

    def __init__(self, episode: int, step: int, num_before: int) -> None:
        super().__init__(episode, step, num_before)
        self.episode, self.step, self.num_before = episode, step, num_before


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

    def traced(self) -> list[tuple[int, Trace]]:
        """Return the slots of the episodes that are being played, with their traces."""
        slots = self.recording, self.replaying
        return [(slot, trace) for slot, trace in zip(slots, self._traces, strict=True) if slot is not None]

    @property
    def is_replayed(self) -> bool:
        """Whether the episode is being played again, and all that is compared has been played."""
        return self.replaying is not None and self._traces[1].full

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

    def finish(self, slot: int) -> bool:
        """Record that the episode in a slot has ended; return whether it was the one that is played again.

        Raises HistoryError once both have ended, if their rows differ.
        """
        replayed = slot == self.replaying
        if replayed:
            self.replaying = None
        elif slot == self.recording:
            self.recording = None
        else:
            return False
        first, second = self._traces
        complete = self.begun and self.recording is self.replaying is None and first.rows and second.rows
        parting = difference(first, second) if complete else None
        if parting is not None and parting[0] == "rows":
            raise HistoryError(self.episode, parting[1], self.num_before)
        return replayed


class HistoryCheck:
    """The test, as an evaluation proceeds. enabled: False for a test that does nothing.

    A slot is an environment of the VecEnv. num_agents: its rows.
    """

    def __init__(self, num_agents: int, *, enabled: bool) -> None:
        self._num_agents = num_agents
        self._second, self._last = Comparison(), Comparison()  # of the environments' second and last episodes
        self._comparisons = (self._second, self._last) if enabled else ()

    @property
    def replaying(self) -> list[int]:
        """The slots in which an episode is played again."""
        return [slot for comparison in self._comparisons if (slot := comparison.replaying) is not None]

    @property
    def replayed(self) -> list[int]:
        """Those of them that have played all that is compared."""
        comparisons = [comparison for comparison in self._comparisons if comparison.is_replayed]
        return [slot for comparison in comparisons if (slot := comparison.replaying) is not None]

    def begin(self, slot: int, episode: int, num_before: int) -> None:
        """Record a slot's next episode if it is an environment's second one, or the last one as far as is known.

        num_before: how many episodes the environment has begun before.
        """
        if not self._comparisons or not num_before:
            return
        if self._second.episode == NONE:
            self._second.record(slot, episode, num_before)
        elif num_before >= max(2, self._last.num_before) and not self._last.begun:
            self._last.record(slot, episode, num_before)

    def replay(self, slot: int, *, at_end: bool) -> int | None:
        """Begin to play an episode again in a free slot, if one is due; return its index, or None.

        The last episode is due ``at_end``, when no other is left to begin; it may still be played elsewhere.
        """
        for comparison in self._comparisons:
            early = comparison is self._second and comparison.recording is None
            if comparison.episode != NONE and not comparison.begun and (early or at_end):
                comparison.replay(slot)
                return comparison.episode
        return None

    def drop(self, slot: int) -> bool:
        """Record that the episode in a slot failed; return whether it was one that is played again, which is over."""
        return True in [comparison.drop(slot) for comparison in self._comparisons]

    def finish(self, slot: int) -> bool:
        """Record that the episode in a slot has ended; return whether it was one that is played again.

        Raises HistoryError if an episode was another one when it was played again.
        """
        return True in [comparison.finish(slot) for comparison in self._comparisons]

    def add_batch(self, batch: Batch) -> None:
        """Record a batch's rows."""
        traced = [(slot, trace) for slot, trace in self._traced() if not trace.full]
        slots = batch.env_ids.tolist() if traced else []
        for slot, trace in traced:
            if slot in slots:
                columns = batch.observations, batch.rewards, batch.terminations, batch.truncations, batch.masks
                position = slots.index(slot)
                trace.add_rows(*(self._rows_of(column, position) for column in columns))

    def add_actions(self, slots: Array, actions: Any) -> None:
        """Record the actions for these slots, int64 (number,)."""
        for slot, trace in self._traced():
            for position in np.flatnonzero(slots == slot).tolist():
                trace.add_actions(self._rows_of(actions, position))

    def _traced(self) -> list[tuple[int, Trace]]:
        return [item for comparison in self._comparisons for item in comparison.traced()]

    def _rows_of(self, values: Any, position: int) -> Any:
        """Return the rows of one environment of an array or tensor, or of a tuple of these."""
        rows, values = slice(position * self._num_agents, (position + 1) * self._num_agents), as_numpy(values)
        if isinstance(values, tuple):
            return tuple(np.asarray(part)[rows] for part in values)
        return np.asarray(values)[rows]


def _digest(arrays: tuple[Array, ...]) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(array.tobytes())
    return digest.digest()
