"""The files in a run's folder from which it can go on.

``checkpoint.pt`` is from the end of a stretch, after which all environments are reset: a run that is resumed there ends
as one that was not interrupted. ``newest.pt`` is from within the stretch that follows, and leads to another end.
"""

from __future__ import annotations

from pathlib import Path

from pufferlib.errors import CheckpointError
from pufferlib.models.files import read_checkpoint

__all__ = ["FILE", "KIND", "NEWEST", "checkpoint_path", "later"]

KIND = "pufferlib checkpoint"
FILE, NEWEST = "checkpoint.pt", "newest.pt"


def checkpoint_path(run: Path) -> Path:
    """Return the checkpoint from which a run goes on: that of its last stretch, or else newest.pt.

    run: its folder, or a file in it; newest.pt stands for itself.
    """
    if run.name == NEWEST:
        return run
    if run.is_file():
        return checkpoint_path(run.parent)
    return run / NEWEST if (run / NEWEST).exists() and not (run / FILE).exists() else run / FILE


def later(folder: Path) -> int | None:
    """Return the number of steps in newest.pt where that is more than in checkpoint.pt; None where either is missing.

    A run that is killed between writing checkpoint.pt and removing newest.pt leaves an older newest.pt.
    """
    if not (folder / FILE).exists() or not (folder / NEWEST).exists():
        return None
    try:
        exact, newest = (read_checkpoint(folder / name, KIND, FILE)["learner"]["num_steps"] for name in (FILE, NEWEST))
    except CheckpointError:  # nobody can go on from that one
        return None
    return int(newest) if newest > exact else None
