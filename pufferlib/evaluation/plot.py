"""Plot the results of evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pufferlib.errors import MissingExtra
from pufferlib.evaluation.statistics import Profile
from pufferlib.util.annotations import Array

__all__ = ["plot"]


def plot(scores: Mapping[str, Array], profile: Profile, name: str, path: Path) -> Path:
    """Draw the scores of each task with their mean, and the performance profile of all, to an image file.

    Return its path. scores: float64 (scores,), by task. name: what the scores are. Raises MissingExtra if matplotlib is
    not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra('a plot needs matplotlib: pip install "pufferlib[train]"') from error
    figure = Figure(figsize=(11, max(4, 1 + 0.4 * len(scores))), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, and does not change pyplot's state
    of_tasks, of_all = figure.subplots(1, 2)
    _draw_tasks(of_tasks, scores)
    of_all.fill_between(profile.thresholds, profile.low, profile.high, alpha=0.25, linewidth=0)
    of_all.plot(profile.thresholds, profile.values)
    of_all.set_title("performance profile, with 95 % intervals")
    of_all.set_ylabel("share of scores above")
    for axes in (of_tasks, of_all):
        axes.set_xlabel(name)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    return path


def _draw_tasks(axes: Any, scores: Mapping[str, Array]) -> None:
    names = [*scores]
    for row, task in enumerate(names):
        heights = row + np.linspace(-0.2, 0.2, len(scores[task]))
        axes.scatter(scores[task], heights, s=8, alpha=0.5, linewidths=0)
        axes.plot([scores[task].mean()] * 2, [row - 0.3, row + 0.3], color="black")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_title("scores by task, and their means")
