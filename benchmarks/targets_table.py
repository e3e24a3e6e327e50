"""The table of targets, and the headings and units of figures other than steps per second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.overhead_tables import GROUPS, row_of, table_of
from benchmarks.pages import table
from benchmarks.participants import Target
from benchmarks.ratios import PER_STEP, MedianRange, Verdict, judge
from benchmarks.workloads import WORKLOADS

__all__ = ["COLUMNS", "FIGURES", "targets_table"]

MET = {True: "yes", False: "**no**", None: "not measured"}

Result = Mapping[str, Any]


def _figure_text(scale: float, form: str) -> Callable[[MedianRange], str]:
    return lambda median_range: format(MedianRange(*(scale * value for value in median_range)), form)


# Figures of turns other than steps per second: the heading, and the formatting.
COLUMNS: dict[str, dict[str, tuple[str, Callable[[MedianRange], str]]]] = {
    "play": {},
    "wait": {
        "wait_us": ("µs in recv, median (min – max)", _figure_text(1, ",.0f")),
        "wait_p99_us": ("µs in recv, 99th percentile", _figure_text(1, ",.0f")),
        "send_us": ("µs in send, median", _figure_text(1, ",.0f")),
    },
    "idle": {
        "parent_cpu": ("% of a CPU, parent", _figure_text(100, ".2f")),
        "workers_cpu": ("% of a CPU, others", _figure_text(100, ".2f")),
        "usual_us": ("µs for a batch", _figure_text(1, ",.0f")),
        "first_us": ("µs for the first after the pause", _figure_text(1, ",.0f")),
        "late_us": ("µs later, a process", _figure_text(1, ",.0f")),
    },
}
FIGURES = {figure: column for columns in COLUMNS.values() for figure, column in columns.items()}
FIGURES |= {figure: ("µs for a step", _figure_text(1, ".2f")) for figure in PER_STEP}


def targets_table(results: Mapping[str, Result]) -> str:
    """Return the table of targets and of the ratios or figures reached: one row for a group with the same target."""
    groups: dict[tuple[str, str], list[tuple[str, Target, Verdict]]] = {}
    for name, workload in WORKLOADS.items():
        for target in workload.targets if name in results else ():
            verdict = judge(target, results[name]["participants"])
            group = table_of(results[name])
            row = row_of(results[name]) if group else ""
            groups.setdefault((GROUPS[group] if group else workload.title, target.text), []).append(
                (row, target, verdict)
            )
    rows = [(*key, *(_group_cells(cases) if cases[0][0] else _cells(*cases[0][1:]))) for key, cases in groups.items()]
    return table(("workload", "at least, or at most", "reached (min – max)", "met", "which"), rows)


def _cells(target: Target, verdict: Verdict) -> tuple[str, str, str]:
    """Return what a target reached, whether it is met, and notes."""
    reached = "—" if verdict.reached is None else _reached(target, verdict.reached)
    floor_text = verdict.floor and f"{target.floor}: {_reached(target, verdict.floor)}"
    return reached, MET[verdict.met], " ".join(filter(None, (verdict.note, floor_text)))


def _group_cells(cases: Sequence[tuple[str, Target, Verdict]]) -> tuple[str, str, str]:
    """Return the worst that a group reached, whether all met the target, and the workload that is the worst.

    cases: for each workload the name of its row, the target and the verdict.
    """
    judged = [(verdict.reached.median, row, target, verdict) for row, target, verdict in cases if verdict.reached]
    missing = ", ".join(row for row, _, verdict in cases if not verdict.reached)
    note = f"not measured: {missing}" if missing else ""
    if not judged:
        return "—", MET[None], note
    _, row, target, worst = (max if judged[0][2].at_most else min)(judged, key=lambda case: case[0])
    num_met = sum(bool(verdict.met) for *_, verdict in judged)
    notes = (f"{num_met} of {len(judged)}; the worst: {row}", note)
    return _reached(target, worst.reached), MET[num_met == len(judged)], "; ".join(filter(None, notes))  # type: ignore[arg-type]


def _reached(target: Target, median_range: MedianRange) -> str:
    if target.over or not target.figure:
        return f"{median_range:.2f}"
    return FIGURES[target.figure][1](median_range) + (" %" if target.figure.endswith("_cpu") else " µs")
