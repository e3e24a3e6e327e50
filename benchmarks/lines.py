"""Results as JSON with one line per item or group of items: files of figures as they come, and files of tables.

A line of figures is complete even if the program is killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["append", "by_task", "lines_of", "table_text", "ungrouped"]


def append(path: Path | None, **figure: Any) -> None:
    """Add a line to a file in one write; do nothing if there is no path."""
    if path is None:
        return
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, json.dumps(figure).encode() + b"\n")
    finally:
        os.close(handle)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the figures of a file, without lines that a full disk cut short; [] if there is no file."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def table_text(result: Mapping[str, Any]) -> str:
    """Return a result as JSON: its facts in the first line, then its tables, with a line for each of their items.

    A table is a list of dicts, or a dict whose values are all lists or dicts.
    """
    tables = {key: value for key, value in result.items() if _is_table(value)}
    facts = json.dumps({key: value for key, value in result.items() if key not in tables})
    parts = [facts[1:-1]] if len(tables) < len(result) else []
    for key, value in tables.items():
        if isinstance(value, dict):
            items, ends = [json.dumps({name: item})[1:-1] for name, item in value.items()], "{}"
        else:
            items, ends = [json.dumps(item) for item in value], "[]"
        lines = ",\n".join(f" {item}" for item in items)
        parts.append(f"{json.dumps(key)}: {ends[0]}\n{lines}\n{ends[1]}")
    return "{" + ",\n".join(parts) + "}\n"


def by_task(items: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return a table of a list's items with a line for all that have the same "task"."""
    groups: dict[str, list[Any]] = {}
    for item in items:
        groups.setdefault(item["task"], []).append(item)
    return groups


def ungrouped(groups: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the items of a table that ``by_task`` returned."""
    return [item for items in groups.values() for item in items]


def _is_table(value: object) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(isinstance(item, (list, dict)) for item in value.values())
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
