"""StepWatchdog: time limits for steps and resets, checked by the parent while it waits for their results.

Each worker writes its current activity to a word of shared memory. The word is 0 while the worker is idle, and STARTING
until the worker can write. For a step it is ``2 * (1 + n * num_ids + env_id)``, and for a reset 1 more; n is a number
that makes each word differ from the previous one. Workers need no clock for this.

The waiting thread looks at the words: a word that stays the same for longer than its limit belongs to a step or reset
that takes too long. Time that a step spends queued behind other steps does not count. Of the time between two looks,
only a bounded part counts, so that one pause of the learner outside ``recv``, however long, never makes a step late.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pufferlib.util.annotations import Array

__all__ = ["STARTING", "Doing", "Limits", "StepWatchdog", "doing_of", "word_of"]

STARTING = -1
SLICES = 8  # looks within the shortest limit


class Limits(NamedTuple):
    """The time limits of a step and a reset, in seconds; None for no limit."""

    step_timeout: float | None = None
    reset_timeout: float | None = None


class Doing(NamedTuple):
    """The step or reset that a worker is executing."""

    env_id: int
    is_reset: bool

    @property
    def phase(self) -> str:
        """The name of the activity: "reset" or "step"."""
        return "reset" if self.is_reset else "step"


def word_of(number: int, env_id: int, num_ids: int, *, is_reset: bool) -> int:
    """Return a worker's activity word for a step or reset. number: the n of the module's docstring."""
    return 2 * (1 + number * num_ids + env_id) + is_reset


def doing_of(word: int, num_ids: int) -> Doing | None:
    """Return the activity that a word encodes, or None if it encodes none."""
    return Doing(((word >> 1) - 1) % num_ids, bool(word & 1)) if word > 0 else None


class StepWatchdog:
    """A watchdog that measures the time each worker has spent in its current step or reset.

    words: the activity words, one per worker. num_ids: as for SlabShape. Attribute slice_s: the longest time that the
    caller may wait before the next ``look``, in seconds; None if there are no limits.
    """

    def __init__(self, words: Array, num_ids: int, limits: Limits) -> None:
        self._words, self._num_ids, self._limits = words, num_ids, limits
        self._seen: list[object] = [None] * len(words)
        self._taken_s = [0.0] * len(words)
        self._looked_s = -math.inf
        seconds = [limit for limit in limits if limit is not None]
        self.slice_s: float | None = min(0.1, min(seconds) / SLICES) if seconds else None

    def look(self, pending: Callable[[int], object]) -> Sequence[tuple[int, str]]:
        """Return the workers whose step or reset has taken too long, each with a description for the error.

        If less than half of ``slice_s`` has passed since the previous check, nothing is checked. pending: a function
        that is called with the number of an idle worker. It returns a value that identifies a request which the worker
        may not have begun, or None if there is no such request. With this, the watchdog also detects a worker process
        that was stopped while it was idle, and so never begins its next request.
        """
        assert self.slice_s is not None, "nothing is limited"
        now_s = time.monotonic()
        passed_s = min(now_s - self._looked_s, 2 * self.slice_s)  # less if the parent was busy or stopped
        if passed_s < self.slice_s / 2:
            return ()
        self._looked_s = now_s
        late = []
        for worker, word in enumerate(self._words.tolist()):
            seen = pending(worker) if word == 0 else word
            if seen is None or word == STARTING or seen != self._seen[worker]:
                self._seen[worker], self._taken_s[worker] = seen, 0.0
                continue
            self._taken_s[worker] += passed_s
            doing = doing_of(word, self._num_ids)
            which, phase = "its next request", "step" if self._limits.step_timeout else "reset"
            if doing is not None:
                which, phase = f"the {doing.phase} of environment {doing.env_id}", doing.phase
            limit = self._limits[phase == "reset"]
            if limit is not None and self._taken_s[worker] > limit:
                self._taken_s[worker] = 0.0
                late.append((worker, f"{which} took longer than {phase}_timeout={limit:g} s"))
        return late
