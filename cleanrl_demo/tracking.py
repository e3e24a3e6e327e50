"""Weights & Biases, for those who ask for it; offline too, with WANDB_MODE=offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pufferlib


class Tracker:
    """Sends a run's configuration and scalars. A ``Report`` starts and finishes it."""

    def __init__(self, project: str, config: Mapping[str, Any]) -> None:
        """Raises MissingExtra if wandb is not installed: before training, not after the environments were made."""
        self.project, self.config = project, config
        self.wandb = _wandb()
        self.run: Any = None

    @classmethod
    def from_config(cls, config: Any) -> Tracker | None:
        """Return what a trainer's configuration, a dataclass, asks for with ``track`` and ``track_project``."""
        if not config.track:
            return None
        if config.runs is None:
            raise pufferlib.PlanError("track=True with runs=None: wandb keeps its files in the run's folder; name one")
        return cls(config.track_project, asdict(config))

    def start(self, folder: Path) -> None:
        """Begin a run of the folder's name, or go on with it where the folder's run is resumed."""
        # The console is left alone: wandb would copy a dashboard four times a second into a log.
        self.run = self.wandb.init(
            project=self.project,
            name=folder.name,
            id=folder.name[-128:],
            resume="allow",
            config=dict(self.config),
            dir=str(folder),
            settings=self.wandb.Settings(console="off"),
        )
        # An axis of our own: wandb drops what comes at an earlier step than the last, as it does in a resumed run.
        self.run.define_metric("steps")
        self.run.define_metric("*", step_metric="steps")

    def log(self, num_steps: int, scalars: Mapping[str, float]) -> None:
        """Send scalars by their TensorBoard names."""
        self.run.log({"steps": num_steps, **scalars})

    def finish(self, failed: bool) -> None:
        """Send what is left, and say whether the run came to its end."""
        if self.run is not None:
            self.run.finish(exit_code=int(failed))


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise pufferlib.MissingExtra('--track needs wandb: pip install "pufferlib[track]"') from error
    return wandb
