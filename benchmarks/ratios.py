"""Evaluate a run: ratios within repeats, ranges and intervals, and whether one side is ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.participants import LIBRARIES, Participant, Target, floor_of
from pufferlib.training.plot import interval_radius

__all__ = [
    "PER_STEP",
    "MeanInterval",
    "MedianRange",
    "Verdict",
    "ahead",
    "counterpart",
    "figures",
    "judge",
    "median_interval",
    "overheads",
    "rates",
    "ratios",
    "sign_test",
]

SIGNIFICANT = 0.05
PER_STEP = ("overhead", "step_us", "cpu_us")  # figures in microseconds per step
MANY = 30  # pairs from which on the median's confidence interval is reported


class MedianRange(NamedTuple):
    """The median of some figures, the least and the greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> MedianRange:
        return cls(median(values), min(values), max(values))

    def __format__(self, form: str) -> str:
        """Format all three numbers: "2.50 (2.00 – 3.00)"."""
        return f"{self.median:{form}} ({self.low:{form}} – {self.high:{form}})"


class MeanInterval(NamedTuple):
    """The mean of at least two figures, and the ends of its 95 % interval by Student's t."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanInterval:
        center, radius = mean(values), float(interval_radius(np.array(values)))
        return cls(center, center - radius, center + radius)

    def __format__(self, form: str) -> str:
        """Format all three numbers: "2.50 (2.00 – 3.00)"."""
        return f"{self.mean:{form}} ({self.low:{form}} – {self.high:{form}})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of the first to the second in each repeat."""
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def sign_test(values: Sequence[float]) -> float:
    """Return the probability that at least this many of the ratios lie above 1 by chance; ties are left out."""
    above, below = sum(value > 1 for value in values), sum(value < 1 for value in values)
    count = above + below
    return sum(comb(count, number) for number in range(above, count + 1)) / 2**count


def ahead(values: Sequence[float]) -> bool:
    """Return whether the ratios lie above 1 by the sign test at 5 %, which 7 of 7 pass and 6 of 7 do not."""
    return sign_test(values) < SIGNIFICANT


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median of these samples by order statistics, for any distribution.

    The k-th least and the k-th greatest of n values fail to enclose the median with a probability of twice that of
    fewer than k heads in n throws; k is the greatest for which that is at most 5 %. Takes at least six values.
    """
    ordered, count = sorted(values), len(values)
    outside, rank = 2 / 2**count, 1  # for the least and the greatest value
    assert outside <= SIGNIFICANT, "too few values"
    while (outside := outside + 2 * comb(count, rank) / 2**count) <= SIGNIFICANT:
        rank += 1
    return ordered[rank - 1], ordered[-rank]


def rates(entry: Mapping[str, Any]) -> list[float]:
    """Return a participant's steps per second in each repeat; [] if it did not run to the end."""
    if entry["status"] != "ran" or "steps" not in entry["turns"][0]:
        return []
    return [sample["steps"] / sample["seconds"] for sample in entry["turns"]]


def figures(entry: Mapping[str, Any], figure: str) -> list[float]:
    """Return a figure of a participant's turns in each repeat; "step_us", "cpu_us": microseconds per step.

    [] for "cpu_us" in older results, which lack it.
    """
    if figure == "step_us":
        return [1e6 / rate for rate in rates(entry)]
    if figure == "cpu_us":
        return [1e6 * sample["cpu_s"] / sample["steps"] for sample in entry["turns"] if "cpu_s" in sample]
    return [sample[figure] for sample in entry["turns"]]


def overheads(entry: Mapping[str, Any], floor: Mapping[str, Any]) -> list[float]:
    """Return the microseconds per step of a participant minus those of the floor, in each repeat."""
    return [cost - least for cost, least in zip(figures(entry, "step_us"), figures(floor, "step_us"), strict=True)]


def counterpart(entry: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return our participant to compare another one with: the fastest of ours on the same games.

    None if none of these ran. If ours-old takes no part, all are taken to step the same games.
    """
    libraries = [Participant.of(other["name"]).library for other in entries]
    old = LIBRARIES[Participant.of(entry["name"]).library].old_games and "ours-old" in libraries
    of_ours = "ours-old" if old else "ours"
    ran = [other for other, library in zip(entries, libraries, strict=True) if library == of_ours and rates(other)]
    return max(ran, key=lambda other: median(rates(other)), default=None)


class Verdict(NamedTuple):
    """The evaluation of a target.

    reached: our ratio or figure; None if nothing could be compared. met: whether that meets the target. note: the
    participants compared. floor: the figure of the target's floor, if it has one.
    """

    reached: MedianRange | None
    met: bool | None
    note: str
    floor: MedianRange | None = None


def judge(target: Target, entries: Sequence[Mapping[str, Any]]) -> Verdict:
    """Return the verdict on a target from a workload's results.

    Of several of our participants the one with the best median counts, of the others the strongest: the one with the
    least median of ratios. The note names those that did not run.
    """
    by_name = {entry["name"]: entry for entry in entries}
    ours = [by_name[name] for name in _names(target.of) if name in by_name and by_name[name]["status"] == "ran"]
    if not ours:
        reasons = [by_name[name].get("reason", "") for name in _names(target.of) if name in by_name]
        return Verdict(None, None, f"did not run: {'; '.join(reasons)}" if reasons else "not part of this run")
    if target.figure in PER_STEP:
        sides = [_per_step(name, target.figure, by_name) for name in (ours[0]["name"], *target.over)]
        if not all(sides):
            return Verdict(None, None, "did not run")
        reached = MedianRange.of(ratios(*sides) if target.over else sides[0])
        return Verdict(reached, reached.median <= target.at_most, "")
    if target.figure:
        reached = min(MedianRange.of(figures(entry, target.figure)) for entry in ours)
        floor = by_name.get(target.floor, NOT_RUN)
        floor_range = MedianRange.of(figures(floor, target.figure)) if floor["status"] == "ran" else None
        return Verdict(reached, reached.median <= target.at_most, "", floor_range)
    best = max(ours, key=lambda entry: median(rates(entry)))
    note = best["name"] if len(_names(target.of)) > 1 else ""
    if target.rate is not None:
        reached = MedianRange.of([rate / target.rate for rate in rates(best)])
        steps = f"over {sum(sample['steps'] for sample in best['turns']):,} steps"
        return Verdict(reached, reached.median >= (target.at_least or 1), " ".join(filter(None, (note, steps))))
    compared = {
        name: ratios(rates(best), rates(by_name[name])) for name in target.over if rates(by_name.get(name, NOT_RUN))
    }
    missing = [name for name in target.over if name not in compared]
    if not compared:
        return Verdict(None, None, f"did not run: {', '.join(missing)}")
    strongest = min(compared, key=lambda name: median(compared[name]))
    note = " ".join(
        (
            *((note,) if note else ()),
            *((f"against {strongest}",) if len(target.over) > 1 else ()),
            *((_interval_text(compared[strongest]),) if len(compared[strongest]) >= MANY else ()),
            *((f"(did not run: {', '.join(missing)})",) if missing else ()),
        )
    )
    reached = MedianRange.of(compared[strongest])
    if target.at_least is None:
        return Verdict(reached, all(ahead(values) for values in compared.values()), note)
    return Verdict(reached, reached.median >= target.at_least, note)


def _interval_text(values: Sequence[float]) -> str:
    low, high = median_interval(values)
    return f"median within {low:.3f} – {high:.3f} (95 %, {len(values)} pairs)"


NOT_RUN: Mapping[str, Any] = {"status": "not run"}


def _per_step(name: str, figure: str, by_name: Mapping[str, Mapping[str, Any]]) -> list[float]:
    """Return a participant's microseconds per step in each repeat; [] if it or its floor did not run."""
    entry, floor = by_name.get(name, NOT_RUN), by_name.get(floor_of(name, by_name), NOT_RUN)
    if not rates(entry) or (figure == "overhead" and not rates(floor)):
        return []
    return overheads(entry, floor) if figure == "overhead" else figures(entry, figure)


def _names(of: str | tuple[str, ...]) -> tuple[str, ...]:
    return (of,) if isinstance(of, str) else of
