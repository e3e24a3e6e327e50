"""Tables of overheads: the microseconds of a step beyond those of the environments alone, in the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.pages import table
from benchmarks.participants import COPIES, FLOORS, Participant, floor_of
from benchmarks.ratios import MedianRange, figures, overheads, rates, ratios

__all__ = ["GROUPS", "TABLES", "overhead_tables", "row_of", "table_of"]

TABLES = {  # by section: the names of its tables (from workloads' cells), and patterns of their workloads
    "returns": (("returns",), "returns-*"),
    "replayed": (("replayed", "replayed-agents"), "replayed-*"),
    "families": (("families", "families-agents"), "family-*"),
    "played": (("played", "played-agents"), "played-*"),
    "agents": (("agents",), "agents-* native-*"),
    "infos": (("infos",), "infos-*"),
    "calls": (("calls",), "calls-*"),
    "single": (("single",), "single-*"),
    "workers": (("workers",), "workers-*"),
}
TITLES = {
    "gymnasium sync": "SyncVectorEnv",
    "gymnasium async": "AsyncVectorEnv",
    "sb3 dummy": "DummyVecEnv",
    "pufferlib-3.0 serial": "PufferLib 3.0 Serial",
    "pufferlib-3.0 processes@w2": "PufferLib 3.0 on two workers",
    "supersuit serial": "SuperSuit",
    "supersuit processes@w2": "SuperSuit on two workers",
    "ours processes@w2": "ours on two workers",
    "ours processes-read@w2": "the same, read in full",
    "ours processes-column@w2": "the same, one column",
    COPIES: "copies alone",
}
SHARES = {  # of the participants whose names begin so
    "gymnasium sync": "ours serial of SyncVectorEnv's",
    "supersuit serial": "ours serial of SuperSuit's",
    COPIES: "ours serial of the copies",
}
GROUPS = {  # of workloads, by the name of their table
    "returns": "16 envs that return various values",
    "single": "one env, synthetic or replayed",
    "replayed": "real environments, replayed, 16 envs",
    "replayed-agents": "environments of several agents, replayed, 16 envs",
    "families": "examples of families, replayed, 16 envs",
    "families-agents": "examples of families with several agents, replayed, 16 envs",
    "played": "real environments, 16 envs",
    "played-agents": "real environments of several agents, 16 envs",
    "agents": "synthetic agents, 16 envs",
    "infos": "infos from two workers, 16 envs",
    "calls": "other ways to call, 16 envs",
    "workers": "32 envs on two workers",
}
BY_LIBRARY = {"ours": "ours", "gymnasium": "SyncVectorEnv"}  # columns of "calls", whose rows are arrangements

Result = Mapping[str, Any]


def overhead_tables(results: Mapping[str, Result]) -> dict[str, str]:
    """Return the Markdown of each section by its name."""
    texts = {}
    for section, (names, patterns) in TABLES.items():
        make = _workers_table if section == "workers" else _table
        tables = [make(name, [result for result in results.values() if table_of(result) == name]) for name in names]
        quoted = " ".join(f"'{pattern}'" for pattern in patterns.split())
        texts[section] = "\n\n".join(filter(None, tables)) or (
            f"Not measured yet: `python -m benchmarks.peers --only {quoted}`."
        )
    return texts


def table_of(result: Result) -> str | None:
    """Return the name of the overheads' table that a workload's result belongs to; None for other workloads."""
    cell = result["workload"]["cell"]
    name: str | None = "returns" if "returns" in cell else cell.get("table")  # "returns": in older results
    return name


def row_of(result: Result) -> str:
    """Return the name of the row that a workload's result has in its table."""
    cell = result["workload"]["cell"]
    name: str = cell.get("row") or cell["returns"]  # "returns": in older results
    return name


def _has_column(participant: str) -> bool:
    """Return whether a table has a column for a participant: not for those that only serve to compare with."""
    library, arrangement, *_ = Participant.of(participant)
    return participant == COPIES or not (library in FLOORS or arrangement.endswith("-plain"))


def _table(name: str, results: Sequence[Result]) -> str:
    """Return one table with a row per workload and a column per participant; "" without results."""
    columns: dict[str, None] = {}
    rows = []
    for result in results:
        entries = {entry["name"]: entry for entry in result["participants"]}
        cells = {}
        for participant, entry in entries.items():
            if _has_column(participant):
                cells[_column(name, participant)] = _cost(entry, entries.get(floor_of(participant, entries)))
        columns.update(dict.fromkeys(cells))
        # Played environments vary by more than the overheads, so ratios of overheads would show nothing.
        shares = {head: _share(entries, peer) for peer, head in SHARES.items()} if not name.startswith("played") else {}
        floor = entries.get("bare steps")
        alone = f"{MedianRange.of(figures(floor, 'step_us')):.2f}" if floor is not None and rates(floor) else "—"
        cells |= {head: share for head, share in shares.items() if share}
        rows.append((row_of(result), alone, cells))
    if not rows:
        return ""
    ordered = sorted(columns, key=lambda column: not column.startswith(("ours", "the same")))
    share_heads = [head for head in SHARES.values() if any(head in cells for *_, cells in rows)]
    heads = (_head(name), "steps alone, µs", *(f"{column}, + µs" for column in ordered), *share_heads)
    columns_of = (*ordered, *share_heads)
    return table(heads, [(row, alone, *(cells.get(column, "") for column in columns_of)) for row, alone, cells in rows])


def _workers_table(name: str, results: Sequence[Result]) -> str:
    """Return the table of two workers next to the serial backend: steps per second, ratio, CPU time per step."""
    rows = []
    for result in results:
        entries = [entry for entry in result["participants"] if entry["name"].startswith("ours")]
        if len(entries) != 2 or not all(rates(entry) for entry in entries):
            continue
        speeds = [rates(entry) for entry in entries]
        cpu_us = [[1e6 * sample["cpu_s"] / sample["steps"] for sample in entry["turns"]] for entry in entries]
        rows.append(
            (
                result["workload"]["cell"]["row"],
                *(f"{MedianRange.of(values):,.0f}" for values in speeds),
                f"{MedianRange.of(ratios(speeds[1], speeds[0])):.2f}",
                *(f"{MedianRange.of(values):.2f}" for values in cpu_us),
            )
        )
    heads = (
        "serial, steps/s",
        "two workers, steps/s",
        "times as fast",
        "serial, CPU µs a step",
        "two workers, CPU µs a step",
    )
    return table((_head(name), *heads), rows) if rows else ""


def _share(entries: Mapping[str, Mapping[str, Any]], peer: str) -> str:
    """Return our overhead as a share of a peer's, by the beginning of its name; "" if a side or a floor did not run."""
    costs = []
    for beginning in ("ours serial", peer):
        name = next((name for name in entries if name.startswith(beginning)), "")
        sides = [entries.get(side) for side in (name, floor_of(name, entries))] if name else [None]
        if not all(side is not None and rates(side) for side in sides):
            return ""
        costs.append(overheads(*(side for side in sides if side is not None)))
    return f"{MedianRange.of(ratios(*costs)):.2f}"


def _cost(entry: Mapping[str, Any], floor: Mapping[str, Any] | None) -> str:
    if entry["status"] == "not handled":
        return "not handled"
    if floor is None or not rates(floor) or not rates(entry):
        return "—"
    return f"{MedianRange.of(overheads(entry, floor)):.2f}"


def _column(name: str, participant: str) -> str:
    if name == "calls":
        return BY_LIBRARY[Participant.of(participant).library]
    old = " (Gymnasium 0.29)" if participant == "ours-old serial" else ""
    return TITLES.get(participant, participant.replace("ours-old", "ours")) + old


def _head(name: str) -> str:
    return {"returns": "returns", "single": "one environment", "infos": "infos", "calls": "what is different"}.get(
        name, "agents" if name == "agents" else "environment"
    )
