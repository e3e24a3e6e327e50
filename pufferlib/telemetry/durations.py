"""Compute statistics of durations from the sums and histograms of telemetry, and format durations as text."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pufferlib.telemetry.timeline import MAX, SQUARES, SUM, WEIGHT, bucket_edges
from pufferlib.util.annotations import Array

__all__ = [
    "Times",
    "UnpreemptedTimes",
    "percent",
    "pooled",
    "scalars",
    "seconds_text",
    "share_of",
    "times_of",
    "times_text",
    "unpreempted_times",
]  # fmt: skip


LONG = 4  # in medians of an environment's step times: a shorter step was not preempted
RARE = 0.01  # the share of long steps up to which some of them may be left out
# Upper bounds of the excess of all long steps, and of the longest of rare ones, in units of the wait for cores.
ALL, SOME = 1.25, 3.0


class Times(NamedTuple):
    """Statistics of durations; those in seconds are NaN if there were no durations.

    Each statistic is a float, or an array (num_envs,) with one value per environment. num: the number of durations.
    p50_s, p99_s: percentiles from a histogram with buckets of a quarter of an octave, limited to what mean_s, std_s and
    max_s allow; NaN if there is no histogram.
    """

    num: Any
    mean_s: Any
    std_s: Any
    p50_s: Any
    p99_s: Any
    max_s: Any


def times_of(sums: Array, histogram: Array | None = None) -> Times:
    """Return the statistics of each row of sums.

    sums: (rows, 4), with the columns [WEIGHT, SUM, SQUARES, MAX] of ``times`` in timeline. histogram: (rows,
    NUM_BUCKETS); without it, p50_s and p99_s are NaN.
    """
    num = sums[:, WEIGHT]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums[:, SUM] / num
        std = np.sqrt(np.maximum(0.0, sums[:, SQUARES] / num - mean**2))
    longest = np.where(num > 0, sums[:, MAX], np.nan)
    if histogram is None:
        p50 = p99 = np.full(len(num), np.nan)
    else:
        p50, p99 = (
            np.minimum(_bounded([percentile(row, share) for row in histogram], share, mean, std), longest)
            for share in (0.5, 0.99)
        )
    return Times(num, mean, std, p50, p99, longest)


def pooled(sums: Array) -> Array:
    """Return rows of sums merged into one row, (1, 4).

    sums: (rows, 4), with the columns [WEIGHT, SUM, SQUARES, MAX] of ``times`` in timeline.
    """
    together = sums.sum(0, keepdims=True)
    together[0, MAX] = sums[:, MAX].max(initial=0.0)
    return np.asarray(together)


def _bounded(values: Any, share: float, mean: Array, std: Array) -> Array:
    """Limit percentiles to what the mean and standard deviation allow for any distribution (Cantelli's inequality).

    Buckets locate durations only roughly, and the last one has no upper bound.
    """
    odds = math.sqrt(share / (1 - share))
    return np.asarray(np.clip(values, mean - std / odds, mean + std * odds))


class UnpreemptedTimes(NamedTuple):
    """Statistics of step times, without the steps during which other programs used the core.

    histogram: (num_envs, NUM_BUCKETS). num, mean_s, std_s: (num_envs,). share: the share of steps left out. waited_s:
    the total time, in seconds, by which the steps left out exceeded their environments' medians.
    """

    histogram: Array
    num: Array
    mean_s: Array
    std_s: Array
    share: float
    waited_s: float


def unpreempted_times(times: Times, histogram: Array, queued_s: float) -> UnpreemptedTimes:
    """Estimate step times without preempted steps, from the seconds that the stepping threads waited for a core.

    times, histogram: one row per environment. queued_s: the total waiting time in seconds; if NaN or 0, no step is left
    out.

    A step is long if it takes more than four times its environment's median. If the waiting time can explain the excess
    of all long steps, all of them are left out. Otherwise, if long steps are rare, as many of the longest are left out
    as the waiting time can explain. Steps that are long for another reason remain.
    """
    edges = bucket_edges()
    middles = (edges[:-1] + edges[1:]) / 2
    num = np.asarray(times.num, np.float64)
    medians = np.nan_to_num(times.p50_s)[:, None]
    long = np.where(edges[:-1] > LONG * medians, histogram, 0).astype(np.float64)
    waited_s = (long * (middles - medians)).sum(0)  # by bucket
    if not queued_s > 0 or not long.any():
        return UnpreemptedTimes(histogram, num, times.mean_s, times.std_s, 0.0, 0.0)
    if waited_s.sum() > ALL * queued_s:
        rare = long.sum() <= RARE * num.sum()
        from_top = np.cumsum(waited_s[::-1])[::-1]
        long[:, (from_top > SOME * queued_s) | (not rare)] = 0
    touched = long.any(1)
    if not touched.any():
        return UnpreemptedTimes(histogram, num, times.mean_s, times.std_s, 0.0, 0.0)
    rest = np.maximum(0, histogram - long)
    left = num - long.sum(1)
    means, stds = np.array(times.mean_s), np.array(times.std_s)
    for row in np.flatnonzero(touched):  # long steps dominate the sums, and sums of squares even more
        weights = rest[row] / rest[row].sum()
        mean = (num[row] * means[row] - (long[row] * middles).sum()) / left[row]
        known = (weights * edges[:-1]).sum() <= mean <= (weights * edges[1:]).sum()
        means[row] = mean if known else (weights * middles).sum()
        around = middles - (weights * middles).sum()
        stds[row] = math.sqrt((weights * (around**2 + np.diff(edges) ** 2 / 12)).sum())
    waits_s = (long * (middles - medians)).sum()
    return UnpreemptedTimes(rest, left, means, stds, float(long.sum() / num.sum()), float(waits_s))


def scalars(times: Times) -> Times:
    """Convert Times of one-element arrays to Times of floats."""
    return Times(*(float(value[0]) for value in times))


def percentile(counts: Array, share: float) -> float:
    """Return the duration, in seconds, below which this share of a histogram's counts lies; NaN if all are zero.

    The duration is interpolated within its bucket.
    """
    ladder = np.cumsum(counts.astype(np.float64))
    if not ladder[-1]:
        return math.nan
    edges, rank = bucket_edges(), share * ladder[-1]
    bucket = int(np.searchsorted(ladder, rank))
    below = ladder[bucket] - float(counts[bucket])
    inside = (rank - below) / float(counts[bucket])
    return float(edges[bucket] + inside * (edges[bucket + 1] - edges[bucket]))


def share_of(part: float, total: float) -> float:
    """Return part / total, limited to the range from 0 to 1; NaN if part is NaN or total is not positive."""
    if not total > 0:
        return math.nan
    return min(1.0, max(0.0, part / total)) if not math.isnan(part) else math.nan


def percent(share: float) -> str:
    """Format a share, 0 to 1, as a whole percentage; "–" for NaN."""
    return "–" if math.isnan(share) else f"{100 * share:.0f} %"


def seconds_text(seconds: float) -> str:
    """Format a duration with at most three significant digits, as in 873 ns and 30.4 µs; "–" for NaN.

    Durations of 1,000 seconds or more are formatted in whole seconds, as in 1,234 s.
    """
    if math.isnan(seconds):
        return "–"
    if seconds >= 999.5:
        return f"{seconds:,.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * scale:
            return f"{seconds / scale:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds * 1e9:.0f} ns"


def times_text(times: float) -> str:
    """Format a ratio with one decimal place if it is below 10, else as a whole number: 1.9, 12, 140."""
    return f"{times:.1f}" if times < 9.95 else f"{times:,.0f}"
