"""A difference between what was recorded and what is now, and how values that differ are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["UNKNOWN", "Difference", "leaf_text", "told_apart"]

Array = np.ndarray[Any, Any]

SHORT = 8  # elements of an array that are written out
UNKNOWN = "not kept"


@dataclass(frozen=True)
class Difference:
    """The first thing that is not as recorded.

    env_id, step: the environment, and its own step: 0 is its first reset, n what its n-th action led to. Both are None
    where it is about the spaces. place: the agent's, None where there is one, or it is about all.
    field: "observation", or "observation.PATH" of one leaf; "reward", "terminated", "truncated", "mask"; "episode",
    whose return and length are told at its end; "error". recorded, now: the values, as text; "not kept" where a file
    has hashes only. also: the other fields that differ in the same step. episode: the environment's episode, counted
    from 1, and the step in it; None in the first. traceback: of an exception.
    """

    env_id: int | None
    step: int | None
    place: int | None
    field: str
    recorded: str
    now: str
    also: tuple[str, ...] = ()
    episode: tuple[int, int] | None = None
    traceback: str = ""

    @property
    def order(self) -> tuple[int, int]:
        """Differences are in order of step, then of environment."""
        return (-1 if self.step is None else self.step, -1 if self.env_id is None else self.env_id)

    @property
    def where(self) -> str:
        """Environment, step and field, in words."""
        if self.step is None:
            return self.field
        agent = "" if self.place is None else f", agent {self.place}"
        if self.step == 0:
            step = "first reset"
        elif self.episode is None:
            step = f"step {self.step:,}"
        elif self.episode[1] == 0:
            step = f"step {self.step:,} (reset to episode {self.episode[0]:,})"
        else:
            step = f"step {self.step:,} (episode {self.episode[0]:,}, step {self.episode[1]:,})"
        return f"environment {self.env_id}{agent}, {step}: {self.field}"

    def __str__(self) -> str:
        also = f" (and {', '.join(self.also)})" if self.also else ""
        return f"{self.where}{also}\n  recorded: {self.recorded}\n  now:      {self.now}"


def leaf_text(leaf: Any, recorded: Array | None, now: Array) -> tuple[str, str]:
    """Return both values of one leaf of a row; of a large one where it first differs.

    leaf: of a Layout. recorded: the row as it was, None if it was not kept.
    """
    is_now = _leaf_of(leaf, now)
    if recorded is None:
        return UNKNOWN, array_text(is_now)
    then = _leaf_of(leaf, recorded)
    if then.size <= SHORT:
        return told_apart(then, is_now)
    differs = [one.tobytes() != other.tobytes() for one, other in zip(then.ravel(), is_now.ravel(), strict=True)]
    first = differs.index(True)
    index = tuple(int(place) for place in np.unravel_index(first, then.shape))
    texts = told_apart(then[index], is_now[index])
    return f"{texts[0]} at {list(index)}", f"{texts[1]}; {sum(differs):,} of {then.size:,} elements differ"


def told_apart(recorded: Any, now: Any) -> tuple[str, str]:
    """Return two values that differ as texts that do, too: all NaNs read alike."""
    texts = array_text(np.asarray(recorded)), array_text(np.asarray(now))
    if texts[0] == texts[1]:
        return f"{texts[0]} (bytes {recorded.tobytes().hex()})", f"{texts[1]} (bytes {now.tobytes().hex()})"
    return texts


def array_text(array: Array) -> str:
    """Return an array in one line, its numbers in full, of a large one the ends."""
    if array.ndim == 0:
        return str(array[()])
    with np.printoptions(floatmode="unique", threshold=SHORT, edgeitems=3, linewidth=10**6):
        text = np.array2string(array, separator=", ")
    return " ".join(text.split()).replace(" ,", ",").replace(" ]", "]").replace("[ ", "[")


def _leaf_of(leaf: Any, row: Array) -> Array:
    nbytes = np.asarray(row).tobytes()[leaf.offset : leaf.offset + leaf.nbytes]
    return np.frombuffer(nbytes, leaf.dtype).reshape(leaf.shape)
