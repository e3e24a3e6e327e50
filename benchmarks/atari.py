"""Publish a run of examples/atari.toml, which takes hours, in docs/reference.md.

    puffer train examples.atari:game --config examples/atari.toml
    puffer train --resume runs/RUN                           continues a stopped run, any number of times
    python -m benchmarks.atari runs/RUN

Plays the policy for 30 episodes with sampled actions, and writes their returns and the run's curve to
benchmarks/results/atari-pong.json. `python -m benchmarks.reference` then puts them on its page.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lines import table_text
from benchmarks.pages import mark
from benchmarks.revisions import version
from pufferlib.training.evaluation import Subject, play
from pufferlib.training.plot import SECONDS_TAG, Band, draw, read
from pufferlib.training.runs import read_config
from pufferlib.tuning.bench import machine

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results" / "atari-pong.json"
PICTURE = FOLDER.parent / "docs" / "curves" / "reference-atari.png"
NUM_EPISODES = 30
NUM_POINTS = 200  # of the stored curve
PUBLISHED = {  # after 10 million steps, according to the projects' pages
    "RL Baselines3 Zoo (Stable-Baselines3)": 20.989,
    "CleanRL, ppo_atari.py": 20.36,
}


def lines(run: dict[str, Any]) -> list[str]:
    """Return the lines of docs/reference.md on this run."""
    return [
        "## Atari",
        "",
        f"{run['game']}, one run of {run['steps']:,} steps with the settings of",
        "[examples/atari.toml](../examples/atari.toml). The published runs have the same settings, except for their",
        f"10,000,000 steps and for our networks' precision, {run['precision']}. The mean return of {NUM_EPISODES}",
        "fresh episodes with sampled actions is",
        f"**{run['mean']:.2f}** (95 % interval over episodes {run['low']:.2f} – {run['high']:.2f}; "
        f"the lowest is {run['minimum']:g}). Published after 10,000,000 steps:",
        f"{', '.join(f'{value:.2f} by {name}' for name, value in PUBLISHED.items())}.",
        f"One thread on {run['machine']}, {run['hours']:.1f} hours. One run gives no interval over seeds.",
        "",
        mark("revision_atari_pong"),
        "",
        "```",
        "puffer train examples.atari:game --config examples/atari.toml"
        + ("" if run["steps"] == 3_000_000 else f" --total-steps {run['total_steps']}"),
        "python -m benchmarks.atari runs/…",
        "```",
        "",
        "![return of the last hundred episodes over steps](curves/reference-atari.png)",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    folder = parser.parse_args().run
    config, curve = read_config(folder), read(folder, "charts/episodic_return")
    evaluation = play(Subject.of(folder, trust=True), num_episodes=NUM_EPISODES, num_envs=8)
    returns = evaluation.returns
    chosen = np.unique(np.linspace(0, len(curve.steps) - 1, NUM_POINTS).astype(int))
    result = {
        "game": "Pong",
        "steps": int(curve.steps[-1]),
        "total_steps": config["total_steps"],
        "precision": config["precision"],
        "seed": config["seed"],
        **{name: getattr(returns, name) for name in ("mean", "low", "high", "minimum")},
        "hours": float(read(folder, SECONDS_TAG).values[-1]) / 3600,
        "machine": machine(),
        "revision": version(),
        "date": datetime.date.today().isoformat(),
        "curve": [[int(curve.steps[point]), round(float(curve.values[point]), 3)] for point in chosen],
    }
    RESULTS.write_text(table_text(result))
    steps, values = np.array(result["curve"]).T
    draw([Band("Pong, 1 run", steps, values, values, values)], PICTURE, "steps", "return of the last hundred episodes")
    print("\n".join(lines(result)))


if __name__ == "__main__":
    main()
