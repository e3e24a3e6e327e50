"""Optional tracking with Weights & Biases; offline with WANDB_MODE=offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pufferlib


class Tracker:
    """A sender of a run's configuration and scalars to Weights & Biases. A ``Report`` starts and finishes it."""

    def __init__(self, project: str, config: Mapping[str, Any]) -> None:
        """Raises MissingExtra if wandb is not installed, so that a run fails before its environments are made."""
        self.project, self.config = project, config
        self.wandb = _wandb()
        self.run: Any = None

    @classmethod
    def from_config(cls, config: Any) -> Tracker | None:
        """Return a tracker for a trainer's configuration, a dataclass; None if its ``track`` is not set.

        Raises PlanError if the run has no folder.
        """
        if not config.track:
            return None
        if config.runs is None:
            raise pufferlib.PlanError("track=True with runs=None: wandb keeps its files in the run's folder; name one")
        return cls(config.track_project, asdict(config))

    def start(self, folder: Path) -> None:
        """Begin a wandb run named after the folder, or continue it if the folder's run is resumed."""
        # Leave the console alone: wandb would copy a dashboard into a log four times a second.
        self.run = self.wandb.init(
            project=self.project,
            name=folder.name,
            id=folder.name[-128:],
            resume="allow",
            config=dict(self.config),
            dir=str(folder),
            settings=self.wandb.Settings(console="off"),
        )
        # A separate axis: wandb drops values at an earlier step than the last, which a resumed run has.
        self.run.define_metric("steps")
        self.run.define_metric("*", step_metric="steps")

    def log(self, num_steps: int, scalars: Mapping[str, float]) -> None:
        """Send scalars, keyed by TensorBoard name."""
        self.run.log({"steps": num_steps, **scalars})

    def finish(self, failed: bool) -> None:
        """Send the remaining data, and record whether the run failed."""
        if self.run is not None:
            self.run.finish(exit_code=int(failed))


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise pufferlib.MissingExtra('--track needs wandb: pip install "pufferlib[track]"') from error
    return wandb
