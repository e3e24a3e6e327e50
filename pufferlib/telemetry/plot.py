"""Plot a VecEnv's stats.

The four plots show the step times of all environments, the step times of each environment, the share of the time during
which the learner and each worker were busy, and the forecasts for other plans.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from pufferlib.errors import MissingExtra

__all__ = ["plot"]


def plot(stats: Any, path: str | Path) -> Path:
    """Draw Stats to an image file and return its path. Raises MissingExtra if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra('a plot needs matplotlib: pip install "pufferlib[train]"') from error
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, and does not change pyplot's state
    for axes, draw in zip(figure.subplots(2, 2).flat, (_histogram, _environments, _shares, _forecasts), strict=True):
        draw(axes, stats)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("\n".join(textwrap.wrap(stats.verdict, 110)), fontsize=11)
    path = Path(path)
    figure.savefig(path, dpi=120)
    return path


def _histogram(axes: Any, stats: Any) -> None:
    axes.set_title("step times")
    axes.set_xscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("% in each bucket")
    counts = stats.histogram.sum(0).astype(np.float64)
    used = np.flatnonzero(counts)
    if not len(used):
        return
    part = slice(max(0, used[0] - 1), used[-1] + 2)
    counts = counts[part]
    edges = stats.edges[part.start : part.start + len(counts) + 1]
    time = counts * (edges[:-1] + edges[1:])
    axes.stairs(100 * counts / counts.sum(), edges, fill=True, alpha=0.5, label="of the steps")
    axes.stairs(100 * time / time.sum(), edges, color="C1", label="of their time")
    axes.axvline(stats.step.mean_s, color="k", linewidth=1, linestyle=":", label="mean")
    axes.legend(frameon=False)


def _environments(axes: Any, stats: Any) -> None:
    env_ids = np.arange(stats.num_envs)
    axes.set_title("step times of each environment")
    axes.plot(env_ids, stats.env_step.max_s, "v", color="C3", markersize=3, label="longest")
    axes.plot(env_ids, stats.env_step.p99_s, "_", color="C1", label="99 %")
    axes.plot(env_ids, stats.env_step.mean_s, "o", color="C0", markersize=4, label="mean")
    axes.set_yscale("log")
    axes.set_xlabel("environment")
    axes.set_ylabel("seconds")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)


def _shares(axes: Any, stats: Any) -> None:
    busy = 100 * stats.busy
    axes.set_title("where the time goes")
    names = ["learner", *(f"worker {worker}" for worker in range(len(busy)))]
    filled = np.nan_to_num([100 * stats.thinks, *busy])
    axes.barh(names, filled, color="C0", label="thinks, or steps")
    axes.barh(names, 100 - filled, left=filled, color="0.88", label="waits")
    if len(names) > 12:
        axes.set_yticks([0, len(busy)], [names[0], names[-1]])
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the time")
    axes.invert_yaxis()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False)


def _forecasts(axes: Any, stats: Any) -> None:
    axes.set_title("other plans, by the model")
    axes.set_xlabel("steps/s (environments / workers / batch)")
    if not stats.num_batches or not stats.step.num:
        return
    plans = stats.forecasts
    names = [f"measured: {stats.backend} {stats.num_envs}/{stats.num_workers}/{stats.batch_size}"]
    names += [f"{plan.backend} {plan.num_envs}/{plan.num_workers}/{plan.batch_size}" for plan in plans]
    rates = [stats.steps_per_s, *(plan.steps_per_s for plan in plans)]
    axes.barh(range(len(names)), rates, color=["0.3", *["C0"] * len(plans)])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
