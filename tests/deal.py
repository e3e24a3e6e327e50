"""Run tests in the time that two processors need: ``python -m tests.deal [-m MARKS] [--lean FILE…] [-- FILE…]``.

Tests marked beside pass on a busy machine, so four processes, as some wait for Ray, deal their files out among
themselves: each takes the next one that no other has. The rest, and what is marked alone, follows by itself. Lean files
come before the others, both times: they start processes by the hundred, and a process that has imported everything
takes five times as long to fork. The last line counts what ran in all of them, the one before it the CPU minutes that
they took with all that they waited for.

As a plugin (``-p tests.deal --deal FOLDER``) this passes over files that another run with the same folder has taken.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

LANES = 4
TIMEOUT_S = 300  # of a test that may have half a processor
COUNTED = ("failed", "passed", "skipped", "xfailed", "xpassed", "warnings", "error")
NOTHING_RAN = pytest.ExitCode.NO_TESTS_COLLECTED
ENDED = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, NOTHING_RAN}
TAKEN = pytest.StashKey[dict[str, bool]]()
LEFT = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deal", type=Path, metavar="FOLDER", help="what runs that deal files out have in common")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TAKEN] = {}
    config.stash[LEFT] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Pass over a test of a file that another process has taken."""
    file = item.nodeid.partition("::")[0]
    taken = item.config.stash[TAKEN]
    if file not in taken:
        taken[file] = take(token(item.config, file))
    return None if taken[file] else True


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even read what has been taken."""
    root = config.rootpath
    if not collection_path.is_relative_to(root):
        return None
    return token(config, collection_path.relative_to(root).as_posix()).exists() or None


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Note the files with tests that run alone: no others have to be read for those."""
    for item in items:
        if item.get_closest_marker("alone") or not item.get_closest_marker("beside"):
            item.config.stash[LEFT].add(item.nodeid.partition("::")[0])


def token(config: pytest.Config, file: str) -> Path:
    folder: Path = config.getoption("deal")
    return folder / file.replace("/", ".")


def take(path: Path) -> bool:
    """Tell whether this process made the file: only one can."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Leave the counts for the last line of all, and the files that hold what has to run alone."""
    stats = {name: terminalreporter.stats.get(name, []) for name in COUNTED}
    left = config.stash[LEFT]
    report = {
        "counts": {name: len(found) for name, found in stats.items()},
        "broken": [each.nodeid for each in (*stats["failed"], *stats["error"])],
        "left": sorted(left),
    }
    (config.getoption("deal") / f"{os.getpid()}.json").write_text(json.dumps(report))


def run(folder: Path, marks: str, files: list[str], lanes: int = 1) -> int:
    """Run the tests in that many processes at once; what all but the first of them print is shown at the end."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.deal", "--deal", str(folder), "-m", marks, *files]
    env, processes = dict(os.environ), []
    if lanes > 1:
        command += ["-o", f"timeout={TIMEOUT_S}"]
        env["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryFile("w+") as log:
        try:
            for lane in range(lanes):
                cache = ["-o", f"cache_dir=.pytest_cache/lane{lane}"] if lanes > 1 else []
                out: dict[str, Any] = dict(stdout=log, stderr=subprocess.STDOUT) if lane else {}
                processes.append(subprocess.Popen([*command, *cache], env=env, **out))
            codes = {process.pid: process.wait() for process in processes}
            lost = {pid for pid, code in codes.items() if code not in ENDED or not (folder / f"{pid}.json").exists()}
            for pid in lost:
                print(f"FAILED a process ended early, with {codes[pid]}: not all that it ran is counted", file=log)
            return max(bool(lost), *(0 if code == NOTHING_RAN else abs(code) for code in codes.values()))
        finally:
            for process in processes:
                process.terminate()
                process.wait()
            log.seek(0)
            shutil.copyfileobj(log, sys.stdout)
            sys.stdout.flush()


def reports_of(folder: Path) -> list[dict[str, Any]]:
    """Return what all processes that have ended have left."""
    return [json.loads(file.read_text()) for file in folder.glob("*/*.json")]


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
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a hundred processes read what the first has compiled
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        groups = [group for group in (asked.lean, asked.files) if group]
        together = max(run(folder / "beside", f"beside and not alone{wanted}", group, LANES) for group in groups)
        left = {file for report in reports_of(folder) for file in report["left"]}
        lean = [file for file in asked.lean if file in left]
        groups = [group for group in (lean, sorted(left.difference(lean))) if group]
        alone = max((run(folder / "alone", f"(alone or not beside){wanted}", group) for group in groups), default=0)
        reports = reports_of(folder)
    counts: Counter[str] = sum((Counter(report["counts"]) for report in reports), Counter())
    broken = dict.fromkeys(name for report in reports for name in report["broken"])
    for name in broken:
        print("FAILED", name)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{(used.ru_utime + used.ru_stime) / 60:.1f} CPU minutes")
    print(closing_line(counts, time.monotonic() - began_s))
    # A process that a test forked, and that went on with the others, fails with a code that nobody sees.
    return max(together, alone, bool(broken)) or (0 if {*counts} - {"warnings"} else NOTHING_RAN)


if __name__ == "__main__":
    sys.exit(main())
