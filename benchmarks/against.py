"""Define the cells and the tables of `python -m benchmarks.peers --against REVISION`, which compares two revisions.

A cell is one of our arrangements in a workload, with the wheel of this tree and the wheel of the other revision. Both
take turns, and the one that begins changes with every repeat. A file of results holds the cells of two revisions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lines import table_text
from benchmarks.pages import table
from benchmarks.ratios import MedianRange, median_interval, rates, ratios
from benchmarks.workloads import Participant, Workload

__all__ = ["CELLS", "LEAST_PAIRS", "PAIRS", "add", "cell_of", "cells_text", "pairs_of", "section", "verdict_text"]

CELLS = (  # of the published tables
    *("trivial-sync", "trivial-pool", "trivial-process-per-env", "trivial-serial-32", "trivial-serial-8"),
    *("large-sync", "large-pool", "sleep-0.1ms", "sleep-1ms", "sleep-10ms", "cartpole"),
)
PAIRS = 61
LEAST_PAIRS = 6  # for an interval
WAITS = {"wait": "wait_us", "idle": "first_us"}  # the figure to compare in workloads without steps per second

Result = Mapping[str, Any]


def pairs_of(workload: Workload, commit: str, repeats: int) -> list[Workload]:
    """Return a workload for each of our arrangements, with two participants: this tree and another commit.

    New processes play each pair: the interval assumes that pairs are independent of each other.
    """
    ours = [name for name in workload.participants if Participant.of(name).library == "ours"]
    return [
        replace(
            workload,
            participants=(name, f"ours@{commit}{name.removeprefix('ours')}"),
            targets=(),
            repeats=repeats,
            new_processes=True,
        )
        for name in ours
    ]


def cell_of(result: Result) -> dict[str, Any]:
    """Return the stored part of a pair's result: the speed of each turn, the median of their ratios and its interval.

    For workloads without steps per second: the microseconds of waiting, and ratios of their inverses. A ratio above 1
    means that this tree is faster.
    """
    kind = result["workload"]["kind"]
    facts = {key: result[key] for key in ("form", "repeats", "window_s", "date", "command")}
    now, before = result["participants"]
    cell = {
        "workload": result["workload"]["name"],
        "title": result["workload"]["title"],
        "arrangement": now["name"].partition(" ")[2],
        "kind": kind,
        **facts,
        "load": [round(load, 1) for load in result["load"]],
        "paths": [entry.get("path", "") for entry in (before, now)],
    }
    failed = [f"{entry['name']}: {entry['status']}: {entry['reason']}" for entry in (before, now) if "reason" in entry]
    if failed:
        return {**cell, "failed": "; ".join(failed)}
    if kind == "play":
        speeds = rates(before), rates(now)
        pair_ratios = ratios(speeds[1], speeds[0])
    else:
        speeds = tuple([float(sample[WAITS[kind]]) for sample in entry["turns"]] for entry in (before, now))  # type: ignore[assignment]
        pair_ratios = ratios(*speeds)
    short = [[float(f"{value:.5g}") for value in values] for values in speeds]
    return {
        **cell,
        "before": short[0],
        "now": short[1],
        "ratio": round(median(pair_ratios), 4),
        "interval": [round(value, 4) for value in median_interval(pair_ratios)],
    }


def add(path: Path, facts: Mapping[str, str], cell: Mapping[str, Any]) -> None:
    """Add a cell to a file of results, one cell per line, and drop cells of another version of this tree.

    facts: the machine, the version of this tree, and the commit it is compared with.
    """
    stored = json.loads(path.read_text()) if path.exists() else {}
    same = all(stored.get(key) == value for key, value in facts.items())
    cell_key = (cell["workload"], cell["arrangement"])
    cells = (
        [entry for entry in stored["cells"] if (entry["workload"], entry["arrangement"]) != cell_key] if same else []
    )
    path.write_text(table_text({**facts, "cells": sorted((*cells, cell), key=_order)}))


def section(folder: Path) -> str:
    """Return the tables of all files of results as Markdown."""
    files = sorted(folder.glob("against-*.json"))
    if not files:
        return "Nothing has been compared yet: `python -m benchmarks.peers --against REVISION`."
    return "\n\n".join(cells_text(json.loads(file.read_text())) for file in files)


def cells_text(stored: Result) -> str:
    """Return a line that describes both revisions, and the table of their cells."""
    before, now = stored["commit"], stored["version"]
    loads = MedianRange.of([cell["load"][0] for cell in stored["cells"]])
    dates = sorted({cell["date"][:10] for cell in stored["cells"]})
    about = (
        f"`{before}` (before) and `{now}` (now), {' to '.join(dict.fromkeys((dates[0], dates[-1])))}; "
        f"{stored['machine']}; load before a cell {loads:.1f}."
    )
    heads = ("workload", "arrangement", f"`{before}`", f"`{now}`", "times as fast (95 %)", "pairs", "shown")
    return f"{about}\n\n{table(heads, [_row(cell) for cell in stored['cells']])}"


def verdict_text(cell: Result) -> str:
    """Return the verdict of a cell: the median of its ratios, their interval, and whether the interval excludes 1."""
    if "failed" in cell:
        return str(cell["failed"])
    low, high = cell["interval"]
    return (
        f"{cell['ratio']:.3f} ({low:.3f} – {high:.3f}) times as fast over {len(cell['now'])} pairs: {_direction(cell)}"
    )


def _direction(cell: Result) -> str:
    low, high = cell["interval"]
    return "faster" if low > 1 else "slower" if high < 1 else "neither"


def _row(cell: Result) -> tuple[str, ...]:
    where = (cell["title"], cell["arrangement"])
    if "failed" in cell:
        return (*where, cell["failed"].replace("|", "\\|").replace("\n", " ")[:200], "", "", "", "")
    unit = "steps/s" if cell["kind"] == "play" else "µs"
    paths = [path.partition(":")[0] for path in cell["paths"]]
    notes = [f", {path}" if path != "compiled" else "" for path in paths]
    sides = [f"{median(cell[key]):,.0f} {unit}{note}" for key, note in zip(("before", "now"), notes, strict=True)]
    low, high = cell["interval"]
    return (*where, *sides, f"{cell['ratio']:.3f} ({low:.3f} – {high:.3f})", str(len(cell["now"])), _direction(cell))


def _order(cell: Result) -> tuple[int, str, str]:
    name = cell["workload"]
    return CELLS.index(name) if name in CELLS else len(CELLS), name, cell["arrangement"]
