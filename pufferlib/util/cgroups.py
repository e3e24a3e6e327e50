"""The control groups of this process, which may give it less than the machine has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["folders"]

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def folders(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> Iterator[Path]:
    """Yield the folders that may limit this process for a controller ("cpu", "memory"): its group and all above.

    Reads versions 1 and 2; yields nothing without such groups. In a container a folder may be missing while its root
    exists.
    """
    try:
        lines = membership.read_text().splitlines()
    except (OSError, ValueError):  # ValueError: names that are no UTF-8
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        folder = base / path.lstrip("/")
        for level in (folder, *folder.parents):
            yield level
            if level == base:
                break
