"""Draw the picture of the dashboard in docs/watching.md: the terminal in the middle of a training run.

    python -m benchmarks.dashboard

Writes docs/pictures/dashboard.svg.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from unittest import mock

from benchmarks.envs import breakout
from benchmarks.svg import write_svg
from cleanrl_demo import ppo
from pufferlib.training import session
from pufferlib.training.report import Report

OUT = Path(__file__).parent.parent / "docs" / "pictures" / "dashboard.svg"
WIDTH = 100  # columns
CONFIG = ppo.Config(num_envs=16, total_steps=20_000, eval_episodes=1, runs=None)


class PictureWritten(Exception):
    """Raised once the picture is written, to end the training early."""


class Camera(Report):
    """A report that writes the picture after three quarters of the steps."""

    def update(self, num_steps: int, scalars: Mapping[str, float]) -> None:
        super().update(num_steps, scalars)
        if num_steps > 0.75 * self.total_steps:
            dashboard = self.dashboard()
            write_svg(dashboard, dashboard.title, OUT, WIDTH)
            raise PictureWritten


def main() -> None:
    with mock.patch.object(session, "Report", Camera), suppress(PictureWritten):
        ppo.train(CONFIG, breakout)


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    main()
