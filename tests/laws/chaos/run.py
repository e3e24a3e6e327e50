"""Play arrangements of the chaos suite, and write down what has happened.

    python -m tests.laws.chaos.run [--only TEXT] [--path compiled|portable] [--part 0.1] [--seed 1] [--out FILE]

Each path is played in a process of its own, one arrangement after another; any violation, hang or leak ends the run
with an exit code other than 0. ``make chaos`` plays all of them on both paths.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.lines import table_text
from benchmarks.pages import write_page

from .report import machine, page, summary, totals

ROOT = Path(__file__).parents[3]
PATHS = {"compiled": "1", "portable": "0"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="arrangements whose name holds this; several, split by |")
    parser.add_argument("--path", choices=PATHS, action="append", help="by default both")
    parser.add_argument("--part", type=float, default=1.0, help="of each arrangement's transitions, deaths and faults")
    parser.add_argument("--short", action="store_true", help="play the short form: some arrangements, in small parts")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that an arrangement may take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the report goes")
    parser.add_argument("--add", type=Path, action="append", help="an earlier report, to be made one with this; plays "
                        "nothing else without --path")  # fmt: skip
    parser.add_argument("--page", type=Path, help="the document whose table is rewritten")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        play_all(asked)
        return
    results: list[dict[str, Any]] = []
    machines: list[dict[str, Any]] = []
    for earlier in asked.add or []:
        report = json.loads(earlier.read_text())
        results += report["arrangements"]
        machines += report["machines"]
    if paths := asked.path or ([] if asked.add else [*PATHS]):
        played = [result for path in paths for result in in_process(asked, path)]
        results += played
        machines.append({**machine(), "seconds": totals(played)["seconds"]})
    report = {"machines": machines, "totals": totals(results), "arrangements": results}
    if asked.out:
        asked.out.write_text(table_text(report))
    if asked.page:
        write_page(asked.page, page(asked.page.read_text(), report))
    print(json.dumps(report["totals"], indent=1))


def in_process(asked: argparse.Namespace, path: str) -> list[dict[str, Any]]:
    """Play the arrangements on one path, in a process that imports nothing of the other."""
    command = [sys.executable, "-m", "tests.laws.chaos.run", "--inside", "--only", asked.only]
    command += ["--part", str(asked.part), "--seed", str(asked.seed), "--limit", str(asked.limit)]
    command += ["--short"] if asked.short else []
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PUFFERLIB_NATIVE": PATHS[path], "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        results = []
        for line in process.stdout:
            results.append(json.loads(line))
            print(summary(results[-1]), file=sys.stderr, flush=True)
    if process.returncode:
        raise SystemExit(f"the {path} path has failed, as told above")
    return results


def play_all(asked: argparse.Namespace) -> None:
    """Play the arrangements in this process, printing a line of JSON for each."""
    from .arrangements import ARRANGEMENTS
    from .learner import play

    wanted = asked.only.split("|")
    for index, (name, arrangement) in enumerate(ARRANGEMENTS.items()):
        part = asked.part * (arrangement.short if asked.short else 1.0)
        if arrangement.backend == "ray" and find_spec("ray") is None:
            continue
        if part and any(text in name for text in wanted):
            faulthandler.dump_traceback_later(asked.limit, exit=True)
            try:
                result = play(arrangement.part(part), seed=asked.seed + index)
            except BaseException:
                print(f"{name}, seed {asked.seed + index}:", file=sys.stderr)
                raise
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps({"name": name, **arrangement_of(arrangement), **result}), flush=True)


def arrangement_of(arrangement: Any) -> dict[str, Any]:
    fields = arrangement._asdict()
    return {key: fields[key] for key in ("kind", "backend", "num_envs", "num_workers", "batch_size", "mode", "on_error",
                                         "context", "step_timeout")}  # fmt: skip


if __name__ == "__main__":
    main()
