"""The checkpoint files in a run's folder.

A run is divided into stretches, and all environments are reset at the start of each. ``checkpoint.pt`` is written at
the end of a stretch: a run resumed from it ends exactly as if it had not been interrupted. ``newest.pt`` is written at
intervals within a stretch: a run resumed from it resets its environments at that point, and so ends differently.
"""

from __future__ import annotations

from pathlib import Path

from pufferlib.errors import CheckpointError
from pufferlib.models.files import read_checkpoint

__all__ = ["FILE", "KIND", "NEWEST", "checkpoint_path", "later"]

KIND = "pufferlib checkpoint"
FILE, NEWEST = "checkpoint.pt", "newest.pt"


def checkpoint_path(run: Path) -> Path:
    """Return the checkpoint from which a run is resumed: checkpoint.pt, or newest.pt if there is no checkpoint.pt.

    run: the run's folder or a file in it; the path of newest.pt selects newest.pt.
    """
    if run.name == NEWEST:
        return run
    if run.is_file():
        return checkpoint_path(run.parent)
    return run / NEWEST if (run / NEWEST).exists() and not (run / FILE).exists() else run / FILE


def later(folder: Path) -> int | None:
    """Return the number of training steps in newest.pt if it is ahead of checkpoint.pt, else None.

    Also returns None if either file is missing or unreadable. newest.pt is behind if the run was killed after it wrote
    checkpoint.pt and before it removed newest.pt.
    """
    if not (folder / FILE).exists() or not (folder / NEWEST).exists():
        return None
    try:
        exact, newest = (read_checkpoint(folder / name, KIND, FILE)["learner"]["num_steps"] for name in (FILE, NEWEST))
    except CheckpointError:  # no run can be resumed from that file
        return None
    return int(newest) if newest > exact else None
