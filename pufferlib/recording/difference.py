"""The first difference between a recording and its replay, and the formatting of values that differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pufferlib.util.annotations import Array

__all__ = ["UNKNOWN", "Difference", "leaf_text", "value_texts"]


SHORT = 8  # the most elements of an array that are written in full
UNKNOWN = "not kept"


@dataclass(frozen=True)
class Difference:
    """The first difference between a recording and its replay.

    env_id, step: the environment, and its step that differs (0 for the first reset, n for the n-th step). Both are None
    if the spaces or the numbers of agents differ. place: the agent's index; None if there is only one agent or the
    difference concerns all agents. field: "observation", or "observation.PATH" for one leaf; "reward", "terminated",
    "truncated", "mask"; "episode", the return and length reported at an episode's end; "error"; or, if env_id is None,
    what differs, such as "action space". recorded, now: the recorded and the replayed value as text; recorded is "not
    kept" if the recording has only a hash. also: the other fields that differ in the same step. episode: the number of
    the environment's episode, counted from 1, and the step within it; None in the first episode. traceback: the
    traceback of an exception in the replay, else "".
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
        """The sort key of differences: the step, then the environment."""
        return (-1 if self.step is None else self.step, -1 if self.env_id is None else self.env_id)

    @property
    def where(self) -> str:
        """The environment, agent, step and field as text; only the field if ``step`` is None."""
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
    """Format the recorded and the current value of a leaf as two texts.

    For a leaf of more than SHORT elements, the texts show only the first element that differs, and how many differ.
    leaf: a leaf of a Layout. recorded: the recorded row, or None if only its hash was stored; in that case, the first
    text is UNKNOWN, and the second is the ``array_text`` of the current value. now: the current row.
    """
    current = _leaf_of(leaf, now)
    if recorded is None:
        return UNKNOWN, array_text(current)
    original = _leaf_of(leaf, recorded)
    if original.size <= SHORT:
        return value_texts(original, current)
    differs = [one.tobytes() != other.tobytes() for one, other in zip(original.ravel(), current.ravel(), strict=True)]
    first = differs.index(True)
    index = tuple(int(coordinate) for coordinate in np.unravel_index(first, original.shape))
    texts = value_texts(original[index], current[index])
    return f"{texts[0]} at {list(index)}", f"{texts[1]}; {sum(differs):,} of {original.size:,} elements differ"


def value_texts(recorded: Any, now: Any) -> tuple[str, str]:
    """Format two different NumPy values as texts; if the texts are equal, as for two NaNs, append the bytes."""
    texts = array_text(np.asarray(recorded)), array_text(np.asarray(now))
    if texts[0] == texts[1]:
        return f"{texts[0]} (bytes {recorded.tobytes().hex()})", f"{texts[1]} (bytes {now.tobytes().hex()})"
    return texts


def array_text(array: Array) -> str:
    """Format an array on one line with all digits; show only the ends of a large array."""
    if array.ndim == 0:
        return str(array[()])
    with np.printoptions(floatmode="unique", threshold=SHORT, edgeitems=3, linewidth=10**6):
        text = np.array2string(array, separator=", ")
    return " ".join(text.split()).replace(" ,", ",").replace(" ]", "]").replace("[ ", "[")


def _leaf_of(leaf: Any, row: Array) -> Array:
    nbytes = np.asarray(row).tobytes()[leaf.offset : leaf.offset + leaf.nbytes]
    return np.frombuffer(nbytes, leaf.dtype).reshape(leaf.shape)
