"""Take the picture of the dashboard in docs/watching.md: what a terminal shows in the middle of a training.

    python benchmarks/dashboard.py

Writes docs/pictures/dashboard.svg.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import ale_py
import gymnasium
from rich.console import Console

from cleanrl_demo import ppo
from cleanrl_demo.dashboard import Dashboard
from cleanrl_demo.report import Report

OUT = Path(__file__).parent.parent / "docs" / "pictures" / "dashboard.svg"
WIDTH = 100  # columns
CONFIG = ppo.Config(num_envs=16, total_steps=20_000, eval_episodes=1, runs=None)


def breakout() -> gymnasium.Env:
    """ALE/Breakout-v5 as it is usually preprocessed: gray 84 × 84 images, four frames a step."""
    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.AtariPreprocessing(env), 4)


class Taken(Exception):
    """The picture is taken; the rest of the training is of no use."""


class Camera(Report):
    """A report that takes the picture once three quarters are done."""

    def update(self, num_steps: int, scalars: Mapping[str, float]) -> None:
        super().update(num_steps, scalars)
        if num_steps > 0.75 * self.total_steps:
            take(self.dashboard())
            raise Taken


def take(dashboard: Dashboard) -> None:
    """Write the dashboard as an SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(dashboard)
    svg = console.export_svg(title=dashboard.title)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # a page's picture may load nothing
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(svg)


def main() -> None:
    ppo.Report = Camera
    try:
        ppo.train(CONFIG, breakout)
    except Taken:
        print(f"Wrote {OUT}")


if __name__ == "__main__":
    main()
