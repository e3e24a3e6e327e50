"""Time the `puffer ocean` command as a whole, including processes and imports.

    python -m benchmarks.ocean_suite               three times with its defaults: five minutes
    python -m benchmarks.ocean_suite --jobs 1      one training at a time

Writes benchmarks/results/ocean_suite.json and the table in benchmarks/README.md. CPU seconds are those of all
processes. Needs pufferlib[train].
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.lines import table_text
from benchmarks.pages import fill, table, write_page
from benchmarks.processes import children_cpu_s
from benchmarks.ratios import MedianRange
from benchmarks.revisions import version
from pufferlib.tuning.bench import machine

__all__ = ["run", "section"]

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results" / "ocean_suite.json"
REPEATS = 3


def run(command: Sequence[str]) -> dict[str, Any]:
    """Run a command; return its wall and CPU seconds, the load before, its exit code and its last line."""
    load, cpu_s, start_s = os.getloadavg()[0], children_cpu_s(), perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    wall_s = perf_counter() - start_s
    lines = (done.stdout if done.returncode == 0 else done.stderr + done.stdout).strip().splitlines()
    return {
        "wall_s": round(wall_s, 2),
        "cpu_s": round(children_cpu_s() - cpu_s, 2),
        "load": round(load, 1),
        "exit_code": done.returncode,
        "said": lines[-1] if lines else "",
    }


def section(results: Mapping[str, Any]) -> str:
    """Return the figures as Markdown: medians, least and greatest values."""
    rows = []
    for command, runs in results["runs"].items():
        wall_s, cpu_s, load = (MedianRange.of([run[key] for run in runs]) for key in ("wall_s", "cpu_s", "load"))
        last_lines = "; ".join(dict.fromkeys(run["said"] for run in runs))
        rows.append((f"`{command}`", f"{wall_s:.0f}", f"{cpu_s:.0f}", f"{load:.1f}", str(len(runs)), last_lines))
    heads = ("", "seconds", "CPU seconds", "load before", "times", "its last line")
    about = f"{results['machine']}; {results['date'][:10]}; [raw results](results/ocean_suite.json)."
    return f"{about}\n\n{table(heads, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--jobs", type=int, help="of `puffer ocean`; without it, its default")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    options = parser.parse_args()
    arguments = ["ocean", *([] if options.jobs is None else ["--jobs", str(options.jobs)])]
    stored = json.loads(options.results.read_text()) if options.results.exists() else {}
    facts = {"machine": machine(), "revision": version()}
    runs = stored["runs"] if all(stored.get(key) == value for key, value in facts.items()) else {}
    facts["date"] = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    command_runs = runs[" ".join(["puffer", *arguments])] = []
    for _ in range(options.repeats):
        command_runs.append(run([sys.executable, "-m", "pufferlib.cli", *arguments]))
        print(json.dumps(command_runs[-1]), flush=True)
    results = {**facts, "runs": runs}
    options.results.write_text(table_text(results))
    if options.results == RESULTS:
        page = FOLDER / "README.md"
        write_page(page, fill(page.read_text(), {"ocean_suite": section(results)}))
    print(section(results))
    sys.exit(any(result["exit_code"] for result in command_runs))


if __name__ == "__main__":
    main()
