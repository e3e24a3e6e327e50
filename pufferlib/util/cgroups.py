"""The control groups that this process is in, which may give it less than the machine has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["folders"]

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def folders(controller: str, root: Path = ROOT, own: Path = OWN) -> Iterator[Path]:
    """Yield the folders that may limit this process for a controller ("cpu", "memory"): its own group and all above.

    Version 1 and 2 alike; nothing where there are no such groups. Inside a container a folder may not exist, while its
    root does.
    """
    try:
        lines = own.read_text().splitlines()
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
