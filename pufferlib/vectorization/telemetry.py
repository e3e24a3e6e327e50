"""Telemetry, the writing side: where the time of a VecEnv goes, noted for less than a hundredth of it.

Arrays that workers and the parent write to, each cell by one writer only, so that none needs a lock. They only ever
grow (but for the maxima): whoever reads them keeps what they were at the beginning of a period, and subtracts.

``times``: float64 (num_envs, 2, 4), a cache line an environment: [STEP or RESET] × [WEIGHT, SUM, SQUARES, MAX], that is
    how many calls the samples stand for, their seconds, their seconds squared (both weighted), and the longest sample
    in seconds. A step's time is all that happens between a worker's taking up the environment and its rows being
    written; resets that follow an episode's end count as resets, whatever the autoreset mode.
``histogram``: uint64 (num_envs, 128), of the times of steps. Four buckets an octave: with e = floor(log2(ns)), bucket
    4·e + the two bits below the highest one; at least 1 ns, and the last bucket (from 3.76 s) is open. Each sample adds
    its weight.
``worker_times``: float64 (num_workers, 8), a cache line a worker, so that they do not share one: [BUSY] seconds between
    being given work and having none, [WAITED] seconds without any. The rest is unused.
``block_times``: int64 (num_blocks, 2): monotonic ns of the [DEPARTED] first departure for, or claim of, a block, and of
    its [COMPLETED] completion. Of the compiled path only; num_blocks is 0 elsewhere.
``parent_times``: float64 (8,), private to the parent: [NUM_RECV] batches received, [RECV] seconds inside recv,
    [THOUGHT] seconds from recv's return to the next call of it (the learner, and send), [FILL_NUM, FILL_SUM, FILL_MAX]
    how many blocks, and their seconds from departure to completion.

**Which steps are timed.** A step is timed, and with k = floor(100 · cost / duration), at most 1,000, a random number
of 0 to 2k of the next steps are not, where cost is what timing one step costs: so a hundredth of the time goes into
timing, and steps longer than a hundred times the cost are all timed. The weight of a sample is one more than the number
of steps left out *before* it: that number must not depend on the sample itself, or a mixture of fast and slow steps
would seem faster than it is (a step of 1 µs would speak for a hundred, one of 1 ms for itself alone). It is random, so
that an environment that does something special at every tenth step is not always met in the same phase. Every reset is
timed, with weight 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["NUM_BUCKETS", "Stopwatch", "bucket_of", "parent_times", "shared_arrays"]

STEP, RESET = 0, 1
WEIGHT, SUM, SQUARES, MAX = 0, 1, 2, 3
BUSY, WAITED = 0, 1
DEPARTED, COMPLETED = 0, 1
NUM_RECV, RECV, THOUGHT, FILL_NUM, FILL_SUM, FILL_MAX = range(6)

NUM_BUCKETS = 128
MOST_LEFT_OUT = 1000
PORTABLE_COST_S = 1.5e-6  # two readings of the clock and a call of `record`, in plain Python
COMPILED_COST_S = 0.06e-6

Array = np.ndarray[Any, Any]


def shared_arrays(
    num_envs: int, num_workers: int, num_blocks: int = 0
) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and dtype of the arrays that workers and parent share, all zero at first."""
    return {
        "times": ((num_envs, 2, 4), np.dtype(np.float64)),
        "histogram": ((num_envs, NUM_BUCKETS), np.dtype(np.uint64)),
        "worker_times": ((num_workers, 8), np.dtype(np.float64)),
        "block_times": ((num_blocks, 2), np.dtype(np.int64)),
    }


def parent_times() -> Array:
    """Return the parent's own array, all zero."""
    return np.zeros(8)


def bucket_of(ns: int) -> int:
    """Return the bucket of the histogram for a duration."""
    ns = max(1, ns)
    octave = ns.bit_length() - 1
    return min(4 * octave + ((ns << 2 >> octave) & 3), NUM_BUCKETS - 1)


class Stopwatch:
    """Times the steps and resets of a worker's environments, in plain Python.

    ::

        timed = stopwatch.due(env_id)
        start_s = perf_counter()  # only if timed
        …
        if timed:
            stopwatch.record(env_id, perf_counter() - start_s)

    left_out: for each environment, how many of its next steps are not to be timed. ``due`` counts it down; a loop that
    cannot afford the call may do so itself.
    """

    def __init__(self, times: Array, histogram: Array, cost_s: float = PORTABLE_COST_S) -> None:
        self._times: Any = times.reshape(-1).data  # an element costs a third of what NumPy's does
        self._histogram: Any = histogram.reshape(-1).data
        self._hundred_costs_s = 100 * cost_s
        self.left_out = [0] * len(times)
        self._weights = [1] * len(times)  # of the next samples
        self._state = 1

    def due(self, env_id: int) -> bool:
        """Tell whether the step that comes is to be timed."""
        if self.left_out[env_id]:
            self.left_out[env_id] -= 1
            return False
        return True

    def record(self, env_id: int, seconds: float) -> None:
        """Note a step that was due, and settle which one is next."""
        weight = self._weights[env_id]
        self._add(8 * env_id, seconds, weight)
        self._histogram[NUM_BUCKETS * env_id + bucket_of(int(seconds * 1e9))] += weight
        if seconds >= self._hundred_costs_s:
            self._weights[env_id] = 1
            return
        most = 2 * min(MOST_LEFT_OUT, int(self._hundred_costs_s / max(seconds, 1e-9)))
        self._state = state = (self._state * 1664525 + 1013904223) & 0xFFFFFFFF
        self.left_out[env_id] = left_out = (state >> 8) % (most + 1)
        self._weights[env_id] = left_out + 1

    def record_reset(self, env_id: int, seconds: float) -> None:
        """Note a reset; every one is."""
        self._add(8 * env_id + 4 * RESET, seconds, 1)

    def _add(self, place: int, seconds: float, weight: int) -> None:
        times = self._times
        total = weight * seconds
        times[place] += weight
        times[place + SUM] += total
        times[place + SQUARES] += total * seconds
        if seconds > times[place + MAX]:
            times[place + MAX] = seconds
