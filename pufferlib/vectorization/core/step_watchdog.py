"""StepWatchdog: steps and resets that take too long, seen from outside while the parent waits for them.

Each worker says in a word of shared memory what it is in the middle of, another value each time: 0 for nothing, else
``2 * (1 + n * num_envs + env_id)`` with any n, and 1 more for a reset; STARTING as long as it cannot. Nobody reads a
clock for that. Whoever waits looks at the words: one that stays the same for longer than allowed belongs to a step that
does not return. What a step waits for behind others does not count, and of the time that the learner spends elsewhere
only a little at a time: one pause, however long, is never what a step has taken too long for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["STARTING", "Doing", "Limits", "StepWatchdog", "doing_of", "word_of"]

STARTING = -1
SLICES = 8  # looks within the shortest limit


class Limits(NamedTuple):
    """How many seconds a step and a reset may take; None for any number."""

    step_timeout: float | None = None
    reset_timeout: float | None = None


class Doing(NamedTuple):
    """What a worker is, or was, in the middle of."""

    env_id: int
    is_reset: bool

    @property
    def phase(self) -> str:
        """ "reset" or "step"."""
        return "reset" if self.is_reset else "step"


def word_of(number: int, env_id: int, num_envs: int, *, is_reset: bool) -> int:
    """Return the word for the worker's n-th step or reset."""
    return 2 * (1 + number * num_envs + env_id) + is_reset


def doing_of(word: int, num_envs: int) -> Doing | None:
    """Return what a word means; None for nothing."""
    return Doing(((word >> 1) - 1) % num_envs, bool(word & 1)) if word > 0 else None


class StepWatchdog:
    """Adds up how long each worker's step takes.

    words: of each worker. first_env: what the first environment is called. slice_s: how long a wait may last before the
    next ``look``; None if nobody minds.
    """

    def __init__(self, words: Any, num_envs: int, limits: Limits, first_env: int = 0) -> None:
        self._words, self._num_envs, self._limits, self._first_env = words, num_envs, limits, first_env
        self._seen: list[Any] = [None] * len(words)
        self._taken_s = [0.0] * len(words)
        self._looked_s = -math.inf
        given = [limit for limit in limits if limit is not None]
        self.slice_s: float | None = min(0.1, min(given) / SLICES) if given else None

    def look(self, asked: Callable[[int], Any]) -> Sequence[tuple[int, str]]:
        """Return the workers whose step or reset has taken too long, and what is to be said of it.

        asked: returns what a worker was asked for and has not taken up, something else each time; None for nothing. One
        that was stopped while it did nothing does not take up anything.
        """
        if self.slice_s is None:
            return ()
        now_s = time.monotonic()
        passed_s = min(now_s - self._looked_s, 2 * self.slice_s)  # a parent that was elsewhere, or stopped, counts less
        if passed_s < self.slice_s / 2:
            return ()
        self._looked_s = now_s
        late = []
        for worker, word in enumerate(self._words.tolist()):
            seen = asked(worker) if word == 0 else word
            if seen is None or word == STARTING or seen != self._seen[worker]:
                self._seen[worker], self._taken_s[worker] = seen, 0.0
                continue
            self._taken_s[worker] += passed_s
            doing = doing_of(word, self._num_envs)
            which, phase = "what it was to do next", "step" if self._limits.step_timeout else "reset"
            if doing is not None:
                which, phase = f"the {doing.phase} of environment {self._first_env + doing.env_id}", doing.phase
            limit = self._limits[phase == "reset"]
            if limit is not None and self._taken_s[worker] > limit:
                self._taken_s[worker] = 0.0
                late.append((worker, f"{which} took longer than {phase}_timeout={limit:g} s"))
        return late
