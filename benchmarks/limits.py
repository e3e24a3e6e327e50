"""Measure the limits of this machine, which explain targets that are missed.

    python -m benchmarks.limits            three minutes
    python -m benchmarks.limits --short    one

Prints a table, and writes benchmarks/results/limits.json and the table in benchmarks/README.md. All measurements take
turns, with one short sample in each repeat, so other load on the machine affects all of them. The rows in C are
compiled from limits.c by cc, and left out if there is no cc.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import mmap
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np

from benchmarks.envs import PlainEnv
from benchmarks.lines import table_text
from benchmarks.pages import fill, write_page
from benchmarks.revisions import version
from pufferlib.tuning.bench import machine, overload

__all__ = ["Row", "compiled", "loop_rows", "measure", "process_rows", "program_rows", "python_rows", "section", "table"]

FOLDER = Path(__file__).parent
REPEATS, SHORT_REPEATS = 15, 7
SAMPLE_S, SHORT_SAMPLE_S = 0.1, 0.05
NUM_ENVS = 32  # of the loops
NUM_WORKERS = (1, 2, 8, 16, 32)
NUM_WAKES = 20  # of a sleeping process, in a sample
PAUSE_WORKERS = 2
PAUSE_S = 1.0  # the pause of peers.py's workloads
ROWS_BYTES = 4 * 84 * 84  # an observation of Atari, 28 kB


@dataclass
class Row:
    """One figure. ``sample`` takes the seconds that it may use, and returns the figure in ``unit``.

    unit: "s", "steps/s" or "bytes/s".
    """

    group: str
    name: str
    unit: str
    sample: Callable[[float], float] = field(repr=False)
    samples: list[float] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Return the row as it is stored in JSON."""
        statistics = {"median": median(self.samples), "min": min(self.samples), "max": max(self.samples)}
        return {"group": self.group, "name": self.name, "unit": self.unit, **statistics, "samples": self.samples}


def measure(rows: Sequence[Row], repeats: int, sample_s: float) -> None:
    """Take ``repeats`` samples of all rows in turn, of about ``sample_s`` seconds each."""
    for _ in range(repeats):
        for row in rows:
            row.samples.append(row.sample(sample_s))


# ---------------------------------------------------------------------------------------------------- the bare loop


def loop_rows() -> list[Row]:
    """Return the rows of one Python loop that steps environments, with and without storing results."""
    rows = []
    for kind in ("small", "large"):
        environments = [PlainEnv(observation=kind, episode_length=1_000_000_000) for _ in range(NUM_ENVS)]
        for index, env in enumerate(environments):
            env.reset(seed=index)
        shape = environments[0].observation_space.shape
        title = f"{'×'.join(map(str, shape))} {environments[0].observation_space.dtype}"
        rows.append(Row("bare loop", f"steps and stores, {title}", "steps/s", _storing(environments)))
        if kind == "small":
            rows.insert(0, Row("bare loop", "steps alone", "steps/s", _stepping(environments)))
    return rows


def _stepping(environments: Sequence[gymnasium.Env[Any, Any]]) -> Callable[[float], float]:
    steps = [env.step for env in environments]

    def once() -> None:
        for step in steps:
            step(0)

    return lambda seconds: len(steps) / _seconds_each(once, seconds)


def _storing(environments: Sequence[gymnasium.Env[Any, Any]]) -> Callable[[float], float]:
    num_envs, space = len(environments), environments[0].observation_space
    assert space.shape is not None
    observations = np.zeros((num_envs, *space.shape), space.dtype)
    rewards = np.zeros(num_envs, np.float32)
    terminations = np.zeros(num_envs, np.bool_)
    truncations = np.zeros(num_envs, np.bool_)

    def once() -> None:
        for index, env in enumerate(environments):
            observation, reward, terminated, truncated, _ = env.step(0)
            observations[index] = observation
            rewards[index] = reward
            terminations[index] = terminated
            truncations[index] = truncated

    return lambda seconds: num_envs / _seconds_each(once, seconds)


def _seconds_each(act: Callable[[], Any], seconds: float) -> float:
    """Return the seconds of a call, repeated for so many seconds, with the overhead of a ``for`` loop."""
    at_once, elapsed = 1, 0.0
    while elapsed < seconds / 10:  # until reading the clock does not matter
        at_once *= 2
        elapsed = _timed(act, at_once)
    times, spent = [elapsed / at_once], elapsed
    while spent < seconds:
        elapsed = _timed(act, at_once)
        times.append(elapsed / at_once)
        spent += elapsed
    return median(times)


def _timed(act: Callable[[], Any], count: int) -> float:
    start_s = perf_counter()
    for _ in repeat(None, count):
        act()
    return perf_counter() - start_s


# ------------------------------------------------------------------------------------------------- costs in Python


def python_rows() -> list[Row]:
    """Return the rows of single operations in Python, each including the call of the function around it."""
    env = PlainEnv(episode_length=1_000_000_000)
    observation, _ = env.reset(seed=0)
    step, image = env.step, np.ones(ROWS_BYTES, np.uint8)
    small, large = np.zeros((NUM_ENVS, *observation.shape), np.float32), np.zeros((NUM_ENVS, ROWS_BYTES), np.uint8)
    rewards, picked = np.zeros(NUM_ENVS, np.float32), np.arange(0, NUM_ENVS, 4)

    def nothing() -> None: ...

    def store_scalar() -> None:
        rewards[3] = 1.0

    def store_row() -> None:
        small[3] = observation

    def store_image() -> None:
        large[3] = image

    operations: dict[str, Callable[[], Any]] = {
        "call of a function": nothing,
        "env.step that does nothing": lambda: step(0),
        "read perf_counter": perf_counter,
        "read process_time": time.process_time,
        "sched_yield": os.sched_yield,
        "store of a scalar": store_scalar,
        "store of a row of 32 bytes": store_row,
        "store of a row of 28 kB": store_image,
        f"tolist of {NUM_ENVS} numbers": rewards.tolist,
        f"gather of {len(picked)} rows of 32 bytes": lambda: small[picked],
        f"gather of {len(picked)} rows of 28 kB": lambda: large[picked],
    }
    return [
        Row("Python", name, "s", lambda seconds, act=act: _seconds_each(act, seconds))  # type: ignore[misc]
        for name, act in operations.items()
    ]


# ---------------------------------------------------------------------------------------------- processes in Python


def process_rows(num_workers: Sequence[int] = NUM_WORKERS) -> list[Row]:
    """Return the rows of communication between Python processes: round trips, and batches of idle workers."""
    rows = []
    for pair, cpus in _cpu_pairs().items():
        for method, link in (("pipe", _Pipe), ("eventfd", _Eventfd), ("flag and sched_yield", _Flag)):
            sample = lambda seconds, link=link, cpus=cpus: _trip(link, cpus, seconds)  # noqa: E731
            rows.append(Row(f"round trip, Python, {pair}", method, "s", sample))
    for count in num_workers:
        name = f"{count} worker{'s' * (count > 1)}"
        sample = lambda seconds, count=count: _batch(count, seconds)  # noqa: E731
        rows.append(Row("batch of idle workers, Python, pipes", name, "s", sample))
    first = lambda seconds: _batch(PAUSE_WORKERS, seconds, PAUSE_S)  # noqa: E731
    rows.append(Row(f"first batch after {PAUSE_S:g} s, {PAUSE_WORKERS} workers asleep", "Python, pipes", "s", first))
    return rows


def _cpu_pairs() -> dict[str, tuple[int, int]]:
    """Return pairs of CPUs by name: the same CPU twice, and two different ones if there are two."""
    first, *others = sorted(os.sched_getaffinity(0))
    return {"same CPU": (first, first), **({"other CPU": (first, others[0])} if others else {})}


class _Pipe:
    """A one-way pipe between two processes."""

    def __init__(self) -> None:
        self.inlet, self.outlet = os.pipe()

    def tell(self) -> None:
        os.write(self.outlet, b"!")

    def hear(self) -> bytes:
        """Wait for a message; return b"" once the other end is closed."""
        return os.read(self.inlet, 1)

    def close(self) -> None:
        os.close(self.inlet)
        os.close(self.outlet)


class _Eventfd:
    def __init__(self) -> None:
        self.number = os.eventfd(0)

    def tell(self) -> None:
        os.eventfd_write(self.number, 1)

    def hear(self) -> int:
        return os.eventfd_read(self.number)

    def close(self) -> None:
        os.close(self.number)


class _Flag:
    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 1)

    def tell(self) -> None:
        self.memory[0] = 1

    def hear(self) -> int:
        memory, sched_yield = self.memory, os.sched_yield
        while not memory[0]:
            sched_yield()
        memory[0] = 0
        return 1

    def close(self) -> None:
        self.memory.close()


def _trip(link: type[_Pipe | _Eventfd | _Flag], cpus: tuple[int, int], seconds: float) -> float:
    request, reply = link(), link()

    def answer() -> None:
        while request.hear():
            reply.tell()

    def once() -> None:
        request.tell()
        reply.hear()

    with _on_cpu(cpus[0]), _child(answer, cpus[1]):
        result = _seconds_each(once, seconds)
    request.close()
    reply.close()
    return result


def _batch(num_workers: int, seconds: float, pause_s: float = 0.0) -> float:
    """Return the seconds of a batch of all workers, or of the first batch after a pause."""
    links = [(_Pipe(), _Pipe()) for _ in range(num_workers)]

    def answer(request: _Pipe, reply: _Pipe) -> None:
        while request.hear():
            reply.tell()

    def once() -> None:
        for request, _ in links:
            request.tell()
        for _, reply in links:
            reply.hear()

    with contextlib.ExitStack() as stack:
        for request, reply in links:
            stack.enter_context(_child(lambda request=request, reply=reply: answer(request, reply)))  # type: ignore[misc]
        result = _seconds_each(once, seconds)
        if pause_s:
            time.sleep(pause_s)
            result = _timed(once, 1)
    for request, reply in links:
        request.close()
        reply.close()
    return result


@contextlib.contextmanager
def _on_cpu(cpu: int) -> Iterator[None]:
    """Run this thread on one CPU only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _child(act: Callable[[], None], cpu: int | None = None) -> Iterator[None]:
    """Run a function in a forked process, on one CPU if given, and kill the process in the end."""
    process = os.fork()
    if not process:
        try:
            if cpu is not None:
                os.sched_setaffinity(0, {cpu})
            act()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)


# -------------------------------------------------------------------------------------------------------------- in C


@contextlib.contextmanager
def compiled() -> Iterator[Path | None]:
    """Compile limits.c into a temporary folder and yield the program's path; None without cc."""
    cc = shutil.which("cc")
    if cc is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "limits"
        subprocess.run([cc, "-O2", "-o", program, FOLDER / "limits.c"], check=True)
        yield program


def program_rows(program: Path, num_workers: Sequence[int] = NUM_WORKERS) -> list[Row]:
    """Return the rows that the compiled program measures: memory, the scheduler, and processes without Python."""

    def run_program(*arguments: object) -> float:
        command = [program, *map(str, arguments)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)

    rows = []
    for size, title in ((ROWS_BYTES, "28 kB, in cache"), (1_000_000, "1 MB"), (64_000_000, "64 MB")):
        sample = lambda seconds, size=size: size / run_program("copy", size, seconds)  # noqa: E731
        rows.append(Row("memcpy", title, "bytes/s", sample))
    rows.append(Row("C", "sched_yield", "s", lambda seconds: run_program("yield", seconds)))
    for pair, cpus in _cpu_pairs().items():
        for method in ("pipe", "eventfd", "futex", "flag"):
            sample = lambda seconds, method=method, cpus=cpus: run_program("trip", method, *cpus, seconds)  # noqa: E731
            name = "flag and sched_yield" if method == "flag" else method
            rows.append(Row(f"round trip, C, {pair}", name, "s", sample))
        for method in ("pipe", "futex"):
            sample = lambda seconds, method=method, cpus=cpus: run_program("wake", method, *cpus, NUM_WAKES)  # noqa: E731
            rows.append(Row(f"until a sleeping process runs, C, {pair}", method, "s", sample))
    for count in num_workers:
        name = f"{count} worker{'s' * (count > 1)}"
        sample = lambda seconds, count=count: run_program("batch", count, seconds)  # noqa: E731
        rows.append(Row("batch of idle workers, C, 50 sched_yields, then futex", name, "s", sample))
    for method in ("pipe", "futex"):
        first = lambda seconds, method=method: run_program("first", method, PAUSE_WORKERS, PAUSE_S)  # noqa: E731
        rows.append(Row(f"first batch after {PAUSE_S:g} s, {PAUSE_WORKERS} workers asleep", f"C, {method}", "s", first))
    return rows


# ------------------------------------------------------------------------------------------------------------ tables


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table of rows with samples: medians, and the range from the least to the greatest."""
    return _table([row.facts() for row in rows])


def section(results: Mapping[str, Any]) -> str:
    """Return the section of benchmarks/README.md for the facts of a run."""
    before, after = results["load"]
    about = f"{results['machine']}; {results['date'][:10]}; load {before:.1f} before, {after:.1f} after; "
    return f"{about}[raw results](results/limits.json).\n\n{_table(results['rows'])}"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| what | median (min – max) |", "| --- | --- |"]
    for row in rows:
        scale, unit = _scale(row["unit"], row["median"])
        middle, least, most = (
            f"{value * scale:,.3g}" if value * scale < 1000 else f"{value * scale:,.0f}"
            for value in (row["median"], row["min"], row["max"])
        )
        lines.append(f"| {row['group']}: {row['name']} | {middle} {unit} ({least} – {most}) |")
    return "\n".join(lines)


def _scale(unit: str, value: float) -> tuple[float, str]:
    if unit == "steps/s":
        return 1e-6, "M steps/s"
    if unit == "bytes/s":
        return 1e-9, "GB/s"
    return (1e6, "µs") if value >= 1e-6 else (1e9, "ns")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer and shorter samples")
    parser.add_argument("--results", type=Path, default=FOLDER / "results", metavar="FOLDER")
    options = parser.parse_args()
    print(machine())
    load = os.getloadavg()[0]
    if overload():
        print(overload())
    with compiled() as program:
        rows = [*loop_rows(), *python_rows(), *process_rows()]
        if program is None:
            print("There is no cc: the rows in C are left out.")
        else:
            rows += program_rows(program)
        measure(rows, *((SHORT_REPEATS, SHORT_SAMPLE_S) if options.short else (REPEATS, SAMPLE_S)))
    print(table(rows))
    facts = {
        "machine": machine(),
        "revision": version(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benchmarks.limits", *sys.argv[1:]]),
        "load": [load, os.getloadavg()[0]],
        "rows": [row.facts() for row in rows],
    }
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "limits.json").write_text(table_text(facts))
    if options.results == FOLDER / "results":
        page = FOLDER / "README.md"
        write_page(page, fill(page.read_text(), {"limits": section(facts)}))


if __name__ == "__main__":
    main()
