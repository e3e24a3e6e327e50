"""Run each check, also after one has failed, and print what each took: `.ci/run` calls this once all is installed."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter

CHECKS = ("test", "test-long", "versions", "portable", "test-adapters", "docs")
ADAPTERS = "ADAPTERS=$(OTHER_ADAPTERS)"  # a variable of the Makefile: `make test` has the others
COUNTED = ("failed", "error", "errors", "passed", "skipped", "xfailed", "xpassed", "rerun")
CLOSING_LINE = re.compile(r"^=+ (.*) in [\d.]+s ")


def cpu_s() -> float:
    """Return the CPU seconds of all child processes that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check(target: str, counts: Counter[str]) -> int:
    """Make a target, show its output, add what pytest counted to counts, and return the exit code."""
    command = ["make", target, *([ADAPTERS] if target == "test-adapters" else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        before = ""
        for line in process.stdout:
            print(line, end="", flush=True)
            # After its CPU minutes tests/deal.py prints the sum of lines that are counted here already.
            if (found := CLOSING_LINE.match(line)) and not before.endswith("CPU minutes\n"):
                counts.update({name: int(number) for number, name in re.findall(r"(\d+) ([a-z]+)", found[1])})
            before = line
    return process.returncode


def main() -> int:
    counts = Counter[str]()
    lines, failed, begun_s, begun_cpu_s = [], 0, time.monotonic(), cpu_s()
    for target in CHECKS:
        start_s, start_cpu_s, load = time.monotonic(), cpu_s(), os.getloadavg()[0]
        code = check(target, counts)
        failed += bool(code)
        lines.append(
            f"make {target:14} {'FAILED' if code else 'passed'}  {(cpu_s() - start_cpu_s) / 60:5.1f} CPU minutes  "
            f"{(time.monotonic() - start_s) / 60:5.1f} minutes  load before {load:.1f}"
        )
    print("", *lines, f"All: {(cpu_s() - begun_cpu_s) / 60:.1f} CPU minutes, installing not counted", sep="\n")
    found = ", ".join(f"{counts[name]} {name}" for name in COUNTED if counts[name])
    print(f" {found} in {time.monotonic() - begun_s:.2f}s ".center(80, "="))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
