"""Compare learners of other libraries over their own vectorizers and over ours: the same code, steps/s of both.

    make test-adapters && python -m benchmarks.adapters              some 15 minutes on a quiet machine
    python -m benchmarks.adapters --only sb3 --python sb3=PYTHON     one library, in a Python that has it
    python -m benchmarks.adapters --repeats 3 --steps 2000           the short form, some 6 minutes

Each run has its own process; runs take turns, repeat by repeat, and ratios are taken within a repeat. Steps per second
include the learner (adapter_learners.py), which takes most of the time. Writes benchmarks/results/adapters.json, in
which libraries that were not run keep their earlier results, and the section of docs/adapters.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lines import table_text
from benchmarks.pages import fill, write_page
from benchmarks.ratios import MedianRange, ratios
from benchmarks.revisions import version
from pufferlib.tuning.bench import machine, overload

__all__ = ["KINDS", "PAGE", "RESULTS", "run", "summary", "text"]

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "adapters.md"
LIBRARIES = {
    "sb3": "Stable-Baselines3",
    "tianshou": "Tianshou",
    "torchrl": "TorchRL",
    "rllib": "RLlib",
    "skrl": "skrl",
}
KINDS = ("ours", "theirs", "ours-processes", "theirs-processes")
PLACES = {"": "in this process", "-processes": "in processes"}  # by the suffix of a kind
TIMEOUT_S = 900


def run(python: Path, library: str, kind: str, num_envs: int, num_workers: int, num_steps: int) -> dict[str, Any]:
    """Return the result of one run. Raises RuntimeError with the end of its standard error."""
    command = [python, "-W", "ignore", "-m", "benchmarks.adapter_learners", library, kind]
    done = subprocess.run(
        [*command, *map(str, (num_envs, num_workers, num_steps))],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{library}, {kind} ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def text(libraries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the section of docs/adapters.md: sentences and a table. libraries: the entries that ``main`` writes."""
    return f"{summary(libraries)}\n\n{table(libraries)}"


def summary(libraries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sentences that say which side is faster and which libraries were not measured."""
    sentences = []
    for suffix, where in PLACES.items():
        sides: dict[str, list[str]] = {
            "in every repeat faster than": [],
            "in every repeat slower than": [],
            "now faster and now slower than": [],
        }
        for library, facts in libraries.items():
            rates = facts["steps_per_s"]
            ratio_range = MedianRange.of(ratios(rates[f"ours{suffix}"], rates[f"theirs{suffix}"]))
            always, never, sometimes = sides.values()
            (always if ratio_range.low > 1 else never if ratio_range.high < 1 else sometimes).append(
                f"{LIBRARIES[library]}'s"
            )
        clauses = [f"{side} {_listed(names)}" for side, names in sides.items() if names]
        sentences.append(f"{where.capitalize()} ours are {'; '.join(clauses)}.")
    if missing := [name for library, name in LIBRARIES.items() if library not in libraries]:
        sentences.append(f"Not measured yet: {_listed(missing)}.")
    return textwrap.fill(" ".join(sentences), 120, break_on_hyphens=False)


def _listed(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def table(libraries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table, and the machine load and versions it was measured with."""
    lines = [
        "| library | environments | ours, steps/s | theirs, steps/s | times as fast | times as fast, by CPU time |",
        "|" + " --- |" * 6,
    ]
    for library, facts in libraries.items():
        rates = facts["steps_per_s"]
        for suffix, where in PLACES.items():
            ours, theirs = rates[f"ours{suffix}"], rates[f"theirs{suffix}"]
            cells = [
                _range_text(ours, ",.0f"),
                _range_text(theirs, ",.0f"),
                _range_text(ratios(ours, theirs), ".2f"),
                "–",
            ]
            if not suffix:  # one process does all the work
                cells[-1] = _range_text(
                    ratios(facts["steps_per_cpu_s"]["ours"], facts["steps_per_cpu_s"]["theirs"]), ".2f"
                )
            lines.append(f"| {library} | {where} | {' | '.join(cells)} |")
    lines.append("")
    for library, facts in libraries.items():
        begun, ended = facts["load"]
        versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        lines.append(
            f"- {library}: `{facts['command']}`, {facts['date'][:10]}, load {begun:.1f} to {ended:.1f}; {versions}"
        )
    return "\n".join(lines)


def _range_text(values: Sequence[float], form: str) -> str:
    median_range = MedianRange.of(values)
    return f"{median_range.median:{form}} ({median_range.low:{form}} – {median_range.high:{form}})"


def without_python(arguments: Sequence[str]) -> str:
    """Return the command with these arguments, without the interpreters' paths, which belong to this machine."""
    command = shlex.join(["python", "-m", "benchmarks.adapters", *arguments])
    return re.sub(r" --python( \w+=\S+)+", "", command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2, help="processes of ours; theirs are one an environment")
    parser.add_argument("--steps", type=int, default=20_000, help="of all environments, in each run")
    parser.add_argument(
        "--python", nargs="+", default=[], metavar="LIBRARY=PYTHON", help="default: those of make test-adapters"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    options = parser.parse_args()
    print(machine())
    if overload():
        print(overload())
    pythons = dict(assignment.split("=", 1) for assignment in options.python)
    path = options.results / "adapters.json"
    libraries: dict[str, Any] = json.loads(path.read_text())["libraries"] if path.exists() else {}
    for library in options.only:
        python = Path(pythons.get(library, ROOT / ".venv-adapters" / library / "bin" / "python"))
        rates = {unit: {kind: [] for kind in KINDS} for unit in ("steps_per_s", "steps_per_cpu_s")}
        load = os.getloadavg()[0]
        result: dict[str, Any] = {}
        for repeat in range(options.repeats):
            for shift in range(len(KINDS)):
                kind = KINDS[(repeat + shift) % len(KINDS)]
                result = run(python, library, kind, options.envs, options.workers, options.steps)
                for unit, values in rates.items():
                    values[kind].append(result[unit])
                print(f"{library}, repeat {repeat}, {kind}: {result['steps_per_s']:,.0f} steps/s", flush=True)
        libraries[library] = {
            "machine": machine(),
            "revision": version(),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": without_python(sys.argv[1:]),
            "env": "CartPole-v1",
            "num_envs": options.envs,
            "load": [load, os.getloadavg()[0]],
            "versions": result["versions"],
            **rates,
        }
        libraries = {name: libraries[name] for name in LIBRARIES if name in libraries}
        options.results.mkdir(parents=True, exist_ok=True)
        path.write_text(table_text({"libraries": libraries}))
    print(f"\n{text(libraries)}")
    if options.results == RESULTS:
        write_page(PAGE, fill(PAGE.read_text(), {"adapters": text(libraries)}))


if __name__ == "__main__":
    main()
