"""Compare programs for PufferLib 3 on this project and on PufferLib 3.0.0: what PuffeRL learns, and steps per second.

    python -m benchmarks.puffer_programs [returns | speeds]          an hour; --short: minutes, stores nothing

returns: trainers/puffer_program.py trains three environments with five seeds on the CPU: Gymnasium's CartPole on a
pool, a PettingZoo team on Serial, and a native PufferEnv that needs an LSTM. speeds: vectorizers/pufferlib_30.py, whose
calls are PufferLib's ``vector.make``, ``recv`` and ``send``, takes turns on both libraries and next to a bare loop, on
Gymnasium 0.29, and on this project with Gymnasium 1.4, which PufferLib 3.0.0 cannot be installed with. Writes
benchmarks/results/puffer_programs.json after each training and each workload, and the tables in docs/pufferlib.md; what
it has is not run again unless --again is given.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.lines import table_text
from benchmarks.pages import fill, table, write_page
from benchmarks.participants import Workload
from benchmarks.peers import measure, terminable
from benchmarks.ratios import MedianRange, rates, ratios
from benchmarks.revisions import version
from benchmarks.venvs import ignored_folder, python_of
from pufferlib.tuning.bench import machine

RESULTS = Path(__file__).parent / "results" / "puffer_programs.json"
PAGE = Path(__file__).parent.parent / "docs" / "pufferlib.md"
PROGRAM = Path(__file__).parent / "trainers" / "puffer_program.py"
SIDES = {"ours": "programs-old", "PufferLib 3.0.0": "pufferlib-3.0-train"}  # and their virtual environments
STEPS = {"cartpole": 80_000, "team": 48_000, "recall": 96_000}
SEEDS = (1, 2, 3, 4, 5)
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # Student's t for a two-sided interval, by the number of seeds
LIMIT_S = 900

_SERIAL = ("ours-program serial", "pufferlib-3.0 serial", "bare-old loop")
_WORKERS = ("ours-program processes@w2", "pufferlib-3.0 processes@w2", "bare-old loop")
_NEW_SERIAL = ("ours-program-new serial", "pufferlib-3.0 serial", "bare loop")
_NEW_WORKERS = ("ours-program-new processes@w2", "pufferlib-3.0 processes@w2", "bare loop")
SPEEDS = [
    Workload("trivial-serial", "trivial environment, 32 on Serial", _SERIAL),
    Workload("trivial-workers", "trivial environment, 32 on Multiprocessing, two workers", _WORKERS),
    Workload("cartpole-serial", "CartPole, 32 on Serial", _SERIAL, env="cartpole"),
    Workload("cartpole-workers", "CartPole, 32 on Multiprocessing, two workers", _WORKERS, env="cartpole"),
    Workload(
        "cartpole-serial-new", "CartPole, 32 on Serial; ours and the loop on Gymnasium 1.4", _NEW_SERIAL, env="cartpole"
    ),
    Workload(
        "cartpole-workers-new",
        "CartPole, 32 on Multiprocessing, two workers; ours and the loop on Gymnasium 1.4",
        _NEW_WORKERS,
        env="cartpole",
    ),
]


def train(side: str, task: str, seed: int, steps: int) -> dict[str, Any]:
    """Train in a process of its own; return the program's answer, or the reason for which there is none."""
    command = [python_of(SIDES[side]), PROGRAM, task, str(seed), str(steps)]
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    entry: dict[str, Any] = {"side": side, "task": task, "seed": seed, "load": round(os.getloadavg()[0], 1)}
    try:
        folder = ignored_folder()  # PufferLib 3.0 leaves a link where it is imported
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {**entry, "failed": f"not done within {LIMIT_S} s"}
    if done.returncode:
        return {**entry, "failed": "".join(done.stderr.strip().splitlines()[-1:])[:300]}
    return {**entry, **json.loads(done.stdout)}


def returns_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of mean returns, with the 95 % interval of each side, and whether ours reaches theirs."""
    rows = []
    for task in STEPS:
        means = {
            side: [item["mean_return"] for item in entries if (item["side"], item["task"]) == (side, task)]
            for side in SIDES
            if not any("failed" in item for item in entries if (item["side"], item["task"]) == (side, task))
        }
        texts = [_interval_text(means.get(side, [])) for side in SIDES]
        ours, theirs = (means.get(side, []) for side in SIDES)
        reached = "–"
        if ours and len(theirs) > 1:
            reached = "yes" if mean(ours) >= mean(theirs) - half_width(theirs) else "no"
        rows.append((task, *texts, reached))
    return table(("environment", *SIDES, "at or above the lower end"), rows)


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of a mean of two to five values."""
    return T_95[len(values)] * stdev(values) / math.sqrt(len(values))


def _interval_text(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{mean(values):.2f}" + (f" ± {half_width(values):.2f}" if len(values) > 1 else "") + f" ({len(values)})"


def speeds_table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table of steps per second, and of the ratio of ours to theirs within the turns."""
    rows = []
    for workload in SPEEDS:
        entries = {entry["name"]: entry for entry in results.get(workload.name, ())}
        if not entries:
            continue
        failed = [f"{name}: {entry['reason'][:80]}" for name, entry in entries.items() if "reason" in entry]
        speeds = {name: rates(entry) for name, entry in entries.items() if "reason" not in entry}
        texts = [f"{MedianRange.of(speeds[name]):,.0f}" if name in speeds else "–" for name in workload.participants]
        ours, theirs = workload.participants[:2]
        ratio = "; ".join(failed)
        if ours in speeds and theirs in speeds:
            ratio = f"{MedianRange.of(ratios(speeds[ours], speeds[theirs])):.2f}"
        rows.append((workload.title, *texts, ratio))
    return table(("environments", "ours", "PufferLib 3.0.0", "bare loop", "ours is … times as fast"), rows)


def read_results(path: Path) -> dict[str, Any]:
    """Return the stored results: facts, the entries of trainings (returns), and measurements by workload (speeds)."""
    if not path.exists():
        return {}
    stored: dict[str, Any] = json.loads(path.read_text())
    return {**stored, "returns": [dict(entry) for entry in stored["returns"]], "speeds": dict(stored["speeds"])}


def results_text(stored: Mapping[str, Any]) -> str:
    """Return results as JSON in one line."""
    returns = [[*entry.items()] for entry in stored["returns"]]
    return table_text({**stored, "returns": returns, "speeds": [*stored["speeds"].items()]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="returns, speeds; by default both")
    parser.add_argument("--short", action="store_true", help="one seed, a tenth of the steps, two turns")
    parser.add_argument("--again", action="store_true", help="run again what there are results for")
    options = parser.parse_args()
    parts = options.parts or ["returns", "speeds"]
    if unknown := {*parts} - {"returns", "speeds"}:
        parser.error(f"{unknown.pop()!r} is no part; use returns or speeds")
    stored: dict[str, Any] = {"returns": [], "speeds": {}}
    if not options.short:
        stored |= read_results(RESULTS)
    stored |= {"machine": machine(), "version": version()}

    def save() -> None:
        if not options.short:
            RESULTS.write_text(results_text(stored))

    texts = {}
    with terminable():
        if "returns" in parts:
            for seed in SEEDS[:1] if options.short else SEEDS:
                for task, steps in STEPS.items():
                    for side in SIDES:
                        key = (side, task, seed)
                        rest = [item for item in stored["returns"] if (item["side"], item["task"], item["seed"]) != key]
                        if len(rest) < len(stored["returns"]) and not options.again:
                            continue
                        entry = train(*key, steps // 10 if options.short else steps)
                        print(json.dumps(entry), flush=True)
                        stored["returns"] = [*rest, entry]
                        save()
            texts["puffer_returns"] = returns_table(stored["returns"])
        if "speeds" in parts:
            for workload in SPEEDS:
                if workload.name in stored["speeds"] and not options.again:
                    continue
                repeats, window_s = (2, 0.1) if options.short else (21, 0.5)
                stored["speeds"][workload.name] = measure(
                    workload, workload.participants, repeats=repeats, window_s=window_s, warm_up_s=0.1, log=sys.stderr
                )
                save()
            texts["puffer_speeds"] = speeds_table(stored["speeds"])
    print("\n\n".join(texts.values()))
    if not options.short:
        write_page(PAGE, fill(PAGE.read_text(), texts))


if __name__ == "__main__":
    main()
