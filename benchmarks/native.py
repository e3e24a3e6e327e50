"""Compare CartPole with EnvPool's, written in C++: both through ``step``, with NumPy actions in every step.

    python -m benchmarks.native                 2 minutes; --short: half of that, fewer repeats

Our side is ``classic/cartpole`` on ``backend="cuda", device="host"`` with as many threads as CPUs, and with one.
EnvPool's CartPole-v1 runs in its own process and virtual environment, with 1, 2, 4, … threads up to twice the CPUs.
Both observe float32 (4,), get the same int32 actions, reset in the step after an ending, and truncate after 500 steps;
the results record that both did so. Turns of half a second are interleaved. A ratio is taken within a repeat, to the
thread count of EnvPool with the best median. Writes benchmarks/results/native.json and the table in
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from pufferlib.util.annotations import Array

Step = Callable[[Array], Any]  # takes actions, int32 (num_envs,); returns the five values of a Gymnasium VectorEnv

ROOT = Path(__file__).parent.parent
NUM_ENVS = (32, 256, 4096)
TARGET = 50, 4096  # times EnvPool, at so many environments
TURN_S, NUM_REPEATS, NUM_TABLES = 0.5, 7, 64


def actions_of(num_envs: int) -> list[Array]:
    return list(np.random.default_rng(1).integers(0, 2, (NUM_TABLES, num_envs), dtype=np.int32))


def played(step: Step, tables: list[Array], seconds: float) -> float:
    """Return the environment steps per second."""
    calls, start_s = 0, time.perf_counter()
    while (now_s := time.perf_counter()) < start_s + seconds:
        for actions in tables:
            step(actions)
        calls += len(tables)
    return calls * len(tables[0]) / (now_s - start_s)


def described(step: Step, tables: list[Array]) -> dict[str, Any]:
    """Return facts of 1,000 steps: dtypes, shapes, and whether a reset takes a step, with which rewards."""
    lengths, since, before = [], np.zeros(len(tables[0]), int), np.ones(len(tables[0]), bool)
    rewards_of_resets, still = set(), True
    for k in range(1000):
        observations, rewards, terminations, truncations, _ = map(np.asarray, step(tables[k % len(tables)])[:5])
        over = terminations | truncations
        rewards_of_resets |= set(rewards[before].tolist()) if k else set()
        still = still and (k == 0 or bool((np.abs(observations[before]) <= 0.05).all()))
        since = np.where(before, 0, since + 1)
        lengths += since[over & ~before].tolist()
        before = over
    first = len(lengths) // 10  # without episodes that had begun before
    return {
        "observations": f"{observations.dtype} {observations.shape}",
        "rewards": f"{rewards.dtype}, of resets {sorted(rewards_of_resets)}",
        "resets take a step": still,
        "mean length": float(np.mean(lengths[first:])),
    }


# --------------------------------------------------------------------------------------------- the two sides


@contextlib.contextmanager
def ours(num_envs: int, threads: int | None) -> Iterator[Step]:
    import pufferlib

    backend_kwargs = {} if threads is None else {"threads": threads}
    options: dict[str, Any] = dict(
        backend="cuda", device="host", num_envs=num_envs, seed=1, backend_kwargs=backend_kwargs
    )
    with pufferlib.make("classic/cartpole", **options) as vec:
        vec.reset()
        yield vec.step


@contextlib.contextmanager
def envpools(num_envs: int, threads: int) -> Iterator[Step]:
    import envpool

    warnings.simplefilter("ignore")  # about the precision of its spaces
    vec = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs, num_threads=threads, seed=1)
    vec.reset()
    yield vec.step
    vec.close()


class Child:
    """EnvPool in its own process, which plays on command."""

    def __init__(self, python: Path, num_envs: int, threads: int) -> None:
        command = [str(python), "-W", "ignore", __file__, "--child", str(num_envs), str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._answer()

    def play(self, seconds: float) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("EnvPool's process has ended; its output is above")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


def child(num_envs: int, threads: int) -> None:
    """Run EnvPool's process: print its facts, then, for each line of seconds read, the steps per second."""
    import envpool

    tables = actions_of(num_envs)
    with envpools(num_envs, threads) as step:
        print(json.dumps({"version": envpool.__version__, **described(step, tables)}), flush=True)
        for line in sys.stdin:
            print(played(step, tables, float(line)), flush=True)


# ----------------------------------------------------------------------------------------------------- measuring


def measured(python: Path, num_envs: int, cpus: int, turn_s: float, num_repeats: int) -> dict[str, Any]:
    """Return the rates of all sides at one number of environments, a list over repeats each, and their facts."""
    tables, sides = actions_of(num_envs), {}
    with contextlib.ExitStack() as stack:
        for threads in dict.fromkeys((cpus, 1)):
            step = stack.enter_context(ours(num_envs, threads))
            about = described(step, tables)
            sides[f"ours, {threads} thread{'s' * (threads > 1)}"] = _player(step, tables)
        threads, others = 1, []
        while threads <= max(2, 2 * cpus):
            other = Child(python, num_envs, threads)
            stack.callback(other.close)
            others.append(other.about)
            sides[f"EnvPool, {threads} thread{'s' * (threads > 1)}"] = other.play
            threads *= 2
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for repeat in range(num_repeats + 1):
            for name in sorted(sides, reverse=repeat % 2 == 1):
                rate = sides[name](turn_s)
                if repeat:  # the first one warms up
                    rates[name].append(rate)
    return {"num_envs": num_envs, "ours": about, "envpool": others[0], "rates": rates}


def _player(step: Step, tables: list[Array]) -> Callable[[float], float]:
    return lambda seconds: played(step, tables, seconds)


def best(rates: dict[str, list[float]], prefix: str) -> str:
    return max((name for name in rates if name.startswith(prefix)), key=lambda name: median(rates[name]))


def ratios(rates: dict[str, list[float]], first: str) -> list[float]:
    """Return the ratios of a side's rates to those of EnvPool's best thread count, one for each repeat."""
    return [one / other for one, other in zip(rates[first], rates[best(rates, "EnvPool")], strict=True)]


def table(results: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    from benchmarks.ratios import MedianRange  # not above: EnvPool's Python lacks this package

    lines = [
        f"{results['machine']}; EnvPool {results['figures'][0]['envpool']['version']}; {results['day']}.",
        "",
        "| environments | side | million steps a second | times EnvPool at its best |",
        "| ---: | --- | ---: | ---: |",
    ]
    for figure in results["figures"]:
        rates = figure["rates"]
        for name, values in rates.items():
            times = f"{MedianRange.of(ratios(rates, name)):.1f}" if name.startswith("ours") else ""
            if name == best(rates, "EnvPool"):
                times = "its best"
            millions = MedianRange.of([value / 1e6 for value in values])
            lines.append(f"| {figure['num_envs']:,} | {name} | {millions:.2f} | {times} |")
    target, num_envs = TARGET
    rates = next(figure["rates"] for figure in results["figures"] if figure["num_envs"] == num_envs)
    reached = median(ratios(rates, next(iter(rates))))
    lines += ["", f"Wanted: {target}× at {num_envs:,} environments with all CPUs. Found: {reached:.1f}×."]
    return "\n".join(lines)


def write(results: dict[str, Any], folder: Path) -> None:
    from benchmarks.lines import table_text
    from benchmarks.pages import fill, write_page

    (folder / "results" / "native.json").write_text(table_text(results))
    page = folder / "README.md"
    write_page(page, fill(page.read_text(), {"native": table(results)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--child", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    from benchmarks.revisions import version
    from benchmarks.venvs import python_of
    from pufferlib.tuning.bench import machine
    from pufferlib.vectorization.core.plan import available_cpus

    python, num_repeats = python_of("envpool"), 3 if options.short else NUM_REPEATS
    figures = []
    for num_envs in NUM_ENVS:
        figures.append(measured(python, num_envs, available_cpus(), TURN_S, num_repeats))
        print(json.dumps({name: figures[-1][name] for name in ("num_envs", "ours", "envpool")}), flush=True)
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    results = {"machine": machine(), "revision": version(), "day": day, "turn_s": TURN_S, "figures": figures}
    write(results, Path(__file__).parent)
    print(table(results))


if __name__ == "__main__":
    main()
