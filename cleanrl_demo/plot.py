"""Curves of runs: one line an environment, the mean over its seeds, in the range from the worst to the best.

python -m cleanrl_demo.plot --runs runs/MiniGrid-Empty-8x8-v0__ppo__* --out curve.png
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np


def read(run_folder: Path, tag: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps, values) of a run's TensorBoard scalar. Raises KeyError if the run has none of that name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_folder), size_guidance={"scalars": 0})  # 0: all of them
    points = events.Reload().Scalars(tag)
    return np.array([point.step for point in points]), np.array([point.value for point in points])


def plot(run_folders: Iterable[Path], out: Path, tag: str = "charts/episodic_return") -> None:
    """Draw a scalar of runs over their steps into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = defaultdict(list)
    for folder in run_folders:
        runs[json.loads((folder / "config.json").read_text())["env"]].append(read(folder, tag))
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for env, curves in sorted(runs.items()):
        # Each run has points of its own; between them a curve is a line. What not all have reached is left out.
        steps = np.linspace(max(curve[0][0] for curve in curves), min(curve[0][-1] for curve in curves), 200)
        values = np.stack([np.interp(steps, *curve) for curve in curves])  # (num_runs, 200)
        label = f"{env}, {len(curves)} seed{'s' if len(curves) > 1 else ''}"
        (line,) = axes.plot(steps, values.mean(0), label=label)
        axes.fill_between(steps, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="steps", ylabel=tag.rpartition("/")[2].replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    from dataclasses import dataclass

    import tyro

    @dataclass(frozen=True)
    class Options:
        """Draw curves of runs."""

        runs: tuple[Path, ...]
        """folders of runs"""
        out: Path
        """the PNG to write"""
        tag: str = "charts/episodic_return"
        """a scalar's name in TensorBoard"""

    options = tyro.cli(Options)
    plot(options.runs, options.out, options.tag)
    print(f"Wrote {options.out}")
