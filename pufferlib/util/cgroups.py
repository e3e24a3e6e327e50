"""Find the control groups that may limit this process to part of the machine's resources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["folders"]

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def folders(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> Iterator[Path]:
    """Yield the folders of the control groups that may limit this process: its own group and all groups above it.

    controller: the limited resource, "cpu" or "memory". root: the mounted hierarchy. membership: the file that lists
    the process's groups. Supports versions 1 and 2 of control groups; yields nothing if membership cannot be read. In a
    container, a yielded folder may not exist even though root does.
    """
    try:
        lines = membership.read_text().splitlines()
    except (OSError, ValueError):  # ValueError: names that are not UTF-8
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
