"""The files in a run's folder from which it can go on.

``checkpoint.pt`` is from the end of a stretch, after which environments begin anew: a run that is resumed there ends as
one that was not interrupted. ``newest.pt`` is from within the stretch that follows, and leads to another end.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["FILE", "KIND", "NEWEST", "both", "found"]

KIND = "pufferlib checkpoint"
FILE, NEWEST = "checkpoint.pt", "newest.pt"


def found(run: Path) -> Path:
    """Return the checkpoint from which a run goes on: that of its last stretch, or else newest.pt.

    run: its folder, or a file in it; newest.pt stands for itself.
    """
    if run.is_file():
        return run if run.name == NEWEST else found(run.parent)
    return run / NEWEST if (run / NEWEST).exists() and not (run / FILE).exists() else run / FILE


def both(folder: Path) -> bool:
    """Return whether a run can go on to the same end, or from later to another one."""
    return (folder / FILE).exists() and (folder / NEWEST).exists()
