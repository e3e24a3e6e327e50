"""Store the growth that `make leaks` measures, and write its table in benchmarks/README.md.

    python -m benchmarks.leaks

tests/failures/test_leaks.py adds each run of its long form to benchmarks/results/leaks.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lines import table_text
from benchmarks.pages import fill, table, write_page
from benchmarks.revisions import version
from pufferlib.tuning.bench import machine

__all__ = ["RESULTS", "add", "section"]

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results" / "leaks.json"
COUNTED = ("descriptors", "threads", "children", "zombies", "worker_descriptors")


def add(arguments: Sequence[str], growth: Mapping[str, float], results: Path = RESULTS) -> None:
    """Add a run of tests/helpers/leaks.py to the results, in place of an earlier one with the same arguments."""
    runs = json.loads(results.read_text())["runs"] if results.exists() else []
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    facts = {"machine": machine(), "revision": version(), "date": day, "load": round(os.getloadavg()[0], 1)}
    run = {"words": " ".join(arguments), **facts, "seen": dict(growth)}
    others = [item for item in runs if item["words"] != run["words"]]
    results.write_text(table_text({"runs": sorted([*others, run], key=lambda item: item["words"])}))


def section(results: Mapping[str, Any]) -> str:
    """Return the figures as Markdown: the run, its duration, and the resources held after it beyond those before."""
    rows = []
    for run in results["runs"]:
        growth = run["seen"]
        kib = [f"{growth[key] / 1024:,.0f}" if key in growth else "" for key in ("bytes", "worker_bytes")]
        counted = sum(growth.get(key, 0) for key in COUNTED)
        rows.append(
            (f"`{run['words']}`", f"{growth['done']:,.0f}", f"{growth['seconds']:,.0f}", f"{counted:.0f}")
            + (f"{growth['objects']:,.0f}", *kib)
        )
    heads = ("", "done", "seconds", "descriptors, threads, processes", "objects", "KiB", "KiB of a worker")
    machines, dates = (sorted({run[key] for run in results["runs"]}) for key in ("machine", "date"))
    loads = [run["load"] for run in results["runs"]]
    about = f"{'; '.join(machines)}; {', '.join(dates)}; load {min(loads)} – {max(loads)}"
    return f"{about}; [raw results](results/leaks.json).\n\n{table(heads, rows)}"


def main() -> None:
    page = FOLDER / "README.md"
    write_page(page, fill(page.read_text(), {"leaks": section(json.loads(RESULTS.read_text()))}))


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    main()
