"""Compare the returns of cleanrl_demo/ppo.py with those of Stable-Baselines3's PPO after equal steps.

    python -m benchmarks.reference                       all tasks, 5 seeds each: about an hour on two cores
    python -m benchmarks.reference --only cartpole       one task

Both have the same environments, network and settings (trainers/settings.py: REFERENCE); the returns are those of 100
fresh episodes with sampled actions. Speed is not compared: runs share the machine, one on each core. Runs that
benchmarks/results/reference.json already holds are skipped, so a stopped run can go on. Writes that file,
docs/reference.md and docs/curves/reference-*.png. Our trainer runs in this Python, which needs pufferlib[dev].
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks import atari
from benchmarks.lines import table_text
from benchmarks.pages import mark, write_page
from benchmarks.revisions import version
from benchmarks.train import FOLDER, Contestant, run
from benchmarks.trainers.settings import REFERENCE
from benchmarks.venvs import python_of
from pufferlib.training.plot import Curve, band_of, draw, interval_radius
from pufferlib.tuning.bench import machine

TIMEOUT_S = 3600
NUM_POINTS = 60  # of a stored curve
DOCS = FOLDER.parent / "docs"
SEEDS = (1, 2, 3, 4, 5)
OURS, SB3 = "ours", "SB3"
TASKS = {
    "cartpole": "CartPole-v1",
    "lunarlander": "LunarLander-v3",
    "lunarlander-continuous": "LunarLander-v3, continuous",
    "doorkey": "MiniGrid-DoorKey-5x5-v0",
}


def _same(**options: Any) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(REFERENCE, options)


CONTESTANTS = {
    OURS: Contestant("train-ours", "ours", _same(backend="serial", runs="runs")),
    SB3: Contestant("sb3", "stable_baselines", _same(vectorizer="dummy", curve=True)),
}
Key = tuple[str, str, int]  # task, contestant, seed


def interval(returns: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean over seeds, by Student's t."""
    radius = float(interval_radius(np.array(returns)))
    return mean(returns) - radius, mean(returns) + radius


def rows(runs: Mapping[Key, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table of the tasks that both have run with the same seeds."""
    yield "| task | steps | ours: mean return | SB3: mean return | no worse |"
    yield "|" + " --- |" * 5
    for task, name in TASKS.items():
        seeds = [seed for seed in SEEDS if (task, OURS, seed) in runs and (task, SB3, seed) in runs]
        if len(seeds) < 2:
            continue
        ours, theirs = ([runs[task, contestant, seed]["final_return"] for seed in seeds] for contestant in (OURS, SB3))
        (low, high), (their_low, their_high) = interval(ours), interval(theirs)
        steps = runs[task, OURS, seeds[0]]["settings"]["total_steps"]
        verdict = "yes" if high >= their_low else "NO"
        yield (
            f"| {name} | {steps:,} | {_number_text(mean(ours))} ({_number_text(low)} – {_number_text(high)}) "
            f"| {_number_text(mean(theirs))} ({_number_text(their_low)} – {_number_text(their_high)}) "
            f"| {verdict}, {len(seeds)} seeds |"
        )


def _number_text(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"


def page(facts: Mapping[str, Any], runs: Mapping[Key, Mapping[str, Any]]) -> str:
    """Return docs/reference.md."""
    lines = [
        "# Returns compared with Stable-Baselines3's",
        "",
        "`python -m benchmarks.reference` wrote this page. Both trainers have the same environments, network and",
        "settings (`REFERENCE` in [benchmarks/trainers/settings.py](../benchmarks/trainers/settings.py)), tuned for",
        "neither. A return is the mean of 100 fresh episodes with sampled actions after training; the table shows its",
        "mean over seeds, with the 95 % interval of that mean by Student's t. *No worse*: our interval overlaps SB3's,",
        "or lies above it.",
        "",
        f"{facts['machine']}. {facts['date'][:10]}, version {facts['version']}. Raw results:",
        "[benchmarks/results/reference.json](../benchmarks/results/reference.json).",
        "",
        mark("revision_reference"),
        "",
        *rows(runs),
        "",
        "The curves show the return of the last hundred episodes in training: the mean over seeds, with the 95 %",
        "interval.",
        "",
    ]
    for task, name in TASKS.items():
        if (DOCS / "curves" / f"reference-{task}.png").exists():
            lines += [f"![{name}](curves/reference-{task}.png)", ""]
    if atari.RESULTS.exists():
        lines += atari.lines(json.loads(atari.RESULTS.read_text()))
    return "\n".join(lines)


def pictures(runs: Mapping[Key, Mapping[str, Any]]) -> None:
    """Draw the curves of each task."""
    for task, name in TASKS.items():
        bands = []
        for contestant in CONTESTANTS:
            curves = [runs[task, contestant, seed]["curve"] for seed in SEEDS if (task, contestant, seed) in runs]
            if len(curves) > 1:
                numbers = [Curve(*np.array(curve).T) for curve in curves]
                bands.append(band_of(f"{name}, {contestant}: {len(curves)} seeds", numbers))
        if bands:
            draw(bands, DOCS / "curves" / f"reference-{task}.png", "steps", "episodic return")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--again", action="store_true", help="run again what the results hold already")
    parser.add_argument("--results", type=Path, default=FOLDER / "results" / "reference.json", metavar="FILE")
    options = parser.parse_args()
    stored = json.loads(options.results.read_text()) if options.results.exists() else {"runs": []}
    runs: dict[Key, Any] = {
        (entry["task"], entry["contestant"], entry["settings"]["seed"]): entry for entry in stored["runs"]
    }
    due = [
        (task, contestant, seed)
        for task in options.only
        for seed in options.seeds
        for contestant in options.contestants
        if options.again or _settings(runs.get((task, contestant, seed))) != asdict(replace(REFERENCE[task], seed=seed))
    ]
    pythons = {OURS: Path(sys.executable), SB3: python_of("sb3")}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = {
            pool.submit(
                run, CONTESTANTS[contestant], replace(REFERENCE[task], seed=seed), pythons[contestant], TIMEOUT_S
            ): (task, contestant, seed)
            for task, contestant, seed in due
        }
        for job in as_completed(jobs):
            task, contestant, seed = jobs[job]
            result = job.result()
            runs[task, contestant, seed] = {"task": task, "contestant": contestant, **_thinned(result)}
            print(
                f"{task}, {contestant}, seed {seed}: {result['final_return']:.2f} in {result['seconds']:.0f} s",
                flush=True,
            )
            facts = {
                "machine": machine(),
                "revision": version(),
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "version": result["versions"].get("pufferlib", stored.get("version", "")),
                "command": shlex.join(["python", "-m", "benchmarks.reference", *sys.argv[1:]]),
            }
            stored = {**facts, "runs": [runs[key] for key in sorted(runs)]}
            options.results.write_text(table_text(stored))
    pictures(runs)
    write_page(DOCS / "reference.md", page(stored, runs))
    print("\n".join(rows(runs)))


def _settings(stored: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if stored is None:
        return None
    return {name: tuple(value) if isinstance(value, list) else value for name, value in stored["settings"].items()}


def _thinned(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a contestant's result with fewer points in its curve, as many as a picture shows."""
    curve = result["curve"]
    chosen = sorted({round(i) for i in np.linspace(0, len(curve) - 1, NUM_POINTS)}) if curve else []
    return {**result, "curve": [[int(curve[i][0]), round(float(curve[i][1]), 3)] for i in chosen]}


if __name__ == "__main__":
    main()
