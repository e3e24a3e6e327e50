"""Train the demo trainer with its defaults on a few environments, and draw the curves of docs/training.md.

    python -m benchmarks.curves

Prints the page's table and writes docs/curves/*.png. Trains with five seeds, one after the other, on a pool that uses
all cores; nothing was tuned on these seeds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

from cleanrl_demo.ppo import Config, train
from pufferlib.training.plot import plot

FOLDER = Path(__file__).parent.parent / "docs" / "curves"
ENVS = {"ocean/squared": 1000, "MiniGrid-Empty-8x8-v0": 100}  # environment: episodes of the evaluation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[201, 202, 203, 204, 205])
    seeds = parser.parse_args().seeds
    rows = [
        "| environment | seeds | mean return, worst – best | score | steps | seconds of training |",
        "|" + " --- |" * 6,
    ]
    for env, eval_episodes in ENVS.items():
        with tempfile.TemporaryDirectory() as runs:
            results = [train(Config(env=env, seed=seed, eval_episodes=eval_episodes, runs=runs)) for seed in seeds]
            plot([result.run_folder for result in results], FOLDER / f"{env.replace('/', '-').lower()}.png")
        returns = [result.mean_return for result in results]
        scores = [result.score for result in results if result.score is not None]
        seconds = [result.seconds for result in results]
        rows.append(
            f"| {env} | {', '.join(map(str, seeds))} | {min(returns):.3f} – {max(returns):.3f} "
            f"| {f'{min(scores):.3f} – {max(scores):.3f}' if scores else '—'} "
            f"| {max(result.num_steps for result in results):,} "
            f"| median {np.median(seconds):.0f} ({min(seconds):.0f} – {max(seconds):.0f}) |"
        )
    print("\n".join(rows))
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
