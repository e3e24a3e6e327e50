"""Run `make gpu` on a machine with a GPU and no network: test the kernels, then measure them, in ten minutes.

    make gpu                                 all stages into gpu-results/, within 540 s
    make gpu LIMIT=60 OUT=folder             less time: every stage gets its share
    make gpu STAGES="check speed"            some stages
    make gpu DEVICE=host                     all that runs without a GPU

Nothing is installed: if the machine lacks gymnasium, farama-notifications and pettingzoo, they are imported from a
folder of wheels (WHEELS=wheels). The most useful stages come first, and each gets a share of the time that is left. A
stage appends each finding to ``lines.jsonl`` at once as a line of JSON, so none is lost if the program is killed. The
folder gets at most 8 files: lines.jsonl, summary.md, log.txt, gpu.json, gpu_train.json, sanitizers.txt and profile.txt.

A stage ends as done, failed, cut short (its time was up; its findings stay), or not available (the machine refuses its
tool; the tool's message is quoted). The exit status is 1 if a stage has failed.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.lines import append, lines_of

__all__ = ["STAGES", "Run", "find_own_tests", "main", "summary"]

ROOT = Path(__file__).parent.parent
NEEDED = ("gymnasium", "farama_notifications")  # modules that may come as wheels
PACKAGES = ("torch", "cupy-cuda13x", "cupy-cuda12x", "numpy", "gymnasium", "pettingzoo", "rl-warp-drive", "hypothesis")
# Files with tests marked gpu that import only what a GPU machine has, the most useful first.
TESTS = tuple(
    str(next(ROOT.glob(f"tests/*/test_{name}.py")).relative_to(ROOT))
    for name in (
        *("gpu", "every_kernel", "ppo_cuda", "cuda_graphs", "ppo_fused", "learner_device", "device_policies"),
        *("bfloat16_policies", "planner", "kernels", "cells", "device_kernel", "device_streams", "device_episodes"),
        *("device_actions", "tag_continuous", "kernel_example", "crowds", "cartpole", "cuda_calls", "tensors"),
        *("same_program", "device_out", "economy_kernel", "mountain_car", "division", "gpu_speed"),
    )
)
ON_HOST = ("tag/grid:10x5", "tag/continuous:10x20")  # cases that speed and train play there, to see that they run
TOOLS = ("memcheck", "racecheck", "synccheck")
FAULT = 9  # the exit status of compute-sanitizer when it finds a fault
# Messages of tools that a machine denies access to the device's counters or its debugger.
REFUSED = re.compile(
    r"^.*(device not supported|no supported|not supported on|librarynotloaded|failed to initialize|err_nvgpuctrperm"
    r"|insufficient permissions|permission denied|unable to find|operation not permitted).*$",
    re.IGNORECASE | re.MULTILINE,
)
ENV = {
    "PYTHONUNBUFFERED": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}  # a plugin may import packages that the machine lacks
TIME_UP, KILLED = 124, 137  # exit statuses of ``timeout``
GRACE_S = 3.0  # for a process to end by itself


@dataclass(frozen=True)
class Outcome:
    """The end of a stage. words: the reason, unless it is done."""

    status: str  # "done", "failed", "cut short", "not available"
    words: str = ""


DONE = Outcome("done")


@dataclass
class Run:
    """The settings that stages share: device, output folder, and the environment of their processes."""

    device: str
    out: Path
    env: Mapping[str, str]

    @property
    def lines(self) -> Path:
        return self.out / "lines.jsonl"

    def python(self, *arguments: str, limit_s: float) -> tuple[int, str]:
        """Run Python with these arguments by ``call``."""
        return self.call([sys.executable, *arguments], limit_s)

    def call(self, command: Sequence[str], limit_s: float) -> tuple[int, str]:
        """Run a command in the repository; return its exit status and its output, which is also logged.

        The status is TIME_UP if its time ran out. ``timeout`` ends it, and at once if this process is killed.
        """
        return self.calls([command], limit_s)[0]

    def calls(self, commands: Sequence[Sequence[str]], limit_s: float, at_once: int = 1) -> list[tuple[int, str]]:
        """Do what ``call`` does for each command, some of them at once, until the time for all of them is up."""
        deadline_s = time.monotonic() + limit_s
        ended: list[tuple[int, str]] = [(TIME_UP, "")] * len(commands)
        running: dict[int, Call] = {}
        waiting = deque(range(len(commands)))
        try:
            while running or waiting:
                while waiting and len(running) < at_once:
                    index = waiting.popleft()
                    left_s = max(1.0, deadline_s - time.monotonic())
                    if index == 0 or left_s > 1:
                        running[index] = Call(self, commands[index], left_s)
                for index in [index for index, call in running.items() if call.process.poll() is not None]:
                    ended[index] = running.pop(index).end()
                time.sleep(0.02)
        finally:
            for call in running.values():
                call.process.terminate()
            for call in running.values():
                call.end()
        return ended


class Call:
    """A command that runs in the repository for limit_s seconds at most."""

    def __init__(self, run: Run, command: Sequence[str], limit_s: float) -> None:
        self.log, self.command, self.limit_s, self.start_s = run.out / "log.txt", command, limit_s, time.monotonic()
        limited = ["timeout", "-k", f"{GRACE_S}", f"{limit_s:.1f}", *command]
        self.output = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            limited, cwd=ROOT, env=run.env, stdout=self.output, stderr=subprocess.STDOUT, preexec_fn=end_with_parent
        )

    def end(self) -> tuple[int, str]:
        """End the command if it still runs, and log its output; return its exit status and its output."""
        if self.process.poll() is None:
            self.process.terminate()
        status = self.process.wait()
        with self.output, open(self.log, "a") as log:
            self.output.seek(0)
            text = self.output.read()
            print(f"$ {' '.join(self.command)}", text, f"exit status {status}", sep="\n", file=log)
        # ``timeout`` returns KILLED for a process that ignored SIGTERM, and for one killed otherwise (out of memory).
        late = time.monotonic() - self.start_s >= self.limit_s
        status = 128 - status if status < 0 else status
        return (TIME_UP if status == KILLED and late else status), text


def end_with_parent() -> None:
    """Make Linux terminate this process as soon as its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def outcome_of(status: int, text: str) -> Outcome:
    """Return the outcome of a stage from its program's exit status and output."""
    if status == 0:
        return DONE
    if status == TIME_UP:
        return Outcome("cut short", "its time was up")
    last = [line for line in text.splitlines() if line.strip()][-1:]
    return Outcome("failed", f"exit status {status}: {''.join(last)[:300]}")


# ---------------------------------------------------------------------------------------------------------- stages


def build(run: Run, limit_s: float) -> Outcome:
    """Compile the compiled path and the host's kernels in place, unless they exist for this Python."""
    names = ("pufferlib._native.step_loop", "cuda_ext._host")
    probe = "import importlib.util, sys; sys.exit(None in map(importlib.util.find_spec, sys.argv[1:]))"
    if run.python("-c", probe, *names, limit_s=limit_s)[0] == 0:
        return DONE
    jobs = str(os.cpu_count() or 1)
    return outcome_of(*run.python("setup.py", "build_ext", "--inplace", "-j", jobs, limit_s=limit_s))


def versions(run: Run, limit_s: float) -> Outcome:
    """Record the device, its driver, and the versions of the installed packages."""
    facts = {}
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        status, text = run.call(query, limit_s)
        facts["device"] = text.strip() if status == 0 else ""
    append(run.lines, of="versions", python=platform.python_version(), machine=platform.machine(), **facts)
    if run.device != "host" and not facts.get("device"):
        return Outcome("failed", 'nvidia-smi names no device; use DEVICE="host" on a machine without a GPU')
    return DONE


def check(run: Run, limit_s: float) -> Outcome:
    """Run the short form of the tests marked gpu; on the host, each that can run there with its first arguments.

    There they play what `make test` plays with all arguments. Each file has a process, and some run at once.
    """
    options = ["-p", "benchmarks.gpu_stages", "--lines", str(run.lines), f"--device={run.device}"]
    options += ["--first-arguments"] if run.device == "host" else []
    plain = ["-o", "addopts=", "-p", "no:cacheprovider", "-q", "-m", "gpu and not long"]
    # torch's threads would wait for each other.
    single_threaded = replace(run, env={**run.env, "OMP_NUM_THREADS": "1"})
    commands = [[sys.executable, "-m", "pytest", *plain, *options, file] for file in TESTS]
    results = single_threaded.calls(commands, limit_s, at_once=max(1, (os.cpu_count() or 1) // 2))
    tests = [line for line in lines_of(run.lines) if line["of"] == "test"]
    counts = Counter(line["outcome"] for line in tests)
    counted = ", ".join(f"{counts[outcome]} {outcome}" for outcome in sorted(counts))
    if counts["failed"]:
        failed = ", ".join(line["test"] for line in tests if line["outcome"] == "failed")
        return Outcome("failed", f"{counted}: {failed[:300]}")
    by_file = {file: outcome_of(*result) for file, result in zip(TESTS, results, strict=True)}
    not_done = {file: outcome for file, outcome in by_file.items() if outcome != DONE}
    ended = joined(not_done) if not_done else DONE
    if ended.status == "done" and not counts["passed"]:
        return Outcome("failed", f"{counted}: none has run")
    return Outcome(ended.status, f"{counted}{'; ' * bool(ended.words)}{ended.words}")


def sanitize(run: Run, limit_s: float) -> Outcome:
    """Run every kernel and a learner for a few steps under compute-sanitizer, by its three tools at once."""
    if run.device == "host":
        words = "compute-sanitizer watches devices; on the host test_kernel_tools.py does"
    else:
        words = "" if shutil.which("compute-sanitizer") else "compute-sanitizer is not installed"
    if words:
        return Outcome("not available", words)
    program = [sys.executable, "-m", "benchmarks.gpu_small", "--device", run.device]
    options = ["--error-exitcode", str(FAULT)]
    commands = [["compute-sanitizer", "--tool", tool, *options, *program] for tool in TOOLS]
    ended = run.calls(commands, limit_s, at_once=len(TOOLS))
    results = {}
    for tool, (status, text) in zip(TOOLS, ended, strict=True):
        with open(run.out / "sanitizers.txt", "a") as file:
            print(f"== {tool}: exit status {status}", text[-20_000:], sep="\n", file=file)
        results[tool] = found_by_sanitizer(status, text)
        append(run.lines, of="sanitizer", tool=tool, status=results[tool].status, words=results[tool].words)
    return joined(results)


def found_by_sanitizer(status: int, text: str) -> Outcome:
    """Return the outcome of a program under compute-sanitizer: a reported fault is a failure, however it ended."""
    refused = REFUSED.search(text)
    if status not in (0, FAULT, TIME_UP) and refused:
        return Outcome("not available", refused[0].strip())
    report_lines = [line for line in text.splitlines() if "=========" in line and not line.endswith("=========")]
    faults = [line.strip("= ") for line in report_lines[1:] if "SUMMARY: 0" not in line]
    if status in (FAULT, TIME_UP) and faults:
        return Outcome("failed", " ".join(faults[:2])[:300])
    return outcome_of(status, text)


def joined(results: Mapping[str, Outcome]) -> Outcome:
    """Merge several outcomes into the worst status, with the words of all."""
    order = ("failed", "cut short", "not available", "done")
    worst = min((result.status for result in results.values()), key=order.index)
    words = [f"{name}: {result.status}{f' ({result.words})' * bool(result.words)}" for name, result in results.items()]
    alike = len({(result.status, result.words) for result in results.values()}) == 1
    return Outcome(worst, next(iter(results.values())).words if alike else "; ".join(words))


def speed(run: Run, limit_s: float) -> Outcome:
    """Measure the speed of the kernels with benchmarks/gpu.py."""
    return measured(run, "benchmarks.gpu", "gpu.json", limit_s)


def train(run: Run, limit_s: float) -> Outcome:
    """Measure training on the device with benchmarks/gpu_train.py."""
    return measured(run, "benchmarks.gpu_train", "gpu_train.json", limit_s)


def measured(run: Run, module: str, file: str, limit_s: float) -> Outcome:
    own_s = 0.85 * limit_s  # the rest is for the case that has begun by then
    options = [
        "--device",
        run.device,
        "--limit",
        f"{own_s:.1f}",
        "--lines",
        str(run.lines),
        "--out",
        str(run.out / file),
    ]
    options += ["--short", "--cases", *ON_HOST] if run.device == "host" else []
    begun = len(lines_of(run.lines))
    ended = outcome_of(*run.python("-m", module, *options, limit_s=limit_s))
    num_figures = sum("median" in line for line in lines_of(run.lines)[begun:])
    if ended.status == "done" and "for want of time" in (run.out / file).read_text():
        ended = Outcome("cut short", "its time was up")
    return Outcome(ended.status, f"{num_figures} figures{'; ' * bool(ended.words)}{ended.words}")


def profile(run: Run, limit_s: float) -> Outcome:
    """Profile three kernels with ncu."""
    if run.device == "host":
        return Outcome("not available", "ncu looks at devices")
    if shutil.which("ncu") is None:
        return Outcome("not available", "ncu is not installed")
    looks = ["ncu", "--clock-control", "none", "-k", "regex:kernel_", "-c", "12", "--set", "full", "--page", "details"]
    program = [sys.executable, "-m", "benchmarks.gpu_small", "--device", run.device, "--sizes", "full"]
    status, text = run.call([*looks, *program], limit_s)
    (run.out / "profile.txt").write_text(text)
    refused = REFUSED.search(text)
    if refused and "Duration" not in text:
        return Outcome("not available", refused[0].strip())
    for kernel in kernels_of(text):
        append(run.lines, of="profile", **kernel)
    return outcome_of(status, text)


def kernels_of(text: str) -> Iterable[dict[str, str]]:
    """Yield the measures of each kernel on ncu's page of details."""
    kernel: dict[str, str] = {}
    for line in text.splitlines():
        head = re.match(r"\s+(\w*kernel_\w*)\s.*\(\d+, \d+, \d+\)", line)
        if head:
            if len(kernel) > 1:
                yield kernel
            kernel = {"kernel": head[1]}
        measure = re.match(
            r"\s+(Duration|DRAM Throughput|Registers Per Thread|Achieved Occupancy)\s+(\S+)\s+(\S+)$", line
        )
        if measure and kernel:
            kernel.setdefault(measure[1], f"{measure[3]} {measure[2]}")
    if len(kernel) > 1:
        yield kernel


# The most useful first: the function of a stage, and its share of the time.
STAGES: dict[str, tuple[Callable[[Run, float], Outcome], float]] = {
    "build": (build, 100),
    "versions": (versions, 10),
    "check": (check, 150),
    "sanitize": (sanitize, 80),
    "speed": (speed, 140),
    "train": (train, 80),
    "profile": (profile, 40),
}


# --------------------------------------------------------------------------------------------------------- summary


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown summary of all stages: how each ended, and each figure next to its target."""
    rows = ["| stage | | seconds | |", "| --- | --- | ---: | --- |"]
    for line in lines:
        if line["of"] == "stage":
            rows.append(f"| {line['stage']} | {line['status']} | {line['seconds']:.1f} | {line['words']} |")
    try:
        from benchmarks import gpu, gpu_train
    except ImportError as error:
        return "\n".join([*rows, "", f"No targets: {error}."])
    medians, theirs = {}, {}
    for line in lines:
        if "median" in line and "num_envs" in line:
            size = line["env"], line["num_envs"], line["num_agents"]
            if line.get("way") == "warpdrive":
                theirs[size] = line["median"]
            else:
                medians[(*size, line.get("way", "training"))] = line["median"]
    targets = {**gpu.TARGETS, **{(*size, "training"): target for size, target in gpu_train.TARGETS.items()}}
    rows += ["", "| env-steps/s of | way | here | target | | WarpDrive |", "| --- | --- | ---: | ---: | --- | ---: |"]
    for key, target in targets.items():
        (*size, way), value = key, medians.get(key)
        value_text = "" if value is None else f"{value:.3g}"
        met = "not measured" if value is None else "reached" if value >= target else f"missed by {target / value:.1f}×"
        other = theirs.get(tuple(size))
        their_text = "" if other is None else f"{other:.3g}"
        rows.append(f"| {gpu.Case(*size).text} | {way} | {value_text} | {target:.3g} | {met} | {their_text} |")
    others = [key for key in medians if key not in targets]
    rows += [f"| {gpu.Case(*key[:3]).text} | {key[3]} | {medians[key]:.3g} | | | |" for key in others]
    return "\n".join(rows)


# ------------------------------------------------------------------------------------------ pytest's hooks, for check


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--lines", type=Path, help="a file that gets a line of JSON for each test")
    parser.addoption("--first-arguments", action="store_true", help="run parametrized tests with these alone")
    parser.addini("timeout", "seconds that a test may take; pytest-timeout, whose option it is, is not loaded")


def find_own_tests() -> None:
    """Make ``import tests`` find ours: another package of that name would hide it, as it has no __init__.py."""
    tests = sys.modules.setdefault("tests", types.ModuleType("tests"))
    tests.__path__ = [str(ROOT / "tests")]


def pytest_configure(config: Any) -> None:
    find_own_tests()
    config.pluginmanager.register(Reporter(config.getoption("--lines"), config.getoption("--first-arguments")))


class Reporter:
    """A pytest plugin that writes each test's outcome as it ends; first_arguments: of parametrized tests run one."""

    def __init__(self, lines: Path | None, first_arguments: bool) -> None:
        self.lines, self.first_arguments = lines, first_arguments

    def pytest_collection_finish(self, session: Any) -> None:  # after -m has left out what it does
        if self.first_arguments:
            first: dict[str, Any] = {}
            for item in session.items:
                first.setdefault(item.nodeid.partition("[")[0], item)
            session.items[:] = first.values()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            append(self.lines, of="test", test=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 3))

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome == "failed":
            append(self.lines, of="test", test=report.nodeid, outcome="failed", seconds=0.0)


# ------------------------------------------------------------------------------------------------------------ main


def unpacked(wheels: Path, folder: Path) -> Path | None:
    """Unpack the wheels into a folder if the machine lacks a package; return the folder, None if nothing is lacking."""
    if all(importlib.util.find_spec(module) is not None for module in NEEDED):
        return None
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise SystemExit(
            f"gymnasium is not installed, and {wheels} holds no wheels. On a machine with a network:\n"
            f"    pip download --no-deps --dest {wheels} gymnasium farama-notifications pettingzoo\n"
            "and carry that folder here (WHEELS=folder names another)."
        )
    for file in files:
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help='"cuda", "cuda:1" or "host"')
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--limit", type=float, default=540.0, metavar="SECONDS", help="for all stages together")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=[*STAGES])
    parser.add_argument("--wheels", type=Path, default=Path("wheels"))
    options = parser.parse_args()
    began_s = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    options.out.mkdir(parents=True, exist_ok=True)
    for file in ("lines.jsonl", "summary.md", "log.txt", "gpu.json", "gpu_train.json", "sanitizers.txt", "profile.txt"):
        (options.out / file).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as name:
        paths = [unpacked(options.wheels, Path(name)), ROOT]
        sys.path[:0] = [str(folder) for folder in paths if folder]  # for the summary, too
        path = os.pathsep.join([*(str(folder) for folder in paths if folder), os.environ.get("PYTHONPATH", "")])
        run = Run(options.device, options.out.resolve(), {**os.environ, **ENV, "PYTHONPATH": path})
        left = [stage for stage in STAGES if stage in options.stages]
        statuses = []
        try:
            while left:
                stage, shares = left[0], sum(STAGES[key][1] for key in left)
                play, share = STAGES[stage]
                remaining_s = options.limit - (time.monotonic() - began_s) - GRACE_S
                start_s = time.monotonic()
                if remaining_s < 1:
                    ended = Outcome("cut short", "not begun, as all time was up")
                else:
                    print(f"{stage} …", flush=True)
                    ended = play(run, remaining_s * share / shares)
                left.pop(0)
                statuses.append(tell(run, stage, ended, time.monotonic() - start_s))
        finally:
            for stage in left:
                tell(run, stage, Outcome("cut short", "the program was ended"), 0.0)
            text = summary(lines_of(run.lines))
            (run.out / "summary.md").write_text(
                f"`{' '.join(['python', '-m', 'benchmarks.gpu_stages', *sys.argv[1:]])}`\n\n{text}\n"
            )
    print(f"\n{text}\n\nIn {options.out}: " + ", ".join(sorted(path.name for path in options.out.iterdir())))
    return int("failed" in statuses)


def tell(run: Run, stage: str, ended: Outcome, seconds: float) -> str:
    """Record how a stage ended; return its status."""
    append(run.lines, of="stage", stage=stage, status=ended.status, words=ended.words, seconds=round(seconds, 1))
    print(f"{stage}: {ended.status}{f', {ended.words}' * bool(ended.words)} ({seconds:.0f} s)", flush=True)
    return ended.status


if __name__ == "__main__":
    sys.exit(main())
