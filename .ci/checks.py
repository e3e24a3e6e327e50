"""Run each check, also after one has failed, and print what each took: `.ci/run` calls this once all is installed.

The long tests come last, and none begins later than TIME_S after `.ci/run`. What a slow machine did not try is named at
the end.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter

CHECKS = ("test", "versions", "portable", "test-adapters", "docs", "test-long")
TIME_S = 70 * 60
ADAPTERS = "ADAPTERS=$(OTHER_ADAPTERS)"  # a variable of the Makefile: `make test` has the others
COUNTED = ("failed", "error", "errors", "passed", "skipped", "xfailed", "xpassed", "rerun")
CLOSING_LINE = re.compile(r"^=+ (.*) in [\d.]+s ")


def cpu_s() -> float:
    """Return the CPU seconds of all child processes that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check(target: str, variables: list[str], counts: Counter[str], untried: list[str]) -> int:
    """Make a target, show its output, and return the exit code.

    counts: gets what pytest counted. untried: gets the lines that say what was not tried.
    """
    command = ["make", target, *variables]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        before = ""
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("Not tried"):
                untried.append(line.rstrip())
            # After its CPU minutes tests/deal.py prints the sum of lines that are counted here already.
            if (found := CLOSING_LINE.match(line)) and not before.endswith("CPU minutes\n"):
                counts.update({name: int(number) for number, name in re.findall(r"(\d+) ([a-z]+)", found[1])})
            before = line
    return process.returncode


def main() -> int:
    counts = Counter[str]()
    untried: list[str] = []
    lines, failed, begun_s, begun_cpu_s = [], 0, time.monotonic(), cpu_s()
    until_s = float(os.environ.get("CI_BEGAN", time.time())) + TIME_S
    for target in CHECKS:
        start_s, start_cpu_s, load = time.monotonic(), cpu_s(), os.getloadavg()[0]
        variables = {"test-adapters": [ADAPTERS], "test-long": [f"LIMIT={max(0, until_s - time.time()):.0f}"]}
        code = check(target, variables.get(target, []), counts, untried)
        failed += bool(code)
        lines.append(
            f"make {target:14} {'FAILED' if code else 'passed'}  {(cpu_s() - start_cpu_s) / 60:5.1f} CPU minutes  "
            f"{(time.monotonic() - start_s) / 60:5.1f} minutes  load before {load:.1f}"
        )
    lines.append(f"All: {(cpu_s() - begun_cpu_s) / 60:.1f} CPU minutes, installing not counted")
    print("", *untried, *lines, sep="\n")
    found = ", ".join(f"{counts[name]} {name}" for name in COUNTED if counts[name])
    print(f" {found} in {time.monotonic() - begun_s:.2f}s ".center(80, "="))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
