"""Compare training with PPO: cleanrl_demo/ppo.py, a script over Gymnasium's vector environments, and SB3.

    python -m benchmarks.train --short            within 8 minutes
    python -m benchmarks.train                    all contestants, 5 seeds each, within half an hour

All have the same environments, network, epochs, minibatches and torch threads; each has its own process and virtual
environment. They take turns, seed by seed, so that ratios are taken between consecutive runs. Steps per second count
environment steps, from the first step to the end of the last update. The final return is that of fresh episodes with
sampled actions. Writes benchmarks/results/train.json and prints tables.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.lines import table_text
from benchmarks.ratios import MedianRange
from benchmarks.revisions import version
from benchmarks.trainers.settings import SETTINGS, Settings
from benchmarks.venvs import python_of
from pufferlib.tuning.bench import machine, overload

__all__ = ["CONTESTANTS", "Contestant", "agree", "run", "table"]

FOLDER = Path(__file__).parent
TIMEOUT_S = 600
SHORT_STEPS = {"cartpole": 60_000, "breakout": 5_000}
SHORT_SEEDS = {"cartpole": 5, "breakout": 3}


class Failed(Exception):
    """Raised when a contestant's run fails, with the reason."""


@dataclass(frozen=True)
class Contestant:
    """A trainer to compare.

    script: in benchmarks/trainers, run by the Python of ``venv``. options: of the script, by environment. short: the
    environments for which the short form includes it, those where it is the best of its kind.
    """

    venv: str
    script: str
    options: Mapping[str, Mapping[str, Any]]
    short: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def _everywhere(**options: Any) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(SETTINGS, options)


# 8 CartPoles step in 70 µs; with worker processes a run took a fifth longer.
OURS = {"cartpole": {"backend": "serial"}, "breakout": {"backend": "pool"}}
CONTESTANTS = {
    "ours": Contestant("train-ours", "ours", OURS, ("cartpole", "breakout")),
    "ours, portable": Contestant("train-ours", "ours", OURS, (), {"PUFFERLIB_NATIVE": "0"}),
    "SB3, DummyVecEnv": Contestant("sb3", "stable_baselines", _everywhere(vectorizer="dummy"), ("cartpole",)),
    "SB3, SubprocVecEnv": Contestant("sb3", "stable_baselines", _everywhere(vectorizer="subproc"), ("breakout",)),
    "CleanRL-style, SyncVectorEnv": Contestant("train-gymnasium", "vector_ppo", _everywhere(vectorizer="sync")),
    "CleanRL-style, AsyncVectorEnv": Contestant(
        "train-gymnasium", "vector_ppo", _everywhere(vectorizer="async"), ("breakout",)
    ),
}


def run(contestant: Contestant, settings: Settings, python: Path, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Run a contestant once and return its result. Raises Failed."""
    task = {"settings": asdict(settings), "options": contestant.options[settings.env], "launched": time.time()}
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [python, "-m", f"trainers.{contestant.script}", json.dumps(task)],
                capture_output=True,
                text=True,
                cwd=folder,  # not the repository, so that imports come from its virtual environment
                env={**os.environ, **contestant.variables, "PYTHONPATH": str(FOLDER)},
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"it was not done within {timeout_s} s") from None
    if done.returncode:
        raise Failed(f"it ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def agree(runs: Sequence[Mapping[str, Any]]) -> None:
    """Raise Failed unless the runs of a seed had the same settings, network size, threads and version of torch."""
    for name in ("settings", "num_parameters", "torch_threads"):
        values = {json.dumps(result[name], sort_keys=True) for result in runs}
        if len(values) > 1:
            raise Failed(f"the runs differ: {name} is {' and '.join(sorted(values))}")
    torches = {result["versions"]["torch"] for result in runs}
    if len(torches) > 1:
        raise Failed(f"the runs have different versions of torch: {', '.join(sorted(torches))}")


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of contestants; the first one is compared with each of the others.

    entries: name and runs of each. Times as fast: the median of the ratios between runs with the same seed.
    """
    base = {result["settings"]["seed"]: result["steps_per_s"] for result in entries[0]["runs"]}
    lines = [
        f"| contestant | steps/s | {entries[0]['name']} is … times as fast | final return | set-up, s |",
        "|" + " --- |" * 5,
    ]
    for entry in entries:
        runs = [result for result in entry["runs"] if result["settings"]["seed"] in base]
        ratios = [base[result["settings"]["seed"]] / result["steps_per_s"] for result in runs]
        ahead = sum(ratio > 1 for ratio in ratios)
        ratio_text = "" if entry is entries[0] else f"{MedianRange.of(ratios):.2f}, ahead in {ahead} of {len(ratios)}"
        returns = [result["final_return"] for result in runs]
        lines.append(
            f"| {entry['name']} | {MedianRange.of([result['steps_per_s'] for result in runs]):,.0f} | {ratio_text} "
            f"| mean {mean(returns):.1f} ({min(returns):.1f} – {max(returns):.1f}) "
            f"| {median([result['setup_s'] for result in runs]):.1f} |"
        )
    return "\n".join(lines)


def _measured(env: str, names: Sequence[str], seeds: Sequence[int], short: bool, ours: Path | None) -> dict[str, Any]:
    """Run the contestants on one environment, and return the entry to store."""
    load, begun = os.getloadavg()[0], time.monotonic()
    settings = replace(SETTINGS[env], total_steps=SHORT_STEPS[env]) if short else SETTINGS[env]
    entries: list[dict[str, Any]] = [{"name": name, **asdict(CONTESTANTS[name]), "runs": []} for name in names]
    pythons = {
        name: ours if ours is not None and CONTESTANTS[name].script == "ours" else python_of(CONTESTANTS[name].venv)
        for name in names
    }
    for number, seed in enumerate(seeds):
        for shift in range(len(entries)):
            entry = entries[(number + shift) % len(entries)]
            name = entry["name"]
            result = run(CONTESTANTS[name], replace(settings, seed=seed), pythons[name])
            entry["runs"].append(result)
            print(
                f"{env}, seed {seed}, {name}: {result['steps_per_s']:,.0f} steps/s, "
                f"final return {result['final_return']:.1f}, {result['total_s']:.0f} s in all",
                flush=True,
            )
        agree([entry["runs"][-1] for entry in entries])
    return {
        "env": env,
        "form": "short" if short else "full",
        "contestants": entries,
        "load": [load, os.getloadavg()[0]],
        "took_s": round(time.monotonic() - begun, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="the best of each kind, and fewer steps of Breakout")
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="environments")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, help="default: all of the form")
    parser.add_argument("--seeds", type=int, help="how many (5; 3 of the short form's Breakout)")
    parser.add_argument("--ours", type=Path, metavar="PYTHON", help="that has pufferlib[train,atari], to save a venv")
    parser.add_argument("--results", type=Path, default=FOLDER / "results", metavar="FOLDER")
    options = parser.parse_args()
    print(machine())
    if overload():
        print(overload())
    path = options.results / "train.json"
    environments = json.loads(path.read_text())["environments"] if path.exists() else []
    for env in options.only:
        in_form = [name for name in CONTESTANTS if not options.short or env in CONTESTANTS[name].short]
        names = options.contestants or in_form
        seeds = range(1, 1 + (options.seeds or (SHORT_SEEDS[env] if options.short else 5)))
        measured = _measured(env, names, seeds, options.short, options.ours)
        print(f"\n{table(measured['contestants'])}\n", flush=True)
        environments = [*(entry for entry in environments if entry["env"] != env), measured]
        facts = {
            "machine": machine(),
            "revision": version(),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join(["python", "-m", "benchmarks.train", *sys.argv[1:]]),
            "environments": environments,
        }
        options.results.mkdir(parents=True, exist_ok=True)
        path.write_text(table_text(facts))


if __name__ == "__main__":
    main()
