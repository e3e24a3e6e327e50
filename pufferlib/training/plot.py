"""Curves of runs: the mean, with its uncertainty, of runs that differ only in their seeds.

    puffer plot runs/CartPole-v1__ppo__* --out curve.png

Runs are grouped by environment and algorithm, and then by the settings that affect learning and differ between runs.
With three or more runs in a group, the band around the mean is its 95 % interval by Student's t; with two, the band
spans both curves. The legend states what the band is. A line covers only the range that all of its runs have in common.
"""

from __future__ import annotations

import glob
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import pufferlib
from pufferlib.training.runs import RUN, read_config, read_run

TAG = "charts/episodic_return"
AXES = ("steps", "seconds")
SECONDS_TAG = "charts/seconds"
NUM_POINTS = 200
CONFIDENCE = 0.95
MIN_SEEDS = 3  # for an interval: with two it would be wider than any picture
# Settings that do not affect learning.
IDLE = {"env", "seed", "runs"}
IDLE_PREFIXES = ("track", "eval_", "video")


class Curve(NamedTuple):
    """A scalar of one run in order of time: ``steps`` (or seconds) and ``values``, arrays of shape (num_points,)."""

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Band:
    """The mean of several curves and a band around it, as arrays of shape (num_points,). label: the legend's text."""

    label: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class NoScalar(pufferlib.PlanError):
    """The error for a scalar that a run has not stored. tags: the names of the scalars that the run has stored."""

    def __init__(self, run_folder: Path, tag: str, tags: Sequence[str]) -> None:
        hint = f"those are {', '.join(sorted(tags))}" if tags else "nothing has been stored in it yet"
        super().__init__(f"{run_folder} has no scalar {tag}; {hint}")
        self.tags = tags


def plot(run_folders: Sequence[Path], out: Path, tag: str = TAG, x: str = "steps") -> list[Path]:
    """Plot a scalar of runs to a PNG file, and return the folders of the runs that have not stored it.

    out: the path of the file; missing folders are created. tag: the scalar's name. x: the horizontal axis, "steps", or
    "seconds" of training; runs that have not stored their seconds are then left out and returned, too.
    Raises PlanError if there are no runs, a folder is not a run's, no run has the scalar, runs with the same label have
    no steps or seconds in common, x is invalid, or out is a folder. Raises MissingExtra without matplotlib.
    """
    if out.is_dir():
        raise pufferlib.PlanError(f"out={out} is a folder; name a PNG in it, such as {out / 'curves.png'}")
    if not run_folders:
        raise pufferlib.PlanError("there are no runs to plot; name some of those that trainers make in runs/")
    curves = curves_of(run_folders, tag, x)
    bands = [band_of(label, members) for label, members in grouped(curves).items()]
    draw(bands, out, "steps" if x == "steps" else "seconds of training", tag.rpartition("/")[2].replace("_", " "))
    return [folder for folder in run_folders if folder not in curves]


def draw(bands: Iterable[Band], out: Path, x_label: str, y_label: str, x_scale: str = "linear") -> None:
    """Draw bands to a PNG file, and create its folder if necessary. Raises MissingExtra without matplotlib.

    x_scale: of the horizontal axis, "linear" or "log".
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise pufferlib.MissingExtra('a plot needs matplotlib: pip install "pufferlib[train]"') from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, and leaves pyplot's state alone
    axes = figure.add_subplot()
    for band in bands:
        (line,) = axes.plot(band.x, band.mean, label=band.label)
        axes.fill_between(band.x, band.low, band.high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel=x_label, ylabel=y_label, xscale=x_scale)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper left", fontsize=8, frameon=False)  # where it hides nothing
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120, format="png")


def folders_of(patterns: Sequence[str]) -> list[Path]:
    """Return the folders that match any of the patterns (paths or globs), without duplicates.

    Raises PlanError for a pattern without a match.
    """
    folders: dict[Path, None] = {}
    for pattern in patterns:
        matches = [Path(pattern)] if Path(pattern).exists() else sorted(map(Path, glob.glob(pattern)))
        if not matches:
            raise pufferlib.PlanError(f"there is no run {pattern}; trainers make them in runs/")
        folders |= dict.fromkeys(matches)
    return list(folders)


def read(run_folder: Path, tag: str) -> Curve:
    """Return a run's TensorBoard scalar. Raises NoScalar if the run has none of that name.

    If a run was interrupted and resumed from a checkpoint, points that it had stored beyond the checkpoint before the
    interruption are left out.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_folder), size_guidance={"scalars": 0}).Reload()  # 0: all of them
    tags = events.Tags()["scalars"]
    if tag not in tags:
        raise NoScalar(run_folder, tag, tags)
    points = events.Scalars(tag)
    return Curve(np.array([point.step for point in points]), np.array([point.value for point in points]))


def curves_of(run_folders: Iterable[Path], tag: str, x: str) -> dict[Path, Curve]:
    """Return the curve of each run that has stored the scalar, keyed by folder.

    x: "steps", or "seconds" of training, which then take the place of a curve's steps. Runs without the scalar or, if
    needed, without their seconds are left out; a run that ended early may have stored neither. Raises PlanError if this
    leaves no run, if a folder is not a run's, or if x is not one of AXES.
    """
    if x not in AXES:
        raise pufferlib.PlanError(f"x={x!r} is not one of {', '.join(AXES)}")
    curves: dict[Path, Curve] = {}
    lacking: list[NoScalar] = []
    for folder in run_folders:
        read_config(folder)  # raises PlanError if it is not a run's
        try:
            curve = read(folder, tag)
            if x == "seconds":
                seconds = read(folder, SECONDS_TAG)
                curve = Curve(np.interp(curve.steps, seconds.steps, seconds.values), curve.values)
        except NoScalar as error:
            lacking.append(error)
        else:
            curves[folder] = curve
    if lacking and not curves:
        cause = next((error for error in lacking if error.tags), lacking[0])
        others = f"; the same goes for {_count(len(lacking) - 1, 'other run')}" if len(lacking) > 1 else ""
        raise pufferlib.PlanError(f"{cause}{others}")
    return curves


def grouped(curves: Mapping[Path, Curve]) -> dict[str, list[Curve]]:
    """Group the curves of runs that differ only in seeds or in settings that do not affect learning.

    Returns the groups, keyed by label.
    """
    runs: dict[tuple[str, str], list[tuple[dict[str, Any], Curve]]] = defaultdict(list)
    for folder, curve in curves.items():
        config = read_config(folder)
        runs[_origin(folder, config)].append((config, curve))
    groups: dict[str, list[Curve]] = {}
    for (env, algorithm), members in sorted(runs.items()):
        differing = _differing([config for config, _ in members])
        parts = defaultdict(list)
        for config, curve in members:
            settings = [f"{name}={_short(config.get(name))}" for name in differing]
            parts[", ".join([env, algorithm, *settings])].append((config.get("seed"), curve))
        for label, part in sorted(parts.items()):
            seeds = {seed for seed, _ in part}
            unit = "seed" if len(seeds) == len(part) else "run"  # the same seed twice is one seed
            groups[f"{label}: {_count(len(part), unit)}"] = [curve for _, curve in part]
    return groups


def band_of(label: str, curves: Sequence[Curve]) -> Band:
    """Return the mean of curves and the band around it. Raises PlanError if the curves have no range in common.

    The band is the 95 % interval of the mean or, with fewer than MIN_SEEDS curves, the range of their values.
    """
    begin, end = max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves)
    if begin > end:
        raise pufferlib.PlanError(f"{label}: one ends at {end:,.0f} before another begins at {begin:,.0f}; plot fewer")
    # Runs have points at different steps; interpolate linearly between them.
    x = np.linspace(begin, end, NUM_POINTS)
    values = np.stack([np.interp(x, curve.steps, curve.values) for curve in curves])  # (num_runs, NUM_POINTS)
    mean = values.mean(0)
    if len(curves) < MIN_SEEDS:
        label += ", the lower to the higher" if len(curves) > 1 else ""
        return Band(label, x, mean, values.min(0), values.max(0))
    radius = interval_radius(values)
    return Band(f"{label}, {CONFIDENCE:.0%} interval of the mean", x, mean, mean - radius, mean + radius)


def interval_radius(values: np.ndarray) -> np.ndarray:
    """Return half the width of the 95 % confidence interval, by Student's t, of the mean over the first axis.

    values: (num_samples, …), at least two samples.
    """
    from scipy.stats import t

    num_samples = len(values)
    quantile = t.ppf((1 + CONFIDENCE) / 2, num_samples - 1)
    radius: np.ndarray = quantile * np.std(values, 0, ddof=1) / np.sqrt(num_samples)
    return radius


def _origin(folder: Path, config: Mapping[str, Any]) -> tuple[str, str]:
    """Return a run's environment and algorithm.

    They are read from ``run.json`` or, without this file, from the configuration and the folder's name.
    """
    if (folder / RUN).exists():
        run = read_run(folder)
        return str(run.get("env")), str(run.get("algorithm"))
    return str(config.get("env")), ([*folder.name.split("__"), "", ""])[1]


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of settings that affect learning and are not the same in all configurations."""
    names = dict.fromkeys(name for config in configs for name in config)
    learnt = [name for name in names if name not in IDLE and not name.startswith(IDLE_PREFIXES)]
    return [name for name in learnt if len({_short(config.get(name)) for config in configs}) > 1]


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'}"
