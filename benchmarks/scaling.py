"""Draw what benchmarks.gpu has measured: steps a second over environments, a line for each number of agents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["plot"]

WAYS = {"launch": "one launch a step", "graph": "CUDA graph", "rollout": "100 steps a launch, random actions"}
MARKERS = "os^Dv"


def plot(path: Path, folder: Path) -> Path:
    """Draw a file of results into a PNG of the same name in a folder; return it.

    A panel is an environment, played one way; bars reach from the least to the greatest of repeats. Dotted lines are
    one environment in NumPy on one core, dashed ones WarpDrive.
    """
    results = json.loads(path.read_text())
    figures = results["figures"]
    envs = list(dict.fromkeys(each["env"] for each in figures))
    ways = [way for way in WAYS if any(each["way"] == way for each in figures)]
    agents = sorted({each["num_agents"] for each in figures})
    drawing = Figure(figsize=(4.2 * len(ways) + 0.4, 3.1 * len(envs) + 1.1), layout="constrained")
    FigureCanvasAgg(drawing)
    panels = drawing.subplots(len(envs), len(ways), sharex=True, sharey=True, squeeze=False)
    for env, line_of_panels in zip(envs, panels, strict=True):
        for way, panel in zip(ways, line_of_panels, strict=True):
            for number, num_agents in enumerate(agents):
                colour, marker = f"C{number}", MARKERS[number % len(MARKERS)]
                of = [each for each in figures if (each["env"], each["num_agents"]) == (env, num_agents)]
                _line(panel, of, way, f"{num_agents:,} agents", color=colour, marker=marker)
                if way == "launch":
                    _line(panel, of, "warpdrive", None, color=colour, marker=marker, linestyle="--", fillstyle="none")
                for each in of:
                    if each["way"] == "numpy":
                        panel.axhline(each["median"], color=colour, linestyle=":", linewidth=1)
            panel.set(xscale="log", yscale="log")
            panel.set_title(f"{env}: {WAYS[way]}", fontsize=10)
            panel.grid(alpha=0.3)
            panel.spines[["top", "right"]].set_visible(False)
        line_of_panels[0].set_ylabel("environment steps a second")
    for panel in panels[-1]:
        panel.set_xlabel("environments")
    others = ["dotted: one in NumPy, on one core"]
    others += ["dashed: WarpDrive"] if any(each["way"] == "warpdrive" for each in figures) else []
    where = (
        f"CPU, no GPU ({results['machine'].partition(';')[0]})" if results["device"] == "host" else results["device"]
    )
    drawing.suptitle(f"{where}; {', '.join(others)}", fontsize=10)
    drawing.legend(
        *panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(agents), frameon=False
    )
    target = folder / f"{path.stem}.png"
    drawing.savefig(target, dpi=110, format="png")
    return target


def _line(panel: Any, figures: Sequence[dict[str, Any]], way: str, label: str | None, **look: Any) -> None:
    """Draw medians over numbers of environments, with bars from the least to the greatest."""
    points = sorted((each for each in figures if each["way"] == way), key=lambda each: each["num_envs"])
    if points:
        middle = [each["median"] for each in points]
        below = [each["median"] - each["least"] for each in points]
        above = [each["greatest"] - each["median"] for each in points]
        x = [each["num_envs"] for each in points]
        panel.errorbar(x, middle, (below, above), label=label, capsize=3, markersize=5, linewidth=1.5, **look)
