"""PufferLib 3's loggers, which get a trainer's numbers and its last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pufferlib.errors import MissingExtra

__all__ = ["NeptuneLogger", "NoLogger", "WandbLogger"]


class NoLogger:
    """A logger that keeps nothing. run_id: names the run's folder; of the time at which it was made."""

    def __init__(self, args: Any = None) -> None:
        self.run_id = str(int(100 * time.time()))

    def log(self, logs: Mapping[str, Any], step: int) -> None:
        """Do nothing."""

    def close(self, model_path: str | None = None) -> None:
        """Do nothing."""


class WandbLogger:
    """A logger of Weights & Biases.

    args: with wandb_project, wandb_group and tag; stored with the run. load_id: the id of an earlier run, which is
    continued. resume: as in ``wandb.init``. Raises MissingExtra without wandb.
    """

    def __init__(self, args: Mapping[str, Any], load_id: str | None = None, resume: str | bool = "allow") -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra('WandbLogger needs wandb: pip install "pufferlib[track]"') from error
        self.wandb: Any = wandb
        self.run_id = load_id or wandb.util.generate_id()
        self.wandb.init(
            id=self.run_id,
            project=args["wandb_project"],
            group=args["wandb_group"],
            tags=[args["tag"]] if args.get("tag") is not None else [],
            config=dict(args),
            resume=resume,
            allow_val_change=True,
            save_code=False,
            settings=wandb.Settings(console="off"),
        )

    def log(self, logs: Mapping[str, Any], step: int) -> None:
        """Send numbers of a step."""
        self.wandb.log(dict(logs), step=step)

    def close(self, model_path: str | None = None) -> None:
        """Send the checkpoint, and end the run."""
        if model_path is not None:
            artifact = self.wandb.Artifact(self.run_id, type="model")
            artifact.add_file(model_path)
            self.wandb.run.log_artifact(artifact)
        self.wandb.finish()

    def download(self) -> str:
        """Download the run's last checkpoint, and return its path."""
        folder = self.wandb.use_artifact(f"{self.run_id}:latest").download()
        return str(max(Path(folder).iterdir()))


class NeptuneLogger:
    """A logger of Neptune.

    args: with neptune_name, neptune_project and tag. load_id: the id of an earlier run, which is continued. mode: as in
    ``neptune.init_run``. Raises MissingExtra without neptune.
    """

    def __init__(self, args: Mapping[str, Any], load_id: str | None = None, mode: str = "async") -> None:
        try:
            import neptune
        except ImportError as error:
            raise MissingExtra("NeptuneLogger needs neptune: pip install neptune") from error
        self.neptune: Any = neptune.init_run(
            project=f"{args['neptune_name']}/{args['neptune_project']}",
            with_id=load_id,
            mode=mode,
            tags=[args["tag"]] if args.get("tag") is not None else [],
            capture_hardware_metrics=False,
            capture_stdout=False,
            capture_stderr=False,
        )
        self.run_id: str = self.neptune["sys/id"].fetch()
        for name, value in args.items():
            self.neptune[name] = str(value) if isinstance(value, dict) else value

    def log(self, logs: Mapping[str, Any], step: int) -> None:
        """Send numbers of a step."""
        for name, value in logs.items():
            self.neptune[name].append(value, step=step)

    def close(self, model_path: str | None = None) -> None:
        """Send the checkpoint, and end the run."""
        if model_path is not None:
            self.neptune["model"].track_files(model_path)
        self.neptune.stop()

    def download(self) -> str:
        """Download the run's last checkpoint, and return its path."""
        folder = Path("artifacts", self.run_id)  # where no other run's files are
        folder.mkdir(parents=True, exist_ok=True)
        self.neptune["model"].download(destination=str(folder))
        return str(max(folder.iterdir()))
