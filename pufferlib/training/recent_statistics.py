"""Statistics of recent infos: the last episodes, the means of users' own info scalars, and restarts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pufferlib.training.results import NUMBERS, Episode, EpisodeCollector, charts
from pufferlib.vectorization.core.messages import crash_cause

NUM_RECENT = 100  # episodes, and values of each scalar, in a mean
NUM_KEYS = 100  # an environment that makes up a new name each step must not fill the memory
RESERVED_KEYS = {"env_id", "agent_id", "env", "episode", "score", "restarted", "final_obs"}


def numbers_in(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an info with only the numbers, the strings, and nested dicts of these."""
    values = {key: numbers_in(value) if isinstance(value, Mapping) else value for key, value in info.items()}
    return {key: value for key, value in values.items() if isinstance(value, (*NUMBERS, str, dict))}


class RecentStatistics:
    """Statistics of recent episodes and info scalars, collected from the infos of batches.

    A user's info scalar is a number under a key that pufferlib does not use itself; keys of nested dicts are joined
    with slashes. Arrays, strings and lists are ignored, as are names beyond the first ``NUM_KEYS``.
    """

    def __init__(self, labels: Sequence[str] = ()) -> None:
        """labels: the agents' labels (see ``results.labels_of``)."""
        self.labels = labels
        self.reset()
        self.episodes: deque[Episode] = deque(maxlen=NUM_RECENT)
        self.values: dict[str, deque[float]] = {}
        self.num_restarts = 0

    def take(self, infos: Iterable[Mapping[str, Any]]) -> None:
        """Add the infos of one batch."""
        self.episodes.extend(self.finished.in_batch(infos))
        known = self.values
        for info in infos:
            self.num_restarts += crash_cause(info) is not None
            for key, value in info.items():
                values = known.get(key)
                if values is not None and isinstance(value, float):  # the most frequent case, in half the time
                    values.append(float(value))
                elif key not in RESERVED_KEYS:
                    self._note(str(key), value)

    def _note(self, key: str, value: Any) -> None:
        if isinstance(value, NUMBERS):
            values = self.values.get(key)
            if values is None:
                if len(self.values) == NUM_KEYS:
                    return
                values = self.values[key] = deque(maxlen=NUM_RECENT)
            try:
                values.append(float(value))
            except OverflowError:  # an int too large for a float
                values.append(float("inf"))
        elif isinstance(value, Mapping):
            # In same-step autoreset the last step's infos are in `final_info`; otherwise they are at the top level.
            prefix, reserved = ("", RESERVED_KEYS) if key == "final_info" else (f"{key}/", ())
            for name, part in value.items():
                if name not in reserved:
                    self._note(f"{prefix}{name}", part)

    def reset(self) -> None:
        """Forget the unfinished episodes."""
        self.finished = EpisodeCollector(labels=self.labels)

    def charts(self) -> dict[str, float]:
        """Return ``results.charts`` of the recent episodes, keyed by TensorBoard name.

        Includes the number of restarts, if there were any.
        """
        return {**charts(self.episodes), **({"charts/restarts": self.num_restarts} if self.num_restarts else {})}

    def infos(self) -> dict[str, float]:
        """Return the mean of each user scalar's recent values, keyed by TensorBoard name."""
        return {f"infos/{key}": sum(values) / len(values) for key, values in self.values.items()}

    def state(self) -> dict[str, Any]:
        """Return the state for ``restore``, as plain values, without unfinished episodes."""
        return {
            "episodes": [
                [int(env_id), float(episodic_return), int(length), score, cut, dict(returns_of)]
                for env_id, episodic_return, length, score, cut, returns_of in self.episodes
            ],
            "values": {key: list(values) for key, values in self.values.items()},
            "num_restarts": self.num_restarts,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state`` returned, and forget the unfinished episodes."""
        self.reset()
        self.episodes = deque((Episode(*row) for row in state["episodes"]), NUM_RECENT)
        self.values = {key: deque(values, NUM_RECENT) for key, values in state["values"].items()}
        self.num_restarts = state["num_restarts"]
