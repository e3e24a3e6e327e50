"""Statistics of scores, with bootstrap intervals: mean, interquartile mean, probability of improvement, profiles.

Source: Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021. Scores are
a list of arrays, one per task, and each is drawn again within its task only (stratified bootstrap). Where all tasks
have the same number of scores, the results are those of the paper's definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.evaluation.parameters import BootstrapParameters
from pufferlib.util.annotations import Array
from pufferlib.util.parameters import Unpack
from pufferlib.util.suggestions import says_what_was_meant

__all__ = ["Estimate", "Profile", "bootstrap", "improvement", "interquartile_mean", "mean_of_tasks", "profile"]

Scores = Sequence[Array]  # by task: float64 (scores,)

MAX_NUMBERS = 2_000_000  # that are drawn at once


class Estimate(NamedTuple):
    """A statistic and its interval."""

    value: float  # of the statistic
    low: float  # the interval's lower end
    high: float  # the interval's upper end

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} – {self.high:.4g})"


class Profile(NamedTuple):
    """The share of scores above each threshold, with intervals for each threshold alone; arrays (thresholds,)."""

    thresholds: Array  # as passed
    values: Array  # the shares
    low: Array  # the intervals' lower ends
    high: Array  # the intervals' upper ends


def mean_of_tasks(scores: Scores) -> Array:
    """Return the mean over tasks of each task's mean. scores: by task, (…, scores). Returns (…)."""
    means: Array = np.mean([task.mean(-1) for task in scores], axis=0)
    return means


def interquartile_mean(scores: Scores) -> Array:
    """Return the mean of the middle half of all tasks' scores, which ignores the lowest and the highest quarter.

    scores: by task, (…, scores). Returns (…). If a quarter is no whole number of scores, it is rounded down.
    """
    together = np.sort(np.concatenate(scores, axis=-1), axis=-1)
    cut = together.shape[-1] // 4
    middle: Array = together[..., cut : together.shape[-1] - cut].mean(-1)
    return middle


def improvement(first: Scores, second: Scores) -> Array:
    """Return the probability that a score of ``first`` is above one of ``second`` in a task drawn at random.

    Equal scores count half (the Mann-Whitney statistic). first, second: by task, (…, scores), for the same tasks in the
    same order. Returns (…).
    """
    shares = [_above(one, other) for one, other in zip(first, second, strict=True)]
    return np.mean(shares, axis=0)  # type: ignore[no-any-return]


def profile(scores: Scores, thresholds: Array) -> Array:
    """Return the share of scores above each threshold, as the mean over tasks; (…, thresholds).

    scores: by task, (…, scores).
    """
    shares = [_shares_above(task, thresholds) for task in scores]
    return np.mean(shares, axis=0)  # type: ignore[no-any-return]


@says_what_was_meant(parameters=BootstrapParameters)
def bootstrap(
    statistic: Callable[..., Array], *samples: Scores, **how: Unpack[BootstrapParameters]
) -> tuple[Array, Array]:
    """Return the ends of a statistic's percentile bootstrap interval, each of the statistic's shape.

    statistic: a function of ``samples`` that accepts a leading axis of resamples. samples: for each argument of the
        statistic, the scores by task; each task's scores are drawn with replacement, as many as there are. confidence:
        the probability that the interval is to have. num_resamples: how many times to draw. seed: of the drawing.

    Raises PlanError for a confidence outside (0, 1) or fewer than one resample.
    """
    confidence, num_resamples = how["confidence"], how["num_resamples"]
    if not 0 < confidence < 1 or num_resamples < 1:
        raise PlanError(
            f"confidence={confidence} and num_resamples={num_resamples} are impossible; use more than 0 and less than "
            "1, and 1 or more"
        )
    generator = np.random.default_rng(how["seed"])
    num_scores = sum(len(task) for scores in samples for task in scores)
    at_once = max(1, min(num_resamples, MAX_NUMBERS // max(1, num_scores)))
    values = []
    for first in range(0, num_resamples, at_once):
        num = min(at_once, num_resamples - first)
        drawn = [[task[generator.integers(0, len(task), (num, len(task)))] for task in scores] for scores in samples]
        values.append(statistic(*drawn))
    low, high = np.quantile(np.concatenate(values), [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def _shares_above(scores: Array, thresholds: Array) -> Array:
    """Return the share of one task's scores above each threshold. scores: (…, scores). Returns (…, thresholds)."""
    ordered, num = np.sort(scores, axis=-1), scores.shape[-1]
    shares = np.empty((*scores.shape[:-1], len(thresholds)))
    for index in np.ndindex(scores.shape[:-1]):
        shares[index] = (num - np.searchsorted(ordered[index], thresholds, "right")) / num
    return shares


def _above(first: Array, second: Array) -> Array:
    """Return the share of pairs in which a score of ``first`` is above one of ``second``; equal ones count half."""
    shares = np.empty(first.shape[:-1])
    for index in np.ndindex(shares.shape):
        ordered = np.sort(second[index])
        below, not_above = np.searchsorted(ordered, first[index]), np.searchsorted(ordered, first[index], "right")
        shares[index] = (below + not_above).sum() / (2 * len(first[index]) * len(ordered))
    return shares
