"""Find the processes that a process started, read their CPU time, and signal them (Linux)."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from time import clock_gettime

__all__ = ["children_cpu_s", "cpu_s", "descendants", "marked", "send_signal", "shared_files", "state"]


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process, and all other processes of its process group."""
    parents: dict[int, list[int]] = {}
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                _, parent, group, *_ = file.read().rpartition(")")[2].split()
                parents.setdefault(int(parent), []).append(int(name))
                if int(group) == pid != int(name):
                    pids.append(int(name))
    pids += [child for child in parents.get(pid, ()) if child not in pids]
    for process in pids:
        pids += [child for child in parents.get(process, ()) if child not in pids]
    return pids


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and all its descendants, in any process group."""
    for process in (pid, *descendants(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far, to the nanosecond; 0 if it has ended."""
    try:
        return clock_gettime((~pid << 3) | 2)  # the clock that clock_getcpuclockid(3) returns on Linux
    except OSError:
        return 0.0


def children_cpu_s() -> float:
    """Return the CPU seconds of all descendants that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def marked(variable: str, value: str) -> list[int]:
    """Return the running processes that were started with this variable in their environment."""
    mark, pids = f"{variable}={value}".encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    pids.append(int(name))
    return pids


def state(pid: int) -> str:
    """Return the kernel's letter for the state of a process, such as R, S or Z (ended); "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def shared_files(pids: list[int]) -> set[str]:
    """Return the files in /dev/shm that these processes have mapped and that are not deleted."""
    paths = set()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as file:
            names = (line.partition(" /dev/shm/")[2].rstrip("\n") for line in file)
            paths |= {f"/dev/shm/{name}" for name in names if name and not name.endswith(" (deleted)")}
    return paths
