"""What environments have told of late: the last episodes, the means of users' own info scalars, restarts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cleanrl_demo.results import NUMBERS, Episode, Episodes, charts

NUM_RECENT = 100  # episodes, and values of each scalar, that a mean is taken of
NUM_KEYS = 100  # an environment that makes up a new name each step must not fill the memory
RESERVED_KEYS = {"env_id", "agent_id", "env", "episode", "score", "restarted", "final_obs"}


def numbers_in(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an info without what nothing here looks at: its numbers, texts, and nested dicts of such."""
    values = {key: numbers_in(value) if isinstance(value, Mapping) else value for key, value in info.items()}
    return {key: value for key, value in values.items() if isinstance(value, (*NUMBERS, str, dict))}


class RecentStatistics:
    """Takes the infos of batches, and says what the recent ones come to.

    A user's info scalar is a number under any key that pufferlib does not use itself, in nested dicts too, whose names
    are joined with slashes. Arrays, texts and lists are left out, and so is what exceeds ``NUM_KEYS`` names.
    """

    def __init__(self, labels: Sequence[str] = ()) -> None:
        """labels: of agents, as ``Episodes`` takes them."""
        self.labels = labels
        self.reset()
        self.episodes: deque[Episode] = deque(maxlen=NUM_RECENT)
        self.values: dict[str, deque[float]] = {}
        self.num_restarts = 0

    def take(self, infos: Iterable[Mapping[str, Any]]) -> None:
        """Take the infos of one batch."""
        self.episodes.extend(self.finished.in_batch(infos))
        for info in infos:
            self.num_restarts += "restarted" in info
            for key, value in info.items():
                if key not in RESERVED_KEYS:
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
            except OverflowError:  # an int beyond all floats
                values.append(float("inf"))
        elif isinstance(value, Mapping):
            # In same-step autoreset the last step's infos lie in `final_info`; elsewhere they lie at the top.
            prefix, reserved = ("", RESERVED_KEYS) if key == "final_info" else (f"{key}/", ())
            for name, part in value.items():
                if name not in reserved:
                    self._note(f"{prefix}{name}", part)

    def reset(self) -> None:
        """Forget the episodes that are under way."""
        self.finished = Episodes(labels=self.labels)

    def charts(self) -> dict[str, float]:
        """Return what ``results.charts`` says of the recent episodes, and restarts, by their TensorBoard names."""
        return {**charts(self.episodes), **({"charts/restarts": self.num_restarts} if self.num_restarts else {})}

    def infos(self) -> dict[str, float]:
        """Return the mean of the recent values of each of users' scalars, by their TensorBoard names."""
        return {f"infos/{key}": sum(values) / len(values) for key, values in self.values.items()}

    def state(self) -> dict[str, Any]:
        """Return what ``restore`` takes, in dicts, lists and numbers. Episodes that are under way are not in it."""
        return {
            "episodes": [
                [int(env_id), float(episodic_return), int(length), score, cut, dict(returns_of)]
                for env_id, episodic_return, length, score, cut, returns_of in self.episodes
            ],
            "values": {key: list(values) for key, values in self.values.items()},
            "num_restarts": self.num_restarts,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self.reset()
        self.episodes = deque((Episode(*row) for row in state["episodes"]), NUM_RECENT)
        self.values = {key: deque(values, NUM_RECENT) for key, values in state["values"].items()}
        self.num_restarts = state["num_restarts"]
