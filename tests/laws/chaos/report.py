"""What a run of the chaos suite has to tell: totals, a line for each arrangement, a table for the documents."""

from __future__ import annotations

import os
import platform
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["machine", "page", "summary", "totals"]


def summary(result: dict[str, Any]) -> str:
    phases = ", ".join(f"{num} {phase}" for phase, num in result["deaths by phase"].items())
    counts = f"{result['transitions']:9,} transitions, {result['deaths']:4} deaths ({phases})"
    return f"{result['path']} {result['name']:24} {counts}, {result['crash rows']} crash rows, {result['seconds']} s"


def totals(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Add up; there is nothing to add up of rows lost, doubled or torn, as the first of them ends the run."""
    phases: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    for result in results:
        phases.update(result["deaths by phase"])
        causes.update(result["deaths by cause"])
    keys = ("transitions", "batches", "deaths", "exceptions raised", "crash rows", "most crash rows", "kills sent",
            "stops sent", "signals to the learner", "errors", "interrupts", "seconds")  # fmt: skip
    added = {key: round(sum(result[key] for result in results), 1) for key in keys}
    left = Counter[str]()
    for result in results:
        left.update(result["left behind"])
    return {**added, "deaths by phase": dict(sorted(phases.items())), "deaths by cause": dict(sorted(causes.items())),
            "left behind": dict(left),
            "longest wait, s": max((result["longest wait, s"] for result in results), default=0.0)}  # fmt: skip


def machine() -> dict[str, Any]:
    import gymnasium
    import numpy

    import pufferlib
    from benchmarks.revisions import version

    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())  # fmt: skip
    return {"processor": model, "cores": os.cpu_count(), "system": f"Linux {platform.release()}",
            "Python": platform.python_version(), "NumPy": numpy.__version__, "Gymnasium": gymnasium.__version__,
            "pufferlib": pufferlib.__version__, "revision": version(), "date": time.strftime("%Y-%m-%d")}  # fmt: skip


PHASES = {
    "asleep": "asleep: waiting for work",
    "stepping": "in the environment's step",
    "reset": "in its reset",
    "init": "in its `__init__`",
    "packing": "packing: from the step's return to the row's commit",
    "between claim and commit": "between claiming a slot and committing its row",
    "between commit and count": "between committing a row and counting it",
    "starting": "as a process that was just being started",
    "an actor": "over Ray: an actor, whatever it did",
    "a process of an actor": "over Ray: a process of an actor, whatever it did",
}


def page(text: str, report: Mapping[str, Any]) -> str:
    """Return a document with the tables of a report between its marks."""
    return re.sub(
        "<!-- begin chaos -->.*?<!-- end chaos -->",
        lambda _: f"<!-- begin chaos -->\n{tables(report)}\n<!-- end chaos -->",
        text,
        flags=re.DOTALL,
    )


def played_on(machine: Mapping[str, Any]) -> str:
    about = ", ".join(f"{name} {machine[name]}" for name in ("Python", "NumPy", "Gymnasium", "pufferlib"))
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}; {about}; {machine['date']}; "
        f"{machine['seconds'] / 60:.0f} minutes."
    )


def tables(report: Mapping[str, Any]) -> str:
    """Return what was played where, as Markdown."""
    total, results = report["totals"], report["arrangements"]
    lines = [
        *map(played_on, report["machines"]),
        "",
        f"**{total['transitions']:,} transitions checked, {total['deaths']:,} workers dead** (and "
        f"{total['stops sent']:,} stopped for a while), {total['exceptions raised']:,} exceptions of environments, "
        f"{total['signals to the learner']:,} signals to the learner. **No row was lost, doubled or torn**, or the run "
        f"would have ended there; the longest wait for a batch was {total['longest wait, s']:.1f} s; **"
        f"{', '.join(f'{num} {what}' for what, num in total['left behind'].items())} were left behind.** "
        f"{total['crash rows']:,} crash rows; deaths and exceptions allow for {total['most crash rows']:,}.",
        "",
        "| where the worker was when it died | compiled path | portable path |",
        "|---|---|---|",
    ]
    by_path: dict[str, Counter[str]] = {"compiled": Counter(), "portable": Counter()}
    for result in results:
        by_path[result["path"]].update(result["deaths by phase"])
    for phase, words in PHASES.items():
        cells = [f"{by_path[path][phase] or '–'}" for path in ("compiled", "portable")]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    lines += [
        "",
        "| arrangement | envs/workers/batch | transitions | deaths | exceptions | crash rows |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(result["name"] for result in results):
        both = [result for result in results if result["name"] == name]
        counts = "/".join(str(both[0][key]) for key in ("num_envs", "num_workers", "batch_size"))
        cells = [f"{sum(result[key] for result in both):,}" for key in
                 ("transitions", "deaths", "exceptions raised", "crash rows")]  # fmt: skip
        lines.append(f"| {name} | {counts} | {' | '.join(cells)} |")
    return "\n".join(lines)
