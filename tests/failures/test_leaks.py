"""Nothing grows: descriptors, processes, threads, objects, bytes; over cycles, restarts and steps (helpers/leaks.py).

In short by default; `make leaks` has at least 1,000 cycles with fork, 50 with spawn, 500 restarts, 50 million steps,
and keeps what it sees in benchmarks/results/leaks.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import leaks

ROOT = Path(__file__).parents[2]
LONG = os.environ.get("PUFFERLIB_LEAKS") == "long"
MIB = 2**20
PATHS = {"compiled": "", "portable": "0"}
AT_LENGTH = [] if LONG else [pytest.mark.long]
EACH_PATH = ["compiled", pytest.param("portable", marks=AT_LENGTH)]

pytestmark = [pytest.mark.slow, pytest.mark.beside, *([pytest.mark.timeout(7200)] if LONG else [])]


def measured(what: str, backend: str, *arguments: str, path: str = "compiled") -> dict[str, float]:
    """Return what has grown by how much."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers")]),
        "PUFFERLIB_NATIVE": PATHS[path],
        "OMP_NUM_THREADS": "1",
        # glibc raises this with each large block that is freed, and then keeps up to 32 MiB of free heap.
        "MALLOC_MMAP_THRESHOLD_": str(128 << 10),
    }
    program = [sys.executable, str(ROOT / "tests/helpers/leaks.py"), what, backend, *arguments]
    result = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    seen: dict[str, float] = json.loads(result.stdout)
    print(what, backend, *arguments, path, seen)  # pytest -rP shows it
    if LONG:
        leaks.add((what, backend, *arguments, path), seen)
    return seen


def grown(seen: dict[str, float], nbytes: float) -> dict[str, float]:
    """Return what has grown: things that can be counted at all, objects and bytes by more than so many."""
    counted = dict.fromkeys(("descriptors", "threads", "children", "zombies", "worker_descriptors"), 0)
    limits = {**counted, "objects": 200, "bytes": nbytes, "worker_bytes": nbytes}
    return {name: seen[name] for name, limit in limits.items() if seen.get(name, 0) > limit}


def assert_level(seen: dict[str, float], nbytes: float) -> None:
    assert grown(seen, nbytes) == {}


def short(seconds: str, *more: str) -> tuple[str, ...]:
    """Return the arguments that end what is not to be long."""
    return () if LONG else ("--seconds", seconds, *more)


@pytest.mark.parametrize("path", EACH_PATH)
def test_making_and_closing_with_fork(path: str) -> None:
    seen = measured("cycles", "pool", "--count", "1000", *short("1"), path=path)
    assert seen["done"] == 1000 if LONG else seen["done"] > 3
    assert_level(seen, 2 * MIB)


@pytest.mark.long
def test_making_and_closing_on_serial() -> None:
    assert_level(measured("cycles", "serial", "--count", "1000", *short("1")), 2 * MIB)


@pytest.mark.long
def test_making_and_closing_with_spawn() -> None:
    seen = measured("cycles", "pool", "--context", "spawn", "--count", "50" if LONG else "2")
    assert_level(seen, 2 * MIB)


@pytest.mark.parametrize("path", EACH_PATH)
def test_restarts(path: str) -> None:
    seen = measured("restarts", "pool", "--count", "500", *short("1"), path=path)
    assert seen["done"] == 500 if LONG else seen["done"] > 3
    assert_level(seen, 2 * MIB)


# The parent's steps and a worker's are those of a pool.
STEPPED = [
    ("pool", 4),
    *(pytest.param(*row, marks=AT_LENGTH) for row in (("serial", 8), ("pool", 8), ("multiprocessing", 4))),
]


@pytest.mark.parametrize("path", EACH_PATH)
@pytest.mark.parametrize(("backend", "batch_size"), STEPPED)
def test_steps(backend: str, batch_size: int, path: str) -> None:
    """Each byte that leaks at a step would be 50 MB in the long form; the short one sees what larger things leak.

    The heap goes on settling for some ten million steps, by a MiB or two at a time. What leaks does so however long one
    has waited, so the short form, which begins early, waits longer before it calls growth a leak.
    """
    arguments = ("--batch-size", str(batch_size), "--count", "50000000")
    for warm in [15_000_000] if LONG else [20_000, 200_000, 1_000_000]:
        seen = measured("steps", backend, *arguments, "--warm", str(warm), *short("0.5"), path=path)
        assert seen["done"] >= 49_900_000 if LONG else seen["done"] > 1000
        if not grown(seen, 2 * MIB):
            break
    assert_level(seen, 2 * MIB)
