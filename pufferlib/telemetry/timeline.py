"""Telemetry: record where a VecEnv's time goes, at a cost of about 1 % of it, in arrays that ``stats`` reads.

Workers and the parent write to the arrays; each cell has only one writer, so no locks are needed. Except for the maxima
and [RETURNED], values are running totals: a reader copies them when a period begins, and later subtracts the copy.

``times``: float64 (num_envs, 2, 4), one cache line per environment: [STEP or RESET] × [WEIGHT, SUM, SQUARES, MAX]:
    the number of calls that the samples represent, the weighted sums of the samples' seconds and of their squares, and
    the longest sample in seconds. A step lasts from when a worker turns to the environment until the environment's rows
    are written. In every autoreset mode, a reset after an episode's end counts as a reset.
``histogram``: uint64 (num_envs, 128), histograms of step times. An octave has four buckets: for e = floor(log2(ns)),
    the bucket is 4·e plus the two bits below the highest one. Times below 1 ns count as 1 ns, and the last bucket (from
    3.76 s) has no upper bound. Each sample adds its weight.
``worker_times``: float64 (num_workers, 8), one cache line per worker, so that workers do not share one: [BUSY] seconds
    with work, [WAITED] seconds without. The rest is unused.
``parent_times``: float64 (8,), private to the parent: [NUM_RECV] batches received; [RECV] seconds inside recv;
    [SEND] seconds inside send and async_reset (which step and reset on the serial backend); [THOUGHT] seconds from the
    return of recv to its next call, without those inside send (the learner's time); [FILL_NUM, FILL_SUM, FILL_MAX] the
    number of blocks, and the sum and maximum of their seconds from the first sent action to the last row; [RETURNED]
    the time at which recv last returned in this period, in seconds of a monotonic clock. [RETURNED] is 0 until recv
    first returns in the period; only then does the learner's time begin to count.

**Which steps are timed.** After a timed step, a random number of steps, from 0 to 2k, is not timed. Here,
k = floor(100 · cost / duration), at most 1,000, and cost is the time that timing one step takes. Timing thus takes
about 1 % of the time, and steps of at least a hundred times the cost are all timed. The weight of a sample is one more
than the number of steps left out *before* it, because that number must not depend on the sample itself. Otherwise, a
mixture of fast and slow steps would seem faster than it is: a step of 1 µs would represent a hundred steps, one of 1 ms
only itself. The number is random, so that an environment with a special event at every tenth step is not always sampled
in the same phase. Every reset is timed, with weight 1.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pufferlib.util.annotations import Array

__all__ = ["NUM_BUCKETS", "Recorded", "Stopwatch", "Timeline", "bucket_edges", "bucket_of", "shared_arrays"]

STEP, RESET = 0, 1
WEIGHT, SUM, SQUARES, MAX = 0, 1, 2, 3
BUSY, WAITED = 0, 1
NUM_RECV, RECV, SEND, THOUGHT, FILL_NUM, FILL_SUM, FILL_MAX, RETURNED = range(8)

NUM_BUCKETS = 128
MOST_LEFT_OUT = 1000
PORTABLE_COST_S = 1.5e-6  # two readings of the clock and a call of `record`, in plain Python


def shared_arrays(num_envs: int, num_workers: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return the shape and dtype of each array that workers and parent share, by name; all start as zeros."""
    return {
        "times": ((num_envs, 2, 4), np.dtype(np.float64)),
        "histogram": ((num_envs, NUM_BUCKETS), np.dtype(np.uint64)),
        "worker_times": ((num_workers, 8), np.dtype(np.float64)),
    }


def bucket_of(ns: int) -> int:
    """Return the histogram's bucket for a duration in nanoseconds."""
    ns = max(1, ns)
    octave = ns.bit_length() - 1
    return min(4 * octave + ((ns << 2 >> octave) & 3), NUM_BUCKETS - 1)


def bucket_edges() -> Array:
    """Return the edges of the histogram's buckets in seconds, (129,).

    The last edge is only nominal, because the last bucket has no upper bound.
    """
    octave, quarter = np.divmod(np.arange(NUM_BUCKETS + 1), 4)
    return np.asarray(2.0**octave * (1 + quarter / 4) * 1e-9)


class Stopwatch:
    """A sampling timer for the steps and resets of a worker's environments, in pure Python.

    ::

        timed = stopwatch.left_out[env_id] == 0
        if timed:
            start_s = perf_counter()
            …
            stopwatch.record(env_id, perf_counter() - start_s)
        else:
            stopwatch.left_out[env_id] -= 1
            …

    left_out: how many of each environment's next steps are not to be timed. The caller counts it down, without a call.
    """

    def __init__(self, times: Array, histogram: Array, cost_s: float = PORTABLE_COST_S) -> None:
        self._times: Any = times.reshape(-1).data  # element access takes a third of NumPy's time
        self._histogram: Any = histogram.reshape(-1).data
        self._hundred_costs_s = 100 * cost_s
        self.left_out = [0] * len(times)
        self._weights = [1] * len(times)  # of the next samples
        self._state = 1

    def record(self, index: int, seconds: float) -> None:
        """Record the duration of a step for which ``left_out`` was 0, and choose the next step to time."""
        weight = self._weights[index]
        self._add(8 * index, seconds, weight)
        self._histogram[NUM_BUCKETS * index + bucket_of(int(seconds * 1e9))] += weight
        if seconds >= self._hundred_costs_s:
            self._weights[index] = 1
            return
        most = 2 * min(MOST_LEFT_OUT, int(self._hundred_costs_s / max(seconds, 1e-9)))
        self._state = state = (self._state * 1664525 + 1013904223) & 0xFFFFFFFF
        self.left_out[index] = left_out = (state >> 8) % (most + 1)
        self._weights[index] = left_out + 1

    def record_reset(self, index: int, seconds: float) -> None:
        """Record the duration of a reset; callers time every reset."""
        self._add(8 * index + 4 * RESET, seconds, 1)

    def _add(self, offset: int, seconds: float, weight: int) -> None:
        times = self._times
        total = weight * seconds
        times[offset] += weight
        times[offset + SUM] += total
        times[offset + SQUARES] += total * seconds
        if seconds > times[offset + MAX]:
            times[offset + MAX] = seconds


class Recorded(NamedTuple):
    """The records of one period: this module's arrays, minus their values at the beginning of the period.

    Maxima are an exception: they are the period's own or, where those are unknown, upper bounds of them. worker_cpu_s,
    worker_queued_s: (num_workers,), the seconds that each worker's main thread spent on a core, and waiting for one;
    NaN if unknown. parent_cpu_s, parent_queued_s: the same for the parent's calling thread.
    """

    times: Array
    histogram: Array
    worker_times: Array
    parent_times: Array
    worker_cpu_s: Array
    worker_queued_s: Array
    parent_cpu_s: float
    parent_queued_s: float


class Timeline:
    """The parent's side of telemetry: all arrays, and their values at the beginning of the period.

    arrays: the ``shared_arrays``, by name. pids: each worker's process id, 0 for a worker without its own process; kept
    up to date by the caller. The fast path also writes to ``parent_times``.
    """

    def __init__(self, arrays: Mapping[str, Array], pids: Sequence[int]) -> None:
        self.arrays = arrays
        self.parent_times: Array = np.zeros(8)
        self._cells: Any = self.parent_times.data  # element access takes a third of NumPy's time
        self._pids = pids
        self.begin()

    def begin(self) -> None:
        """Begin a new period."""
        self._before = self._now()
        self._cpu_before = {pid: cpu_times(pid) for pid in self._pids if pid}
        self.parent_times[[FILL_MAX, RETURNED]] = 0.0

    def note_send(self, start_s: float) -> None:
        """Record that send or async_reset lasted from start_s, a reading of time.monotonic, until now."""
        times, seconds = self._cells, time.monotonic() - start_s
        times[SEND] += seconds
        if times[RETURNED]:
            times[THOUGHT] -= seconds

    def note_recv(self, start_s: float) -> None:
        """Record that recv returned a batch and lasted from start_s, a reading of time.monotonic, until now."""
        times, now_s = self._cells, time.monotonic()
        if times[RETURNED]:
            times[THOUGHT] += start_s - times[RETURNED]
        times[RETURNED] = now_s
        times[RECV] += now_s - start_s
        times[NUM_RECV] += 1

    def take(self) -> Recorded:
        """Return the records of the current period so far."""
        now, before = self._now(), self._before
        times = now.times - before.times
        # A maximum that has not grown is from an earlier period; the histogram then bounds that of this period.
        histogram = now.histogram - before.histogram
        grown = now.times[..., MAX] > before.times[..., MAX]
        edges = np.append(bucket_edges()[:-1], np.inf)  # the last bucket is open
        top = edges[np.where(histogram.any(1), NUM_BUCKETS - np.argmax(histogram[:, ::-1] > 0, 1), 0)]
        bound = np.where(histogram.any(1), np.minimum(top, now.times[:, STEP, MAX]), 0.0)
        times[:, STEP, MAX] = np.where(grown[:, STEP], now.times[:, STEP, MAX], bound)
        resets = times[:, RESET, WEIGHT]
        most = np.minimum(now.times[:, RESET, MAX], np.sqrt(np.maximum(times[:, RESET, SQUARES], 0)))
        times[:, RESET, MAX] = np.where(grown[:, RESET], now.times[:, RESET, MAX], np.where(resets > 0, most, 0.0))
        parent_times = now.parent_times - before.parent_times
        parent_times[FILL_MAX] = now.parent_times[FILL_MAX]
        cpu = []
        for pid in self._pids:
            new, old = cpu_times(pid) if pid else (math.nan, math.nan), self._cpu_before.get(pid, (0.0, 0.0))
            cpu.append((new[0] - old[0], new[1] - old[1]))
        worker_cpu, worker_queued = np.array(cpu, np.float64).reshape(-1, 2).T
        return Recorded(
            times,
            histogram,
            now.worker_times - before.worker_times,
            parent_times,
            worker_cpu,
            worker_queued,
            now.parent_cpu_s - before.parent_cpu_s,
            now.parent_queued_s - before.parent_queued_s,
        )

    def _now(self) -> Recorded:
        arrays, none = self.arrays, np.zeros(0)
        return Recorded(
            arrays["times"].copy(),
            arrays["histogram"].copy(),
            arrays["worker_times"].copy(),
            self.parent_times.copy(),
            none,
            none,
            time.thread_time(),
            cpu_times("thread-self")[1],
        )


def cpu_times(pid: int | str) -> tuple[float, float]:
    """Return the seconds that a process's main thread spent on a core, and waiting for one; NaN if unknown.

    pid: a process id, or "thread-self" for the calling thread.
    """
    with contextlib.suppress(OSError, ValueError):  # the process has ended, or this is not Linux
        had, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return int(had) * 1e-9, int(waited) * 1e-9
    return math.nan, math.nan
