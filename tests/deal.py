"""Run tests in the time that two processors need.

    python -m tests.deal [-m MARKS] [--lanes NUMBER] [--limit SECONDS] [--check COMMAND] [--costs FILE] [FILE…]

Tests marked beside pass on a busy machine, so four processes, as some wait for Ray, deal their files out among
themselves: each takes the next one that no other has, and reads that alone. The check runs beside them. What else there
is, marked alone or not beside, follows by itself. Files come in the order in which they are given, both times: first
those that import little and start processes by the hundred, as a process that has imported everything takes five times
as long to fork. With a limit, nothing is begun once so many seconds have passed, and a line names the files and tests
that were not tried. The last line counts what ran in all of them, the one before it the CPU minutes that they took with
all that they waited for. The lines before those name the dearest tests, with the CPU seconds of each.

pytest-xdist does less: with ``-n 4 --dist loadfile`` every process reads all files before its first test, and the tests
of layout, emulation, native and util took 54 s instead of 44 on two idle cores, and 70 CPU seconds instead of 62. A run
in which a test forked a process that went on did not end. It has no second part for what runs alone.

As a plugin (``-p tests.deal --deal FOLDER``) this passes over files that another run with the same folder has taken.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

LANES = 4
DEAREST = 20  # tests, named at the end
DEAR_S = 1.0  # no other test is named
TIMEOUT_S = 300  # of a test that may have half a processor
COUNTED = ("failed", "passed", "skipped", "xfailed", "xpassed", "warnings", "error", "rerun")
NOTHING_RAN = pytest.ExitCode.NO_TESTS_COLLECTED
ENDED = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, NOTHING_RAN}
LEFT = pytest.StashKey[set[str]]()
LATE = pytest.StashKey[list[str]]()
COSTS = pytest.StashKey[dict[str, float]]()
FILES = pytest.StashKey[Iterator[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deal", type=Path, metavar="FOLDER", help="what runs that deal files out have in common")
    parser.addoption("--deal-until", type=float, default=math.inf, metavar="SECONDS", help="of the monotonic clock")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT], config.stash[LATE], config.stash[COSTS] = set(), [], {}


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Read one file, before any other is known to be left."""
    # A conftest's fixtures are those of its folder, and from pytest 9.1 on those of the folder as it is read first.
    fixtures: Any = session._fixturemanager
    pending: dict[Any, Any] = getattr(fixtures, "_pending_conftests", {})
    while pending:
        fixtures.parsefactories(holder=pending.popitem()[1], node=session)
    session.config.stash[FILES] = untaken(session.config)
    give_next(session.config)
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    reporter.report_collect = lambda final=False: None  # a line for each file


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run what has been read, then read the next file."""
    ran: list[pytest.Item] = []
    while session.config.args:
        items = session.items
        for item, next_item in itertools.zip_longest(items, items[1:]):
            if is_late(session.config):
                session.config.stash[LATE].append(item.nodeid)
            else:
                item.ihook.pytest_runtest_protocol(item=item, nextitem=next_item)
        ran += items
        give_next(session.config)
        session.config.hook.pytest_collection(session=session)
    session.items, session.testscollected = ran, len(ran)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note the CPU seconds of a test, its fixtures and the processes that it waited for."""
    before_s = used_s(resource.RUSAGE_SELF) + used_s(resource.RUSAGE_CHILDREN)
    try:
        return (yield)
    finally:
        costs, name = item.config.stash[COSTS], item.nodeid
        costs[name] = used_s(resource.RUSAGE_SELF) + used_s(resource.RUSAGE_CHILDREN) - before_s


def used_s(who: int) -> float:
    """Return the CPU seconds that this process, or its children that have ended, took."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def give_next(config: pytest.Config) -> None:
    """Make pytest read the next file, or none."""
    files: Iterator[str] = config.stash[FILES]
    file = next(files, None)
    config.args = [] if file is None else [file]


def untaken(config: pytest.Config) -> Iterator[str]:
    """Yield the files that were given, or lie in what was given, and that no other process has taken."""
    for argument in config.args:
        for path in sorted(Path(argument).rglob("test_*.py")) if Path(argument).is_dir() else [Path(argument)]:
            # pytest asks this of what lies in a folder, not of what it is given.
            ignored = config.hook.pytest_ignore_collect(collection_path=path.absolute(), config=config)
            if not ignored and take(config.getoption("deal") / path.as_posix().replace("/", ".")):
                if is_late(config):
                    config.stash[LATE].append(str(path))
                else:
                    yield str(path)


def is_late(config: pytest.Config) -> bool:
    """Return whether no other file or test is begun."""
    until_s: float = config.getoption("deal_until")
    return time.monotonic() >= until_s


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Note the files with tests that run alone: no others have to be read for those."""
    for item in items:
        if item.get_closest_marker("alone") or not item.get_closest_marker("beside"):
            item.config.stash[LEFT].add(item.nodeid.partition("::")[0])


def take(path: Path) -> bool:
    """Return whether this process created the file: only one can."""
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
        "counts": {name: len(reports) for name, reports in stats.items()},
        "broken": [outcome.nodeid for outcome in (*stats["failed"], *stats["error"])],
        "rerun": [outcome.nodeid for outcome in stats["rerun"]],
        "left": sorted(left),
        "late": config.stash[LATE],
        "costs": config.stash[COSTS],
    }
    (config.getoption("deal") / f"{os.getpid()}.json").write_text(json.dumps(report))


def run(folder: Path, marks: str, files: list[str], lanes: int = 1, check: str = "", until_s: float = math.inf) -> int:
    """Run the tests in that many processes at once; what all but the first of them print is shown at the end.

    check: a command that runs beside them and is to succeed. until_s: when nothing more is begun, by the monotonic
    clock.
    """
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.deal", "--deal", str(folder), "--deal-until", str(until_s)]
    command += ["-m", marks, *files]
    command += ["-o", "console_output_style=classic"]  # nobody knows the share of tests that have run
    env, processes = dict(os.environ), []
    if lanes > 1:
        command += ["-o", f"timeout={TIMEOUT_S}"]
        env["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryFile("w+") as log:
        try:
            for process_index in range(lanes):
                cache = ["-o", f"cache_dir=.pytest_cache/lane{process_index}"] if lanes > 1 else []
                out: dict[str, Any] = dict(stdout=log, stderr=subprocess.STDOUT) if process_index else {}
                processes.append(subprocess.Popen([*command, *cache], env=env, **out))
            if check:
                processes.append(subprocess.Popen(shlex.split(check), stdout=log, stderr=subprocess.STDOUT))
            codes = {process.pid: process.wait() for process in processes}
            if check and codes.popitem()[1]:
                report = {"counts": {}, "broken": [check], "rerun": [], "left": [], "late": [], "costs": {}}
                (folder / "check.json").write_text(json.dumps(report))
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
    summary = ", ".join(f"{counts[name]} {name}" for name in COUNTED if counts[name])
    return f" {summary or 'no tests ran'} in {duration_s:.2f}s ({timedelta(seconds=int(duration_s))}) ".center(80, "=")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", dest="marks", metavar="MARKS", help="which tests, as for pytest")
    parser.add_argument("--lanes", type=int, default=LANES, metavar="NUMBER", help="processes for what is beside")
    parser.add_argument("--limit", type=float, default=math.inf, metavar="SECONDS", help="after which no test is begun")
    parser.add_argument("--check", default="", metavar="COMMAND", help="what is to succeed as well, beside the tests")
    parser.add_argument("--costs", type=Path, metavar="FILE", help="gets the CPU seconds of every test, as JSON")
    parser.add_argument("files", nargs="*", default=["tests"], metavar="FILE", help="files, or folders of such")
    asked = parser.parse_args()
    wanted = f" and ({asked.marks})" if asked.marks else ""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a hundred processes read what the first has compiled
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        marks, until_s = f"beside and not alone{wanted}", began_s + asked.limit
        together = run(folder / "beside", marks, asked.files, asked.lanes, asked.check, until_s)
        left = {file for report in reports_of(folder) for file in report["left"]}
        files = [*(file for file in asked.files if file in left), *sorted(left.difference(asked.files))]
        alone = run(folder / "alone", f"(alone or not beside){wanted}", files) if files else 0
        reports = reports_of(folder)
    counts: Counter[str] = sum((Counter(report["counts"]) for report in reports), Counter())
    costs = dict(item for report in reports for item in report["costs"].items())
    dearest = sorted(costs, key=costs.__getitem__, reverse=True)
    for name in dearest[:DEAREST]:
        if costs[name] >= DEAR_S:
            print(f"{costs[name]:7.1f} CPU s  {name}")
    if asked.costs:
        asked.costs.write_text(json.dumps({name: round(costs[name], 3) for name in dearest}, indent=1))
    broken = dict.fromkeys(name for report in reports for name in report["broken"])
    for name in broken:
        print("FAILED", name)
    for name in dict.fromkeys(name for report in reports for name in report["rerun"]):
        print("RERUN", name)
    if late := sorted({file for report in reports for file in report["late"]}):
        print(f"Not tried, for want of time: {', '.join(late)}")
    print(f"{used_s(resource.RUSAGE_CHILDREN) / 60:.1f} CPU minutes")
    print(closing_line(counts, time.monotonic() - began_s))
    # A process that a test forked, and that went on with the others, fails with a code that nobody sees.
    return max(together, alone, bool(broken)) or (0 if late or {*counts} - {"warnings"} else NOTHING_RAN)


if __name__ == "__main__":
    sys.exit(main())
