"""Run tests in the time that two processors need: ``python -m tests.deal [-m MARKS] [--lean FILE…] [-- FILE…]``.

Tests marked beside only compute, so two processes deal their files out among themselves: each takes the next one that
the other has not. One of them begins while the tests that watch clocks and processes run in a process of their own, and
gives way to it. Lean files come first: they start processes by the hundred, and a process that has imported everything
takes five times as long to fork. The last line counts what ran in all of them. The line before it gives the CPU minutes
of all processes that were waited for.

As a plugin (``-p tests.deal --deal FOLDER``) this passes over files that another run with the same folder has taken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 300  # of a test that may have half a processor
COUNTED = ("failed", "passed", "skipped", "xfailed", "xpassed", "warnings", "error")
NOTHING_RAN = pytest.ExitCode.NO_TESTS_COLLECTED
ENDED = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, NOTHING_RAN}
TAKEN = pytest.StashKey[dict[str, bool]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deal", type=Path, metavar="FOLDER", help="what runs that deal files out have in common")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TAKEN] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Pass over a test of a file that another process has taken."""
    file = item.nodeid.partition("::")[0]
    taken = item.config.stash[TAKEN]
    if file not in taken:
        taken[file] = take(item.config.getoption("deal") / file.replace("/", "."))
    return None if taken[file] else True


def take(token: Path) -> bool:
    """Tell whether this process made the file: only one can."""
    try:
        token.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Leave the counts for the last line of all."""
    stats = {name: terminalreporter.stats.get(name, []) for name in COUNTED}
    report = {
        "counts": {name: len(found) for name, found in stats.items()},
        "broken": [each.nodeid for each in (*stats["failed"], *stats["error"])],
    }
    (config.getoption("deal") / f"{os.getpid()}.json").write_text(json.dumps(report))


class Lane:
    """One process of pytest. What it prints is shown at once, or when it is closed.

    folder: which it shares with those that run the same tests. aside: it runs while others watch clocks, and gives way.
    """

    def __init__(self, folder: Path, marks: str, files: list[str], *, shares: bool, shown: bool, aside: bool) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._log = None if shown else tempfile.TemporaryFile("w+")
        command = [sys.executable, "-m", "pytest", "-p", "tests.deal", "--deal", str(folder), "-m", marks, *files]
        env = dict(os.environ)
        if shares:
            command += ["-o", f"timeout={TIMEOUT_S}"]
            env["OMP_NUM_THREADS"] = "1"
        if not shown:
            command += ["-o", "cache_dir=.pytest_cache/lane"]
        if aside:
            command = ["nice", "-n", "10", *command]
        self._process = subprocess.Popen(command, env=env, stdout=self._log, stderr=self._log and subprocess.STDOUT)

    def finish(self) -> int:
        """Wait for its end, and return an exit code: 0 if all that it ran has passed and was counted."""
        code, pid = self._process.wait(), self._process.pid
        if code not in ENDED or not (self._folder / f"{pid}.json").exists():
            print(f"FAILED a process ended early, with {code}: not all that it ran is counted", file=self._log)
            return 1
        return 0 if code == NOTHING_RAN else code

    def close(self) -> None:
        """End it if it has not, and show what it has printed."""
        self._process.terminate()
        self._process.wait()
        if self._log is not None:
            with self._log:
                self._log.seek(0)
                shutil.copyfileobj(self._log, sys.stdout)
        sys.stdout.flush()


def run(folder: Path, wanted: str, lean: list[str], files: list[str]) -> int:
    """Run all tests, and return the highest exit code.

    What computes in lean files takes two processors. Then one process begins with all else that computes, and gives way
    to the tests that must be alone; when these are done, a second one helps it.
    """
    beside, alone = (folder / "beside", f"beside{wanted}"), (folder / "alone", f"not beside{wanted}")
    codes = []
    with contextlib.ExitStack() as stack:

        def start(where: tuple[Path, str], group: list[str], *, shown: bool = True, aside: bool = False) -> Lane:
            lane = Lane(*where, group, shares=where is beside, shown=shown, aside=aside)
            return stack.enter_context(contextlib.closing(lane))

        if lean:
            lanes = [start(beside, lean, shown=shown) for shown in (True, False)]
            codes += [lane.finish() for lane in lanes]
        lane = start(beside, files, shown=False, aside=True)
        codes += [start(alone, group).finish() for group in (lean, files) if group]
        codes += [start(beside, files).finish(), lane.finish()]
    return max(codes)


def closing_line(counts: Mapping[str, int], duration_s: float) -> str:
    """Count as pytest does."""
    found = ", ".join(f"{counts[name]} {name}" for name in COUNTED if counts[name])
    return f" {found or 'no tests ran'} in {duration_s:.2f}s ({timedelta(seconds=int(duration_s))}) ".center(80, "=")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", dest="marks", metavar="MARKS", help="which tests, as for pytest")
    parser.add_argument("--lean", nargs="*", default=[], metavar="FILE", help="what imports little and forks much")
    parser.add_argument("files", nargs="*", default=["tests"], metavar="FILE")
    asked = parser.parse_args()
    wanted = f" and ({asked.marks})" if asked.marks else ""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = run(folder, wanted, asked.lean, asked.files)
        reports = [json.loads(file.read_text()) for file in folder.glob("*/*.json")]
    counts: Counter[str] = sum((Counter(report["counts"]) for report in reports), Counter())
    broken = dict.fromkeys(name for report in reports for name in report["broken"])
    for name in broken:
        print("FAILED", name)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{(used.ru_utime + used.ru_stime) / 60:.1f} CPU minutes")
    print(closing_line(counts, time.monotonic() - began_s))
    # A process that a test forked, and that went on with the others, fails with a code that nobody sees.
    return max(code, bool(broken)) or (0 if {*counts} - {"warnings"} else NOTHING_RAN)


if __name__ == "__main__":
    sys.exit(main())
