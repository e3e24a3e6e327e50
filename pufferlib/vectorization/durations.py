"""Durations: what sums and histograms of telemetry say about them, and how they are written."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pufferlib.vectorization.telemetry import MAX, SQUARES, SUM, WEIGHT, bucket_edges

__all__ = ["Times", "percent", "scalars", "seconds_text", "share_of", "times_of", "times_text"]

Array = np.ndarray[Any, Any]


class Times(NamedTuple):
    """Durations in seconds: floats, or arrays (num_envs,) of one value an environment; NaN where there were none.

    p50_s, p99_s: from the histogram, whose buckets are a quarter of an octave wide. num: how many there were.
    """

    num: Any
    mean_s: Any
    std_s: Any
    p50_s: Any
    p99_s: Any
    max_s: Any


def times_of(sums: Array, histogram: Array | None = None) -> Times:
    """Return one value a row of ``times``."""
    num = sums[:, WEIGHT]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums[:, SUM] / num
        std = np.sqrt(np.maximum(0.0, sums[:, SQUARES] / num - mean**2))
    longest = np.where(num > 0, sums[:, MAX], np.nan)
    if histogram is None:
        p50 = p99 = np.full(len(num), np.nan)
    else:
        p50, p99 = (np.array([percentile(row, share) for row in histogram]) for share in (0.5, 0.99))
    return Times(num, mean, std, np.minimum(p50, longest), np.minimum(p99, longest), longest)


def scalars(times: Times) -> Times:
    """Return floats for arrays of one value."""
    return Times(*(float(value[0]) for value in times))


def percentile(counts: Array, share: float) -> float:
    """Return the duration that a share of the counts stay below, evenly spread inside its bucket."""
    ladder = np.cumsum(counts.astype(np.float64))
    if not ladder[-1]:
        return math.nan
    edges, wanted = bucket_edges(), share * ladder[-1]
    bucket = int(np.searchsorted(ladder, wanted))
    below = ladder[bucket] - float(counts[bucket])
    inside = (wanted - below) / float(counts[bucket])
    return float(edges[bucket] + inside * (edges[bucket + 1] - edges[bucket]))


def share_of(part: float, whole: float) -> float:
    """Return part / whole, at least 0 and at most 1; NaN where there is no whole."""
    if not whole > 0:
        return math.nan
    return min(1.0, max(0.0, part / whole)) if not math.isnan(part) else math.nan


def percent(share: float) -> str:
    """Return a share of 1 as whole percent; "–" for NaN."""
    return "–" if math.isnan(share) else f"{100 * share:.0f} %"


def seconds_text(seconds: float) -> str:
    """Return a duration of three digits: 873 ns, 30.4 µs, 1.21 s; "–" for NaN."""
    if math.isnan(seconds):
        return "–"
    if seconds >= 1000:
        return f"{seconds:,.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * scale:
            return f"{seconds / scale:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds * 1e9:.0f} ns"


def times_text(times: float) -> str:
    """Return a ratio of two digits, or more where it is larger: 1.9, 12, 140."""
    return f"{times:.1f}" if times < 9.95 else f"{times:,.0f}"
