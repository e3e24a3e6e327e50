"""Episode statistics on a device.

For each environment, kernels accumulate sums over its ended episodes. One reduction adds up the sums of all
environments, and only reading its result waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pufferlib.emulation.extra_leaves import type_of_name
from pufferlib.util.annotations import Array

__all__ = ["EpisodeStats", "EpisodeSums"]

# Fields of cuda_ext.schema.COMMON, in the order of EpisodeSums.
FIELDS = ("ended_episodes", "ended_steps", "ended_scores", "ended_returns")


@dataclass(frozen=True)
class EpisodeStats:
    """Means over the episodes that have ended for all agents of an environment; NaN if there are none.

    num_episodes: the number of these episodes. mean_length: the mean length in steps. mean_score: the mean of
    ``info["score"]``; None if the kernel writes no score or no episode has ended. mean_return: the mean of the
    episodes' returns, each summed over all agents. mean_returns: the mean return of each agent index, float64.
    agent_names: the name of each agent index; () if agents have no names.
    """

    num_episodes: int
    mean_length: float
    mean_score: float | None
    mean_return: float
    mean_returns: Array
    agent_names: tuple[str, ...]

    @property
    def mean_returns_by_type(self) -> dict[str, float]:
        """The mean return of each type of agent, such as "tagger" for the agents "tagger_0", "tagger_1", …

        It is {} if agents have no names.
        """
        types = [type_of_name(name) for name in self.agent_names]
        of_type: dict[str, list[float]] = {name: [] for name in types}
        for name, value in zip(types, self.mean_returns.tolist(), strict=bool(types)):
            of_type[name].append(value)
        return {name: sum(values) / len(values) for name, values in of_type.items()}

    def __str__(self) -> str:
        if not self.num_episodes:
            return "no episode has ended"
        text = f"{self.num_episodes:,} episodes: length {self.mean_length:.4g}, return {self.mean_return:.4g}"
        return text if self.mean_score is None else f"{text}, score {self.mean_score:.4g}"


@dataclass(frozen=True)
class EpisodeSums:
    """Sums over the episodes that have ended, as tensors on the device, made without waiting or copying to the host.

    num_episodes, num_steps: the numbers of episodes and of their steps, int64, (). scores: the sum of scores, float64,
    (); NaN if the kernel writes no score. returns: the sum of returns for each agent index, float64, (agents_per_env,).
    The tensors belong to the caller; they are computed on torch's current stream.
    """

    num_episodes: Any
    num_steps: Any
    scores: Any
    returns: Any
    agent_names: tuple[str, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, Any], agent_names: Sequence[Any], *, reset: bool) -> EpisodeSums:
        """Return the sums over all environments.

        arrays: the tensors of each environment's sums, by name. reset: whether to zero these tensors afterwards.
        """
        num_episodes, num_steps, scores, returns = (arrays[name].sum(dim=0) for name in FIELDS)
        if reset:
            for name in FIELDS:
                arrays[name].zero_()
        return cls(num_episodes, num_steps, scores, returns, tuple(map(str, agent_names)))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.num_episodes, self.num_steps, self.scores, self.returns))

    def stats(self) -> EpisodeStats:
        """Copy the sums to the host, waiting until the device has computed them, and return the means."""
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
