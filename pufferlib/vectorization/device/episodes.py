"""Episodes on a device: kernels add up what has ended, one reduction sums it, and who wants to know waits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["EpisodeStats", "EpisodeSums"]

Array = np.ndarray[Any, Any]
# Of cuda_ext.schema.COMMON, in the order of EpisodeSums.
FIELDS = ("ended_episodes", "ended_steps", "ended_scores", "ended_returns")


@dataclass(frozen=True)
class EpisodeStats:
    """Means over episodes that have ended for all agents of an environment; NaN where there is none.

    num_episodes: how many. mean_length: in steps. mean_score: of ``info["score"]``, None where a kernel writes none.
    mean_return: of an environment, which is the sum of its agents'. mean_returns: of each agent by its place, float64.
    agent_names: by place; () where agents have no names.
    """

    num_episodes: int
    mean_length: float
    mean_score: float | None
    mean_return: float
    mean_returns: Array
    agent_names: tuple[str, ...]

    @property
    def mean_returns_by_type(self) -> dict[str, float]:
        """The mean return of an agent of each type: "tagger" of agents that are called "tagger_0", "tagger_1", …"""
        types = [re.sub(r"_\d+$", "", name) for name in self.agent_names]
        of_type: dict[str, list[float]] = {each: [] for each in types}
        for each, value in zip(types, self.mean_returns.tolist(), strict=bool(types)):
            of_type[each].append(value)
        return {each: sum(values) / len(values) for each, values in of_type.items()}

    def __str__(self) -> str:
        if not self.num_episodes:
            return "no episode has ended"
        told = f"{self.num_episodes:,} episodes: length {self.mean_length:.4g}, return {self.mean_return:.4g}"
        return told if self.mean_score is None else f"{told}, score {self.mean_score:.4g}"


@dataclass(frozen=True)
class EpisodeSums:
    """Sums over episodes that have ended, as tensors on the device: nothing has been waited for, nothing copied.

    num_episodes, num_steps: int64, (). scores: float64, (), NaN where a kernel writes none. returns: float64,
    (agents_per_env,), of each agent by its place. They are the caller's own, and on torch's current stream.
    """

    num_episodes: Any
    num_steps: Any
    scores: Any
    returns: Any
    agent_names: tuple[str, ...]

    @classmethod
    def of(cls, arrays: Any, agent_names: Sequence[Any], *, reset: bool) -> EpisodeSums:
        """Reduce arrays of environments, and with reset set them to zero. arrays: tensors by name."""
        num_episodes, num_steps, scores, returns = (arrays[name].sum(dim=0) for name in FIELDS)
        if reset:
            for name in FIELDS:
                arrays[name].zero_()
        return cls(num_episodes, num_steps, scores, returns, tuple(map(str, agent_names)))

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.num_episodes, self.num_steps, self.scores, self.returns))

    def stats(self) -> EpisodeStats:
        """Return the means. Copies the sums to the host, and waits for them."""
        num, score = int(self.num_episodes), float(self.scores)
        returns = self.returns.cpu().numpy()
        count = num or np.nan
        return EpisodeStats(
            num,
            int(self.num_steps) / count,
            None if np.isnan(score) or not num else score / count,
            float(returns.sum()) / count,
            returns / count,
            self.agent_names,
        )
