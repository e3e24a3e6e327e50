"""Compare this project with other libraries, which take turns, each in its own virtual environment.

    python -m benchmarks.peers --short            the workloads with targets, within 15 minutes
    python -m benchmarks.peers                    all, with the grid of delays, 2 hours 45 minutes
    python -m benchmarks.peers --only 'trivial-*' --list
    python -m benchmarks.peers --against REVISION       this tree and another commit of it, 61 pairs of turns a cell

Writes benchmarks/results/NAME.json after each workload, and against-COMMIT.json; benchmarks/report.py makes tables and
plots of them. The output of libraries goes to benchmarks/.venvs/peers.log.

Each participant is a process that makes its vectorizer and waits. In each repeat each participant has one turn, in a
different order every time: it warms up and plays for a window, while all others are stopped with all their processes,
since some spin. The first warm-up lasts a window, and until each environment has had three steps. With --against, new
processes play each pair of turns, since the addresses of a process's memory change its speed by some percent. Other
load on the machine thus affects all participants, and ratios are taken within a repeat.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import fnmatch
import functools
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

from benchmarks import against
from benchmarks.lines import table_text
from benchmarks.processes import descendants, send_signal
from benchmarks.record import ensure, is_there
from benchmarks.revisions import resolved, version
from benchmarks.venvs import NotInstalled, ignored_folder, python_of
from benchmarks.workloads import WORKLOADS, Workload, library_of
from pufferlib.tuning.bench import machine, overload

__all__ = ["RESULTS", "VECTORIZERS", "measure", "result_of", "takes_s", "terminable"]

RESULTS = Path(__file__).parent / "results"
VECTORIZERS = Path(__file__).parent / "vectorizers"

START_S, GRACE_S = 180.0, 5.0  # limits for making a vectorizer, and for its end
OUR_START_AND_END_S = 0.2  # what ours take with two at once
START_AND_END_S = 1.5  # their average duration, two at once
LATE_S = 60.0  # limit for a turn beyond its window
STARTS_AT_ONCE = 2
FIRST_STEPS = 3  # of each environment, before the first turn


class Failed(Exception):
    """Raised when a participant fails. Its arguments are the result's status and the reason."""


class Child:
    """One participant's process, stopped except for its turns."""

    def __init__(self, workload: Workload, name: str, log: TextIO) -> None:
        library = library_of(name)
        python = _python(library.venv)
        self._folder = tempfile.TemporaryDirectory()  # PufferLib 3.0 leaves a link where it is imported
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [python, VECTORIZERS / "child.py", library.file, json.dumps(workload.task(name))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=self._folder.name,
            env={**variables, **library.variables},
            preexec_fn=_in_a_group_that_ends_with_us,
        )
        self._buffer = b""
        self._begun = monotonic()

    def fileno(self) -> int:
        """Return the descriptor to read its answers from."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def wait_until_ready(self) -> dict[str, Any]:
        """Wait for the process to start and stop it; return its facts and the seconds it took to start."""
        about = self._answer(self._begun + START_S - monotonic())["ready"]
        self._signal(signal.SIGSTOP)
        return {**about, "start_s": round(monotonic() - self._begun, 2)}

    def take_turn(self, command: dict[str, Any]) -> dict[str, Any]:
        """Continue the process, send it a command, stop it again, and return the answer."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed("failed", "its process ended between two turns") from None
        answer = self._answer(command["seconds"] + LATE_S)
        self._signal(signal.SIGSTOP)
        return answer

    def ask_to_end(self) -> None:
        """Ask the process to close its vectorizer and end."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        """End the process: ask it to end, then kill it with all its descendants."""
        assert self._process.stdout is not None
        self.ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        for process in descendants(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        send_signal(self._process.pid, number)

    def _answer(self, timeout: float) -> dict[str, Any]:
        deadline = monotonic() + timeout
        while b"\n" not in self._buffer:
            if not select.select([self], [], [], max(0.0, deadline - monotonic()))[0]:
                raise Failed("failed", f"no answer within {max(0, timeout):.0f} s")
            got = os.read(self.fileno(), 1 << 16)
            if not got:
                raise Failed("failed", f"its process ended, with code {self._process.wait()}")
            self._buffer += got
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise Failed("failed", answer["failed"])
        if "not_handled" in answer:
            raise Failed("not handled", answer["not_handled"])
        return answer


@functools.cache  # one lookup per run, even if the working tree changes
def _interpreter(venv: str) -> tuple[Path | None, str]:
    try:
        return python_of(venv), ""
    except NotInstalled as error:
        return None, str(error)


def _python(venv: str) -> Path:
    python, reason = _interpreter(venv)
    if python is None:
        raise Failed("not installed", reason)
    return python


def _in_a_group_that_ends_with_us() -> None:
    """Start a process group in the child, to which the kernel sends SIGHUP and SIGCONT when we end in any way.

    The kernel does so for groups with stopped processes in our session; in a session of its own they would stay
    stopped.
    """
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, for a child that is not stopped


def measure(
    workload: Workload,
    participants: Sequence[str],
    *,
    repeats: int,
    window_s: float,
    warm_up_s: float,
    log: TextIO,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Return the entry of each participant: status, versions, and one dict per turn. A failure ends only its entry."""
    entries: list[dict[str, Any]] = [{"name": name, "status": "ran", "turns": []} for name in participants]
    command = {"kind": workload.kind, "seconds": window_s, "warm_up_s": warm_up_s}
    if workload.kind == "wait":
        command["think_s"] = workload.think_s
    together = 1 if workload.new_processes else repeats
    for first in range(0, repeats, together):
        _take_turns(workload, entries, range(first, first + together), command, log, say)
    return entries


def _take_turns(
    workload: Workload,
    entries: Sequence[dict[str, Any]],
    repeats: range,
    command: Mapping[str, Any],
    log: TextIO,
    say: Callable[[str], None],
) -> None:
    """Start a process for each participant that has not failed, play these repeats, and end the processes."""
    children: dict[str, Child] = {}
    first_turn = dict(command)  # its warm-up resets the environments and loads everything
    first_turn["warm_up_s"] = max(command["warm_up_s"], command["seconds"])
    first_turn["warm_up_steps"] = FIRST_STEPS * workload.num_envs

    def attempt(act: Callable[[dict[str, Any]], None], entry: dict[str, Any]) -> None:
        try:
            act(entry)
        except Failed as error:
            entry["status"], entry["reason"] = error.args
            say(f"    {entry['name']}: {entry['status']}: {entry['reason'][:160]}")
            child = children.pop(entry["name"], None)
            if child is not None:
                child.close()

    def launch(entry: dict[str, Any]) -> None:
        children[entry["name"]] = Child(workload, entry["name"], log)

    def get_ready(entry: dict[str, Any]) -> None:
        entry.update(children[entry["name"]].wait_until_ready())

    def play(entry: dict[str, Any]) -> None:
        entry["turns"].append(
            children[entry["name"]].take_turn(first_turn if repeat == repeats.start else dict(command))
        )

    try:
        waiting: list[dict[str, Any]] = [entry for entry in entries if entry["status"] == "ran"]
        starting: list[dict[str, Any]] = []
        while waiting or starting:
            while waiting and len(starting) < STARTS_AT_ONCE:
                attempt(launch, waiting[0])
                starting += [entry for entry in waiting[:1] if entry["name"] in children]
                del waiting[0]
            if not starting:
                break
            # Stop the process that is ready first: some spin, and would slow down those that still start.
            ready = select.select([children[entry["name"]] for entry in starting], [], [], START_S)[0]
            for entry in [entry for entry in starting if children[entry["name"]] in ready] or starting[:1]:
                attempt(get_ready, entry)
                starting.remove(entry)
        for repeat in repeats:
            for shift in range(len(entries)):
                entry = entries[(repeat + shift) % len(entries)]
                if entry["name"] in children:
                    attempt(play, entry)
    finally:
        for child in children.values():
            child.ask_to_end()  # all at once, since some take seconds
        for child in children.values():
            child.close()


def form_of(workload: Workload, short: bool) -> tuple[list[str], float, float]:
    """Return the participants, and the seconds of a turn and of a warm-up."""
    names = [name for name in workload.participants if not short or workload.needed(name)]
    window_s = workload.window_s / 2 if short and workload.kind != "idle" else workload.window_s
    return names, window_s, 0.05 if short else 0.1


def takes_s(workload: Workload, short: bool, repeats: int | None = None) -> float:
    """Return the approximate seconds of a workload."""
    names, window_s, warm_up_s = form_of(workload, short)
    repeats = repeats or workload.repeats
    starts_s = repeats * OUR_START_AND_END_S if workload.new_processes else START_AND_END_S
    first_warm_ups_s = window_s * (repeats if workload.new_processes else 1)
    turns_s = repeats * (window_s + warm_up_s + 0.2 * (workload.kind == "idle"))
    return len(names) * (starts_s + first_warm_ups_s + turns_s)


def result_of(workload: Workload, short: bool, repeats: int, log: TextIO) -> dict[str, Any]:
    """Run a workload; return the content of its file of results."""
    load, begun = os.getloadavg()[0], monotonic()
    names, window_s, warm_up_s = form_of(workload, short)
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    entries = measure(workload, names, repeats=repeats, window_s=window_s, warm_up_s=warm_up_s, log=log)
    return {
        "workload": {key: value for key, value in asdict(workload).items() if key not in ("targets", "short")},
        "form": "short" if short else "full",
        "repeats": repeats,
        "window_s": window_s,
        "machine": machine(),
        "version": version(),
        "command": shlex.join(["python", "-m", "benchmarks.peers", *sys.argv[1:]]),
        "date": started,
        "load": [load, os.getloadavg()[0]],
        "took_s": round(monotonic() - begun, 1),
        "participants": entries,
    }


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """End this process on SIGTERM as on Ctrl-C, and ignore a second signal, so that no process is left behind."""

    def end(*_: object) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # a second one would interrupt the cleanup
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="workloads, or patterns such as 'grid-sleep-*'")
    parser.add_argument("--short", action="store_true", help="only workloads with targets, with shorter turns")
    parser.add_argument("--resume", action="store_true", help="skip workloads that have a result of this version")
    parser.add_argument("--list", action="store_true", help="list the workloads, and run none")
    parser.add_argument("--repeats", type=int, help=f"turns of each participant ({Workload.repeats}, of some more)")
    parser.add_argument(
        "--against",
        metavar="REVISION",
        help="compare only this tree with another revision of it, by default in the published cells",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where results go")
    options = parser.parse_args()
    patterns = options.only or (against.CELLS if options.against else ["*"])
    chosen = [
        workload
        for workload in WORKLOADS.values()
        if (workload.short or not options.short)
        and any(fnmatch.fnmatch(workload.name, pattern) for pattern in patterns)
    ]
    commit = ""
    if options.against:
        if options.resume or (options.repeats or against.PAIRS) < against.LEAST_PAIRS:
            parser.error(f"--against takes no --resume, and {against.LEAST_PAIRS} --repeats at least")
        try:
            commit = resolved(options.against)
        except ValueError as error:
            parser.error(f"--against: {error}")
        repeats = options.repeats or against.PAIRS
        chosen = [pair for workload in chosen for pair in against.pairs_of(workload, commit, repeats)]
    if not chosen:
        parser.error(f"no workload is called {' or '.join(options.only)}; --list names all")
    if options.list:
        for workload in chosen:
            names, *_ = form_of(workload, options.short)
            seconds = takes_s(workload, options.short, options.repeats)
            print(f"{workload.name:28} {workload.title}; {len(names)} participants, {seconds:.0f} s")
        total = sum(takes_s(workload, options.short, options.repeats) for workload in chosen)
        print(f"about {total / 60:.0f} minutes")
        return
    print(machine())
    if overload():
        print(overload())
    options.results.mkdir(parents=True, exist_ok=True)
    ensure(workload.env_kwargs["recording"] for workload in chosen if "recording" in workload.env_kwargs)
    chosen = [
        workload
        for workload in chosen
        if "recording" not in workload.env_kwargs or is_there(workload.env_kwargs["recording"])
    ]
    for workload in chosen:  # first, so that no measurement waits for an installation
        for name in workload.participants:
            python, reason = _interpreter(library_of(name).venv)
            if commit and python is None:
                parser.error(f"{name} could not be built: {reason}")
    with terminable(), open(ignored_folder() / "peers.log", "w") as log:
        for number, workload in enumerate(chosen, 1):
            path = options.results / f"{workload.name}.json"
            if options.resume and _is_done(path, options.short):
                continue
            print(f"{number}/{len(chosen)} {workload.name}: {workload.title}", flush=True)
            print(f"==== {workload.name}", file=log, flush=True)
            result = result_of(workload, options.short, options.repeats or workload.repeats, log)
            if commit:
                facts = {"machine": result["machine"], "version": result["version"], "commit": commit}
                cell = against.cell_of(result)
                against.add(options.results / f"against-{commit}.json", facts, cell)
                print(f"    {against.verdict_text(cell)}")
            else:
                path.write_text(table_text(result))
            print(f"    {result['took_s']:.0f} s", flush=True)


def _is_done(path: Path, short: bool) -> bool:
    if not path.exists():
        return False
    result = json.loads(path.read_text())
    return bool(result["version"] == version() and (result["form"] == "full" or short))


if __name__ == "__main__":
    main()
