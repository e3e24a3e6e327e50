"""Does anything grow? Run by tests/failures/test_leaks.py, each in a process of its own; prints what it saw as JSON.

    python tests/helpers/leaks.py cycles pool --count 1000 --context fork
    python tests/helpers/leaks.py restarts pool --count 500
    python tests/helpers/leaks.py steps pool --count 50000000

What is measured comes after a warm-up, when caches are filled, arenas are there and lazy imports done. Bytes are those
of anonymous memory: what is mapped from files is shared or not as other processes come and go.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil

import pufferlib
from pufferlib.vectorization.driver.worker_vecenv import WorkerVecEnv

MIB = 2**20
LEAST = 4  # repetitions before a deadline ends them, on a busy machine too


class BusyEnv(gymnasium.Env[Any, Any]):
    """Short episodes, an info now and then, sometimes a large one; action 1 raises."""

    observation_space = gymnasium.spaces.Box(-1, 1e9, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self) -> None:
        self.rows = np.zeros((16, 8), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.tick = 0
        return self.rows[0], {}

    def step(self, action: Any) -> Any:
        if action == 1:
            raise ValueError("as it was told")
        self.tick += 1
        info = {} if self.tick % 50 else {"tick": self.tick, "text": "x" * (20 if self.tick % 100 else 200_000)}
        over = self.tick == 210
        return self.rows[self.tick % 16], 1.0, over, False, info


def make(backend: str, **kwargs: Any) -> pufferlib.VecEnv:
    return pufferlib.make(BusyEnv, backend=backend, num_envs=8, num_workers=2, seed=1, **kwargs)


def memory(pid: int) -> int:
    """Return the bytes of a process's anonymous memory, what it shares with the parent of its fork included."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return int(psutil.Process(pid).memory_full_info().uss)
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return 1024 * int(fields["RssAnon"].split()[0])


def held() -> dict[str, int]:
    """Return what this process holds."""
    gc.collect()
    process = psutil.Process()
    return {
        "descriptors": process.num_fds(),
        "threads": threading.active_count(),
        "children": len(process.children(recursive=True)),
        "zombies": sum(child.status() == psutil.STATUS_ZOMBIE for child in process.children()),
        "objects": len(gc.get_objects()),
        "bytes": memory(process.pid),
    }


def growth(act: Callable[[], Any], count: int, warm: int, deadline_s: float) -> dict[str, float]:
    """Do something so many times, or until the deadline, and return how much more is held then than before."""
    for _ in range(warm):
        act()
    before, began, done = held(), time.monotonic(), 0
    while done < count and (done < LEAST or time.monotonic() - began < deadline_s):
        act()
        done += 1
    after = held()
    return {"done": done, "seconds": time.monotonic() - began, **{name: after[name] - before[name] for name in before}}


def cycles(backend: str, options: Any) -> dict[str, float]:
    """Make, use and close."""

    def act() -> None:
        vec = make(backend, context=options.context)
        vec.reset()
        vec.step(np.zeros(8, np.int64))
        vec.close()
        if backend == "serial":
            del vec
            gc.collect()  # a worker and its parts hold one another: what waits for this is no leak

    most = 8 if math.isfinite(options.seconds) else 250  # the heap settles after some hundred
    warm = max(1, min(options.count // 4, most))
    return growth(act, options.count, warm, options.seconds)


def restarts(backend: str, options: Any) -> dict[str, float]:
    """Kill a worker, and have another take its place."""
    random = np.random.default_rng(1)
    zeros = np.zeros(8, np.int64)
    with make(backend, on_error="restart", max_restarts=None) as vec:
        assert isinstance(vec, WorkerVecEnv)
        vec.reset()

        def act() -> None:
            worker = int(random.integers(2))
            os.kill(vec._workers.pids[worker], signal.SIGKILL)
            deadline = time.monotonic() + 60
            before = sum(vec.restarts)
            while sum(vec.restarts) == before or vec._recovery.pending:
                vec.step(zeros)
                assert time.monotonic() < deadline

        counts = growth(act, options.count, 8, options.seconds)
        assert sum(vec.restarts) == 4 * (counts["done"] + 8)
        return counts


def steps(backend: str, options: Any) -> dict[str, float]:
    """Step on and on, with infos, ends of episodes, partial and full resets, calls and errors."""
    random = np.random.default_rng(1)
    plain = [random.choice([0, 2], 8) for _ in range(64)]
    rounds = 0
    with make(backend, on_error="restart", max_restarts=None, batch_size=options.batch_size) as vec:
        assert isinstance(vec, WorkerVecEnv)
        num = options.batch_size or 8
        batches = [actions[:num] for actions in plain]
        vec.async_reset()
        vec.recv()

        def act() -> None:
            nonlocal rounds
            rounds += 1
            for _ in range(8):
                for actions in batches:
                    vec.send(actions)
                    vec.recv()
            if rounds % 4 == 0:
                raising = batches[0].copy()
                raising[rounds // 4 % num] = 1
                vec.send(raising)
                vec.recv()
            if rounds % 4 == 1:
                vec.get_attr("tick")
                vec.stats(reset=True)
            if rounds % 4 == 2 and num == 8:
                vec.reset(env_ids=[rounds // 4 % 8])
            if rounds % 4 == 3:
                vec.async_reset(seed=rounds)
                vec.recv()

        per_act = 8 * 64 * num
        workers = [] if backend == "serial" else [psutil.Process(pid) for pid in vec._workers.pids]
        for _ in range(max(8, int(options.warm / per_act))):
            act()
        before = [memory(worker.pid) for worker in workers]
        files = [worker.num_fds() for worker in workers]
        counts = growth(act, max(1, options.count // per_act), 0, options.seconds)
        counts["done"] *= per_act
        pairs = zip(workers, before, strict=True)
        counts["worker_bytes"] = max([memory(worker.pid) - nbytes for worker, nbytes in pairs], default=0)
        counts["worker_descriptors"] = max(
            [worker.num_fds() - num_fds for worker, num_fds in zip(workers, files, strict=True)], default=0
        )
        return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["cycles", "restarts", "steps"])
    parser.add_argument("backend", choices=["serial", "multiprocessing", "pool"])
    parser.add_argument("--context")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--warm", type=int, default=400_000, help="steps before anything is measured")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after these")
    options = parser.parse_args()
    counts = globals()[options.what](options.backend, options)
    json.dump(counts, sys.stdout)


if __name__ == "__main__":
    main()
