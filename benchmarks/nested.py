"""Measure packing a nested observation and unpacking a nested action, here and in other libraries.

    python -m benchmarks.nested [--pufferlib07 PYTHON]

The observation is the one of ``envs.py`` with 12 leaves. PYTHON is an interpreter with PufferLib 0.7.3. Prints a table,
and writes benchmarks/results/nested.json.

All take turns, in a different order in each repeat, and ratios are taken within a repeat, so other load on the machine
affects both sides of a ratio. PufferLib runs in its own process, the others in this one.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "results"
WINDOW_S = 0.1  # of one turn
CALLS = 200  # between two reads of the clock

Timer = Callable[[], float]  # calls a function for WINDOW_S and returns the seconds per call


def timer_of(call: Callable[..., Any], *arguments: Any) -> Timer:
    """Return a timer of a function."""

    def timer() -> float:
        start, count = perf_counter(), 0
        while perf_counter() - start < WINDOW_S:
            for _ in range(CALLS):
                call(*arguments)
            count += CALLS
        return (perf_counter() - start) / count

    return timer


def packers() -> dict[str, Timer]:
    """Return timers that write one observation into an existing row; Gymnasium's makes a new one."""
    from gymnasium import spaces

    from benchmarks.envs import observation_space
    from pufferlib.layout import observation_layout

    space = observation_space("nested")
    layout, sample = observation_layout(space), space.sample()
    row = np.zeros(layout.shape, layout.dtype)
    timers = {
        "ours": timer_of(layout.pack, sample, row),
        "ours in Python": timer_of(layout.pack_into, sample, layout.views(row)),
        "gymnasium spaces.flatten": timer_of(spaces.flatten, space, sample),
    }
    if layout.packer is None:
        del timers["ours"]
    return timers


def unpackers() -> dict[str, Timer]:
    """Return timers that build the nested action from a flat one."""
    from gymnasium import spaces

    from pufferlib.layout import action_layout

    space = spaces.Dict(
        {
            "aim": spaces.Box(-1, 1, (2,), np.float32),
            "build": spaces.MultiDiscrete([8, 8, 4]),
            "chat": spaces.MultiBinary(4),
            "move": spaces.Tuple((spaces.Discrete(5), spaces.Box(0, 10, (), np.float32))),
        }
    )
    layout, sample = action_layout(space), space.sample()
    row = layout.flatten(sample)
    in_python = copy.copy(layout)
    in_python.unpacker = None
    timers = {
        "ours": timer_of(layout.unpack, row),
        "ours in Python": timer_of(in_python.unpack, row),
        "gymnasium spaces.unflatten": timer_of(spaces.unflatten, space, spaces.flatten(space, sample)),
    }
    if layout.unpacker is None:
        del timers["ours"]
    return timers


@contextlib.contextmanager
def pufferlib07_timer(python: str) -> Iterator[Timer]:
    """Yield a timer of PufferLib 0.7.3, which runs in another interpreter."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # or it would import ours
    with subprocess.Popen([python, __file__, "--as-pufferlib07"], env=environment, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        commands, answers = process.stdin, process.stdout

        def timer() -> float:
            commands.write("\n")
            return float(answers.readline())

        yield timer
        commands.close()


def answer_as_pufferlib07() -> None:
    """Time PufferLib's compiled ``flatten``, stored as by its environments, for each line on standard input."""
    from envs import observation_space

    import pufferlib.emulation

    sample = observation_space("nested").sample()
    flatten, concatenate = pufferlib.emulation.flatten, pufferlib.emulation.concatenate
    row = np.zeros_like(concatenate(flatten(sample)))

    def store() -> None:
        row[:] = concatenate(flatten(sample))

    timer = timer_of(store)
    timer()
    for _ in sys.stdin:
        print(timer(), flush=True)


def measure(timers: dict[str, Timer], repeats: int) -> dict[str, list[float]]:
    """Return the nanoseconds of each participant in each repeat, after a turn that does not count."""
    for timer in timers.values():
        timer()
    measured: dict[str, list[float]] = {name: [] for name in timers}
    names = list(timers)
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            measured[name].append(timers[name]() * 1e9)
    return measured


def table(title: str, measured: dict[str, list[float]]) -> str:
    """Return a Markdown table of the medians and of the ratios to the first participant."""
    best, *_ = measured
    lines = [f"| {title} | ns, median (least – most) | times {best}, median (least – most) |", "| --- | --- | --- |"]
    for name, values in measured.items():
        ratios = [other / base for other, base in zip(values, measured[best], strict=True)]
        lines.append(
            f"| {name} | {median(values):,.0f} ({min(values):,.0f} – {max(values):,.0f}) "
            f"| {median(ratios):.1f} ({min(ratios):.1f} – {max(ratios):.1f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pufferlib07", metavar="PYTHON", help="an interpreter that has PufferLib 0.7.3")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--results", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--as-pufferlib07", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_pufferlib07:
        return answer_as_pufferlib07()

    from benchmarks.lines import table_text
    from benchmarks.revisions import version
    from pufferlib import _native
    from pufferlib.tuning.bench import machine

    packing, unpacking = packers(), unpackers()
    with contextlib.ExitStack() as stack:
        if options.pufferlib07:
            packing["PufferLib 0.7.3 flatten and store"] = stack.enter_context(pufferlib07_timer(options.pufferlib07))
        measured = {
            "pack an observation of 12 leaves": measure(packing, options.repeats),
            "unpack an action of 5 leaves": measure(unpacking, options.repeats),
        }
    path = "compiled" if _native.available else f"portable: {_native.reason}"
    options.results.mkdir(parents=True, exist_ok=True)
    facts = {"machine": machine(), "revision": version(), "path": path, "window_s": WINDOW_S, "nanoseconds": measured}
    (options.results / "nested.json").write_text(table_text(facts))
    print(f"{facts['machine']}\n{path}\n\n" + "\n\n".join(table(title, times) for title, times in measured.items()))


if __name__ == "__main__":
    main()
