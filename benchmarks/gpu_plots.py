"""Draw the results of benchmarks.gpu and benchmarks.gpu_train."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["plot_kernels", "plot_training"]

WAYS = {"launch": "one launch a step", "graph": "CUDA graph", "rollout": "100 steps a launch, random actions"}
MARKERS = "os^Dv"


def plot_kernels(path: Path, folder: Path) -> Path:
    """Draw a file of benchmarks.gpu into a PNG of the same name in a folder; return its path.

    It plots steps per second over environments, with a line for each number of agents and a panel for each environment
    and way to play; bars reach from the least to the greatest repeat. Dotted lines are one environment in NumPy on one
    core, dashed ones WarpDrive.
    """
    results = json.loads(path.read_text())
    figures = results["figures"]
    envs = list(dict.fromkeys(row["env"] for row in figures))
    ways = [way for way in WAYS if any(row["way"] == way for row in figures)]
    agents = sorted({row["num_agents"] for row in figures})
    drawing = Figure(figsize=(4.2 * len(ways) + 0.4, 3.1 * len(envs) + 1.1), layout="constrained")
    FigureCanvasAgg(drawing)
    panels = drawing.subplots(len(envs), len(ways), sharex=True, sharey=True, squeeze=False)
    for env, line_of_panels in zip(envs, panels, strict=True):
        for way, panel in zip(ways, line_of_panels, strict=True):
            for number, num_agents in enumerate(agents):
                colour, marker = f"C{number}", MARKERS[number % len(MARKERS)]
                of = [row for row in figures if (row["env"], row["num_agents"]) == (env, num_agents)]
                _line(panel, of, way, f"{num_agents:,} agents", color=colour, marker=marker)
                if way == "launch":
                    _line(panel, of, "warpdrive", None, color=colour, marker=marker, linestyle="--", fillstyle="none")
                for row in of:
                    if row["way"] == "numpy":
                        panel.axhline(row["median"], color=colour, linestyle=":", linewidth=1)
            panel.set(xscale="log", yscale="log")
            panel.set_title(f"{env}: {WAYS[way]}", fontsize=10)
            _plain(panel)
        line_of_panels[0].set_ylabel("environment steps a second")
    for panel in panels[-1]:
        panel.set_xlabel("environments")
    others = ["dotted: one in NumPy, on one core"]
    others += ["dashed: WarpDrive"] if any(row["way"] == "warpdrive" for row in figures) else []
    drawing.suptitle(f"{_where(results)}; {', '.join(others)}", fontsize=10)
    drawing.legend(
        *panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(agents), frameon=False
    )
    target = folder / f"{path.stem}.png"
    drawing.savefig(target, dpi=110, format="png")
    return target


def plot_training(path: Path, folder: Path) -> Path:
    """Draw a file of benchmarks.gpu_train into a PNG of the same name in a folder; return its path."""
    results = json.loads(path.read_text())
    drawing = Figure(figsize=(13, 7.5), layout="constrained")
    FigureCanvasAgg(drawing)
    panels = drawing.subplots(2, 2)
    rates, parts = panels[0]
    figures = results["figures"]
    lines = dict.fromkeys((row["env"], row["num_agents"]) for row in figures)
    for env, num_agents in lines:
        of = [row for row in figures if (row["env"], row["num_agents"]) == (env, num_agents)]
        middle = [row["median"] for row in of]
        bars = [[row["median"] - row["least"] for row in of], [row["greatest"] - row["median"] for row in of]]
        rates.errorbar(
            [row["num_envs"] for row in of],
            middle,
            bars,
            label=f"{env}, {num_agents:,} agents",
            marker="o",
            capsize=3,
        )
    rates.set(
        xscale="log", yscale="log", xlabel="environments", ylabel="environment steps a second", title="from end to end"
    )
    rates.legend(frameon=False, fontsize=8)
    names = [f"{row['env']}\n{row['num_envs']:,} × {row['num_agents']:,}" for row in figures]
    left = np.zeros(len(figures))
    for part in ("environments", "inference", "training", "rest"):
        share = np.array([row[f"{part}_s"] / row["whole_s"] for row in figures])
        parts.barh(names, share, left=left, label=part)
        left += share
    parts.set(title="where an iteration's time goes", xlabel="share of an iteration, each part timed by itself")
    parts.tick_params(axis="y", labelsize=7)
    parts.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    for team, panel in zip(results["runs"][0]["returns"], panels[1], strict=True):
        for number, way in enumerate(dict.fromkeys(run["way"] for run in results["runs"])):
            for nth, run in enumerate(row for row in results["runs"] if row["way"] == way):
                panel.plot(
                    run["seconds"], run["returns"][team], color=f"C{number}", label=None if nth else way, linewidth=1
                )
        panel.set(title=f"12 agents, continuous Tag: a {team}'s return", xlabel="seconds of training")
        panel.legend(frameon=False, fontsize=8)
    for panel in panels.flat:
        _plain(panel)
    drawing.suptitle(f"{_where(results)}, load {max(results['load']):.1f}", fontsize=10)
    target = folder / f"{path.stem}.png"
    drawing.savefig(target, dpi=100, format="png")
    return target


def _where(results: dict[str, Any]) -> str:
    """Return the device and machine of the results."""
    device = "CPU, no GPU" if results["device"] == "host" else results["device"]
    return f"{device} ({results['machine'].partition(';')[0]})"


def _plain(panel: Any) -> None:
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)


def _line(panel: Any, figures: Sequence[dict[str, Any]], way: str, label: str | None, **look: Any) -> None:
    """Draw medians over numbers of environments, with bars from the least to the greatest repeat."""
    points = sorted((row for row in figures if row["way"] == way), key=lambda row: row["num_envs"])
    if points:
        middle = [row["median"] for row in points]
        below = [row["median"] - row["least"] for row in points]
        above = [row["greatest"] - row["median"] for row in points]
        x = [row["num_envs"] for row in points]
        panel.errorbar(x, middle, (below, above), label=label, capsize=3, markersize=5, linewidth=1.5, **look)
