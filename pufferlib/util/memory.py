"""Measure the memory of the machine and of this process and its descendants; parse and format byte counts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pufferlib.errors import PlanError
from pufferlib.util import cgroups

__all__ = ["left_by", "memory_at_hand", "memory_nbytes", "memory_text", "memory_there", "nbytes_of"]


def memory_nbytes() -> int:
    """Return the bytes used by this process and its descendants, with shared memory counted once; 0 if unknown."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(folder.name))
    total, pids = 0, [os.getpid()]
    while pids:
        pid = pids.pop()
        pids += parents.get(pid, [])
        with suppress(OSError):  # the process has ended
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += 1024 * int(line.split()[1])
    return total


def memory_there() -> tuple[float, float]:
    """Return the machine's memory and the limit of the tightest control group, in bytes.

    The memory is inf if unknown; the limit is inf unless it is below the memory.
    """
    system, limits = float("inf"), [float("inf")]
    with suppress(OSError, ValueError, AttributeError):
        system = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for folder in cgroups.folders("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(float(int((folder / name).read_text())))
    return system, min(limits) if min(limits) < system else float("inf")


def memory_at_hand() -> float:
    """Return the number of bytes available on the machine or in this process's control groups, whichever is less.

    If neither number is known, returns the size of the machine's memory, or inf if the size is unknown, too.
    """
    amounts = [float("inf")]
    with suppress(OSError, ValueError, AttributeError):
        match = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        amounts.append(1024.0 * int(match[1]) if match else float("inf"))
    amounts += [left for folder in cgroups.folders("memory") for left in left_by(folder)]
    if len(amounts) == 1 and hasattr(os, "sysconf"):
        with suppress(OSError, ValueError):
            amounts.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    return max(0.0, min(amounts))


def left_by(folder: Path) -> Iterator[float]:
    """Yield the number of bytes left in a control group, if it has a limit; its page cache counts as free."""
    files = ("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    for limit, usage, prefix in files:
        with suppress(OSError, ValueError):  # "max", which is not a number, means no limit
            left = int((folder / limit).read_text()) - int((folder / usage).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield float(left + sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive")))


def nbytes_of(amount: float | str) -> float:
    """Convert a number of bytes, or a string such as "500 MiB" or "4 GB", to a number of bytes.

    Raises PlanError for any other string, and for a number that is not positive.
    """
    if isinstance(amount, str):
        match = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?)(i?)b?\s*", amount.lower())
        with suppress(ValueError):
            if match:
                unit = 1024.0 if match[3] else 1000.0
                return float(match[1]) * float(unit ** (" kmgt".index(match[2]) if match[2] else 0))
    elif amount > 0:
        return float(amount)
    raise PlanError(f'max_memory={amount!r} is no amount of memory; use bytes, or text such as "500 MiB"')


def memory_text(nbytes: float) -> str:
    """Format a number of bytes, such as "87 MiB" or "1.2 GiB"."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"
