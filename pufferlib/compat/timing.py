"""PufferLib 3's ``Profile`` and ``Utilization``: a trainer's seconds by phase, and how busy the machine is."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict, deque
from contextlib import suppress

import torch

__all__ = ["Profile", "Utilization"]


class Profile:
    """The seconds of named phases, of which each ends where the next begins.

    A phase that begins with ``nest`` is a part of the one before. frequency: accepted; all epochs are measured.
    """

    def __init__(self, frequency: int = 1) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._outermost: set[str] = set()
        self._open: list[tuple[str, float]] = []  # phases that have begun, outermost first, with their start

    def __call__(self, name: str, epoch: int = 0, nest: bool = False) -> None:
        """Begin a phase; without ``nest``, end the one that began last."""
        now_s = time.perf_counter()
        if self._open and not nest:
            self.pop(now_s)
        self._open.append((name, now_s))

    def pop(self, end: float | None = None) -> None:
        """End the phase that began last. end: its end, seconds of ``time.perf_counter``; by default now."""
        name, start_s = self._open.pop()
        self.seconds[name] += (time.perf_counter() if end is None else end) - start_s
        if not self._open:
            self._outermost.add(name)

    def end(self) -> None:
        """End all phases."""
        now_s = time.perf_counter()
        while self._open:
            self.pop(now_s)

    def clear(self) -> None:
        """Forget what was measured; a phase that has begun goes on."""
        self.seconds.clear()
        self._outermost.clear()

    def shares(self) -> dict[str, float]:
        """Return the share of the measured time, from 0 to 1, of each phase that is not a part of another."""
        seconds = {name: self.seconds[name] for name in self.seconds if name in self._outermost}
        total_s = sum(seconds.values())
        return {name: value / total_s for name, value in seconds.items() if total_s}


class Utilization(threading.Thread):
    """A thread that samples every ``delay`` seconds how busy the machine is, from ``start`` to ``stop``.

    cpu_util: the load average of the last minute, per core. cpu_mem: memory that is not free, what the system caches
    included. gpu_util and gpu_mem: of torch's current GPU. Each has the last ``maxlen`` samples, in percent, or none
    where the system, or torch, cannot tell.
    """

    def __init__(self, delay: float = 1, maxlen: int = 20) -> None:
        super().__init__(daemon=True)
        self.delay, self._ends = delay, threading.Event()
        self.cpu_util, self.cpu_mem, self.gpu_util, self.gpu_mem = (deque[float](maxlen=maxlen) for _ in range(4))

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return self._ends.is_set()

    def run(self) -> None:
        """Sample until ``stop``."""
        while not self._ends.wait(self.delay):
            self.cpu_util.append(100 * os.getloadavg()[0] / (os.cpu_count() or 1))
            if "SC_AVPHYS_PAGES" in os.sysconf_names:
                self.cpu_mem.append(100 - 100 * os.sysconf("SC_AVPHYS_PAGES") / os.sysconf("SC_PHYS_PAGES"))
            if torch.cuda.is_available():
                free, total = torch.cuda.mem_get_info()
                self.gpu_mem.append(100 - 100 * free / total)
                with suppress(ModuleNotFoundError, RuntimeError):  # without NVIDIA's management library
                    self.gpu_util.append(torch.cuda.utilization())

    def stop(self) -> None:
        """End the thread; one that has not started then ends at once."""
        self._ends.set()
