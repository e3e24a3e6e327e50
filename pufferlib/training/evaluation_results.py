"""The result of an evaluation: its episodes, and statistics of their returns, scores and lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import pufferlib
from pufferlib.evaluation import statistics
from pufferlib.evaluation.episodes import CUT, FAILED
from pufferlib.training.results import agent_returns_by_label, scores_of

__all__ = ["Evaluation", "Summary"]


class Summary(NamedTuple):
    """Statistics of one number per episode: the mean with its 95 % interval, minimum, median and maximum."""

    mean: float
    low: float
    high: float
    minimum: float
    median: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary:
        """Return the statistics of one or more values.

        The interval is found by bootstrap: the values are resampled with replacement 2000 times, and its ends
        are the 2.5th and 97.5th percentiles of the resamples' means. It assumes no distribution, and is too narrow for
        fewer than about ten episodes.
        """
        array = np.asarray(list(values), np.float64)
        low, high = statistics.bootstrap(statistics.mean_of_tasks, [array])
        middle = array.mean(), low, high, array.min(), np.median(array), array.max()
        return cls(*map(float, middle))


@dataclass(frozen=True)
class Evaluation:
    """The episodes that a policy played in an environment, and how they were played. policy: its description."""

    env: str
    policy: str
    greedy: bool
    seed: int
    max_steps: int
    episodes: pufferlib.Episodes
    videos: Sequence[str] = ()
    snapshots: Sequence[str] = ()
    notes: Sequence[str] = ()  # further remarks, as sentences
    interrupted: bool = False  # whether Ctrl-C has ended it early

    @property
    def returns(self) -> Summary:
        """Statistics of the returns, summed over agents."""
        return Summary.of(self.episodes.returns[self._played])

    @property
    def scores(self) -> Summary | None:
        """Statistics of the scores; None if the environment reports none."""
        scores = scores_of(self.episodes)[self._played]
        scores = scores[~np.isnan(scores)]
        return Summary.of(scores) if len(scores) else None

    @property
    def lengths(self) -> Summary:
        """Statistics of the episodes' lengths, in steps."""
        return Summary.of(self.episodes.lengths[self._played])

    @property
    def num_cut(self) -> int:
        """The number of episodes that were cut at ``max_steps``."""
        return int((self.episodes.endings == CUT).sum())

    @property
    def num_failed(self) -> int:
        """The number of episodes that failed too often to be played; the statistics leave them out."""
        return int((~self._played).sum())

    def spreads(self) -> Mapping[str, Summary]:
        """Return the statistics of returns, agents' returns, scores (if there are any) and lengths, keyed by name."""
        agents = {
            f"return of {label}": Summary.of(returns[self._played])
            for label, returns in agent_returns_by_label(self.episodes).items()
        }
        scores = {} if self.scores is None else {"score": self.scores}
        return {"return": self.returns, **agents, **scores, "length": self.lengths}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and statistics as a dict of values that JSON can hold."""
        names = (
            "env",
            "policy",
            "greedy",
            "seed",
            "max_steps",
            "num_cut",
            "interrupted",
            "videos",
            "snapshots",
            "notes",
        )
        values = {name: getattr(self, name) for name in names}
        summaries = {name: summary._asdict() for name, summary in self.spreads().items()}
        return {**values, "num_episodes": len(self.episodes), **summaries, "episodes": [*self._rows()]}

    @property
    def _played(self) -> np.ndarray[Any, Any]:
        return np.asarray(self.episodes.endings != FAILED)

    def _rows(self) -> Iterator[dict[str, Any]]:
        by_label = agent_returns_by_label(self.episodes)
        for index, score in enumerate(scores_of(self.episodes).tolist()):
            failed = not self._played[index]
            yield {
                "seed": int(self.episodes.seeds[index]),
                "episodic_return": None if failed else float(self.episodes.returns[index]),
                "length": int(self.episodes.lengths[index]),
                "score": None if np.isnan(score) else score,
                "cut": bool(self.episodes.endings[index] == CUT),
                "failed": failed,
                "restarts": int(self.episodes.restarts[index]),
                "returns_of": {} if failed else {label: float(part[index]) for label, part in by_label.items()},
            }
