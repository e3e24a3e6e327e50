"""Record what users see of a fault in this and other libraries, and what is left behind.

    python -m benchmarks.faults                         all participants, in about 20 minutes
    python -m benchmarks.faults --only 'ours *'         some participants

Writes benchmarks/results/faults.json, from which benchmarks/report.py makes docs/faults.md. The output of the programs
goes to benchmarks/.venvs/faults.log.

Each case is a program that plays four environments in its own session (vectorizers/victim.py). One step of one of them
raises an exception, sends SIGKILL to its process, or never returns; or the program itself is killed. An exception that
arrives ends the program, since nothing catches it. A program that reports nothing is interrupted, as by Ctrl-C, and
then killed. Its processes are identified by a variable of their environment, its files in /dev/shm by their mappings.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fnmatch
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, TextIO

from benchmarks.envs import FAULT_MESSAGE, FAULTS, arm
from benchmarks.lines import table_text
from benchmarks.peers import RESULTS, VECTORIZERS, terminable, version
from benchmarks.processes import cpu_s, descendants, marked, shared_files, state
from benchmarks.venvs import NotInstalled, ignored_folder, python_of
from benchmarks.workloads import LIBRARIES, Participant, Workload
from pufferlib.tuning.bench import machine

__all__ = ["CASES", "PARTICIPANTS", "suffer"]

CASES = (*FAULTS, "parent", "parent-hang")  # the last two: the program is killed; while a step does not return
PARTICIPANTS = (
    *("ours processes@w2", "ours processes-timed@w2", "ours processes-restart@w2", "ours processes-restart-timed@w2"),
    *("ours pool@w2b2", "ours pool-restart-timed@w2b2", "ours serial-restart-timed@w1"),
    *("ours-portable processes@w2", "ours-portable processes-restart-timed@w2"),
    *("ours-portable pool-restart-timed@w2b2",),
    *("gymnasium async", "gymnasium async-timed", "sb3 subproc", "sb3 forkserver"),
    *("tianshou subproc", "tianshou subproc-timed", "tianshou shmem", "tianshou shmem@b2"),
    *("torchrl parallel", "torchrl parallel-timed", "torchrl pool"),
    *("pufferlib-0.7 processes@w2", "pufferlib-3.0 processes@w2", "supersuit processes@w2"),
    *("envpool threads@w2", "ale vector@w2"),
)
# The environments of libraries that cannot run any Gymnasium environment; those of the last two are written in C++.
ENVS = {"supersuit": "faulty_agents", "envpool": "cartpole", "ale": "breakout"}
NOT_FAULTY = "its environments are its own, in C++, and run in threads of the program"

CACHES = ("torchinductor_",)  # temporary files that are meant to stay
VARIABLE = "BENCHMARKS_FAULTS_FOLDER"
START_S, LIMIT_S, INTERRUPTED_S = 180.0, 15.0, 10.0
SETTLE_S = 3.0  # between the program's end and the count of leftovers
PATIENCE_S = LIMIT_S - 5.0  # for how long a library that goes on may still report the fault


def suffer(name: str, case: str, log: TextIO) -> dict[str, Any]:
    """Run a case against one participant and return its outcome. Leaves no process and no file."""
    participant = Participant.of(name)
    library, env = LIBRARIES[participant.library], ENVS.get(participant.library, "faulty")
    if case != "parent" and not env.startswith("faulty"):
        return {"what": "not applicable", "text": NOT_FAULTY}
    try:
        python = python_of(library.venv)
    except NotInstalled as error:
        return {"what": "not installed", "text": str(error)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
        folder = Path(path)
        (folder / "tmp").mkdir()
        fault_file = str(folder / "fault")
        workload = Workload("faults", "", (), env=env, num_envs=4)
        task = {**workload.task(name), "env_kwargs": {"fault_file": fault_file} if env.startswith("faulty") else {}}
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        started = time.monotonic()
        with open(folder / "output", "w+") as output:
            process = subprocess.Popen(
                [python, VECTORIZERS / "victim.py", library.file, json.dumps(task), folder, str(PATIENCE_S)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**variables, **library.variables, "TMPDIR": str(folder / "tmp"), VARIABLE: path},
                start_new_session=True,
            )
            files: set[str] = set()
            try:
                if not _wait(lambda: (folder / "ready.json").exists() or process.poll() is not None, START_S):
                    return {"what": "not handled", "text": f"not ready within {START_S:.0f} s"}
                if process.poll() is not None:
                    return {"what": "not handled", "text": _refusal(folder)}
                time.sleep(0.2)
                pids = marked(VARIABLE, path)
                files = shared_files(pids)
                outcome: dict[str, Any] = json.loads((folder / "ready.json").read_text())
                outcome |= {"processes": len(pids), "start_s": round(time.monotonic() - started, 2)}
                outcome |= _break(process, case, folder) if case in FAULTS else _kill(process, case, folder, pids)
                outcome |= _left(path, files)
                printed = outcome.get("text", "") + (folder / "output").read_text(errors="replace")
                outcome["cause_shown"] = FAULT_MESSAGE in printed
                outcome["text"] = outcome.get("text", "").strip().partition("\n")[0]
            finally:
                for pid in (process.pid, *marked(VARIABLE, path)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()
                for file in files:
                    Path(file).unlink(missing_ok=True)
                print(f"==== {name}, {case}", (folder / "output").read_text(errors="replace"), file=log, flush=True)
    return outcome


def _break(process: subprocess.Popen[bytes], fault: str, folder: Path) -> dict[str, Any]:
    """Arm the fault; return what the user sees of it, after how many seconds, and how the program ends."""
    seen_file, begun = folder / "seen.json", _begin(fault, folder)
    _wait(lambda: seen_file.exists() or process.poll() is not None, begun + LIMIT_S - time.monotonic())
    ended_by = "itself"
    if seen_file.exists():
        outcome = json.loads(seen_file.read_text())
        outcome["after_s"] = outcome.pop("at") - begun
    elif process.poll() is not None:
        outcome = {"what": "end", "text": "", "after_s": time.monotonic() - begun}
    else:
        zombies = sum(state(pid) == "Z" for pid in descendants(process.pid))
        outcome = {"what": "hang", "text": "", "after_s": time.monotonic() - begun, "zombies": zombies}
    waited = time.monotonic()
    if outcome["what"] == "hang" or not _wait(lambda: process.poll() is not None, LIMIT_S):
        ended_by, waited = "Ctrl-C", time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        if not _wait(lambda: process.poll() is not None, INTERRUPTED_S):
            ended_by = "SIGKILL"
            process.kill()
            process.wait()
    return {**outcome, "ended_by": ended_by, "exit_code": process.returncode, "end_s": time.monotonic() - waited}


def _begin(fault: str, folder: Path) -> float:
    """Arm a fault, wait until it happens, and return the time (monotonic clock, seconds)."""
    arm(str(folder / "fault"), fault)
    begun = folder / "fault.begun"
    assert _wait(begun.exists, START_S), "no environment was stepped"
    return float(begun.read_text())


def _kill(process: subprocess.Popen[bytes], case: str, folder: Path, pids: list[int]) -> dict[str, Any]:
    """Kill the program; return the seconds until its other processes are gone, None if they stay."""
    if case == "parent-hang":
        _begin("hang", folder)
        time.sleep(0.2)
    others = [pid for pid in pids if pid != process.pid]
    killed = time.monotonic()
    process.kill()
    process.wait()
    gone = _wait(lambda: all(state(pid) in ("Z", "") for pid in others), LIMIT_S)
    return {"what": "killed", "after_s": time.monotonic() - killed if gone else None}


def _left(mark: str, files: set[str]) -> dict[str, Any]:
    """Return the processes and files that are left some seconds later, and the CPU time the processes use."""
    _wait(lambda: not marked(VARIABLE, mark), SETTLE_S)
    pids = marked(VARIABLE, mark)
    before = sum(map(cpu_s, pids))
    if pids:
        time.sleep(1)
    used = sum(map(cpu_s, pids)) - before
    shared = sorted(os.path.basename(file) for file in files if os.path.exists(file))
    temporary = sorted(name for name in os.listdir(os.path.join(mark, "tmp")) if not name.startswith(CACHES))
    return {"left": len(pids), "left_cpus": round(used, 2), "left_shm": shared, "left_tmp": temporary}


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition is true; return False if it is not within some seconds."""
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(2e-3)
    return met


def _refusal(folder: Path) -> str:
    """Return the reason why a program ended before it played."""
    seen_file = folder / "seen.json"
    if seen_file.exists():
        return str(json.loads(seen_file.read_text())["not_handled"])
    lines = (folder / "output").read_text(errors="replace").strip().splitlines()
    return lines[-1][:400] if lines else "it ended without a word"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=["*"], help="participants, or patterns")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="what goes wrong")
    parser.add_argument("--repeats", type=int, default=3, help="how often each case is tried (3)")
    parser.add_argument("--jobs", type=int, default=4, help="how many programs play at a time (4)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where the result goes")
    options = parser.parse_args()
    chosen = [name for name in PARTICIPANTS if any(fnmatch.fnmatch(name, pattern) for pattern in options.only)]
    entries: list[dict[str, Any]] = [{"name": name, **{case: [] for case in options.cases}} for name in chosen]
    load, began = os.getloadavg()[0], datetime.datetime.now(datetime.timezone.utc)
    for venv in {LIBRARIES[Participant.of(name).library].venv for name in chosen}:  # before any run waits for one
        with contextlib.suppress(NotInstalled):
            python_of(venv)
    with terminable(), open(ignored_folder() / "faults.log", "w") as log, ThreadPoolExecutor(options.jobs) as pool:

        def run(case: str, entry: dict[str, Any]) -> None:
            outcome = suffer(entry["name"], case, log)
            entry[case].append(outcome)
            print(f"{entry['name']}, {case}: {outcome['what']}", flush=True)

        try:
            tasks = product(range(options.repeats), options.cases, entries)
            for future in [pool.submit(run, case, entry) for _, case, entry in tasks]:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    result = {
        "machine": machine(),
        "version": version(),
        "command": shlex.join(["python", "-m", "benchmarks.faults", *sys.argv[1:]]),
        "date": began.isoformat(timespec="seconds"),
        "load": [load, os.getloadavg()[0]],
        "jobs": options.jobs,
        "limit_s": LIMIT_S,
        "settle_s": SETTLE_S,
        "participants": entries,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "faults.json").write_text(table_text(result))


if __name__ == "__main__":
    main()
