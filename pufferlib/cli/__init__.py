"""The command `puffer`: list, check, measure, record and replay environments, and train and evaluate policies.

tyro parses the arguments and rich formats the output; both come with the extra "train" and are imported when used.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from pufferlib import environments, registry
from pufferlib.cli.kernels import kernel_report
from pufferlib.cli.league import league
from pufferlib.cli.ocean import ocean
from pufferlib.cli.options import Autotune, Bench, Check, Envs, Record, Replay, Wrap, keywords, typed
from pufferlib.cli.parsing import parse, require
from pufferlib.cli.screen import SHOWN_S, cleared, counting, file_name, new_console, passing
from pufferlib.cli.training import evaluate, plot, train
from pufferlib.errors import MissingExtra, PlanError, PufferError, RegistryError, WorkerError
from pufferlib.tuning.plans import HEADER, Row, rate_text, untried_text
from pufferlib.util.suggestions import near
from pufferlib.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from pufferlib.tuning.bench import Speed

__all__ = ["main"]

HELP = """\
puffer {version}: wrap any reinforcement-learning environment, and run many

  puffer envs [FILTER]   list the named environments, and which are installed
  puffer check ENV       find an environment's faults
  puffer bench ENV       measure steps per second on each backend
  puffer autotune ENV    find the fastest plan, and explain it
  puffer train ENV       train a policy with PPO
  puffer eval RUN        evaluate the policy of a run's folder, or of a file
  puffer plot RUN…       draw the curves of runs
  puffer ocean           test a learner on all of Ocean
  puffer league run FILE grow a population; also show FOLDER, play FOLDER
  puffer record ENV      play an environment at random and save the trajectories
  puffer replay FILE     replay such a file and show the first difference
  puffer doctor          describe this machine and find what is broken

ENV is a name (ocean/squared), a Gymnasium id (CartPole-v1), or your own
function (my_module:make_env, found in the current folder).

`puffer COMMAND --help` shows the options of a command; --debug, anywhere in it,
shows the traceback of an error.

Start with: puffer train ocean/squared
"""
STYLES = {"passed": "green", "failed": "bold red", "warning": "yellow", "not applicable": "dim"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 for success, 1 for failure, 2 for wrong arguments, 130 for Ctrl-C.

    arguments: the command's name and arguments, by default those of this process.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # for module:function; workers get the same path
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        sys.stdout = open(os.devnull, "w")  # else the interpreter complains when it flushes at exit
        return 1
    except SystemExit as stop:  # tyro has printed an error or its help
        return stop.code if isinstance(stop.code, int) else 2
    except Exception as error:
        if debug:
            traceback.print_exc()
        else:
            _explain(error)
        return 1


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.format(version=__version__), end="")
        return 0
    if arguments[0] in ("--version", "-V"):
        print(f"puffer {__version__}")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        matches = near(command, COMMANDS)
        meant = f"did you mean `puffer {matches[0]}`?" if matches else f"there are {', '.join(COMMANDS)}."
        print(f'puffer knows no command "{command}"; {meant} `puffer` alone shows help', file=sys.stderr)
        return 2
    if not rest and command == "replay":
        print("puffer replay needs a file: `puffer replay my.npz`; `puffer record ENV` makes one", file=sys.stderr)
        return 2
    if not rest and command == "plot":
        print("puffer plot needs runs: `puffer plot runs/*`; `puffer train ENV` makes one", file=sys.stderr)
        return 2
    if not rest and command == "eval":
        print(
            "puffer eval needs a policy: `puffer eval runs/…`, the folder of a run, or a file; or an environment and "
            "its policy: `puffer eval ocean/squared --policy random`",
            file=sys.stderr,
        )
        return 2
    if not rest and command not in ("envs", "ocean", "league", "doctor"):
        print(
            f"puffer {command} needs an environment: `puffer {command} ocean/squared`, or `puffer {command} "
            "my_module:make_env` for your own; `puffer envs` lists names",
            file=sys.stderr,
        )
        return 2
    return COMMANDS[command](rest)


def _explain(error: Exception) -> None:
    """Print an error's message on stderr.

    For pufferlib's own errors, also print the flags that set the size limits named in the message. For other errors,
    also print the file and line that raised the error. If a WorkerError was caused by one of pufferlib's own errors,
    print the cause instead.
    """
    if isinstance(error, WorkerError) and isinstance(error.__cause__, PufferError):
        error = error.__cause__  # pufferlib's error in a worker: its message is complete
    if isinstance(error, PufferError):
        print(f"puffer: {error}", file=sys.stderr)
        for flag in _flags(str(error)):
            print(f"puffer: here that is {flag} N", file=sys.stderr)
        return
    # The innermost line in a file; frames of the import system have none.
    frame = [entry for entry in traceback.extract_tb(error.__traceback__) if not entry.filename.startswith("<")][-1]
    where = f"{os.path.relpath(frame.filename)}, line {frame.lineno}"
    print(f"puffer: {type(error).__name__}: {error} ({where}); --debug shows the traceback", file=sys.stderr)


def envs(arguments: list[str]) -> int:
    """Run ``puffer envs [FILTER]``: list the named environments; return the exit status, always 0.

    Raises RegistryError if no name contains FILTER.
    """
    require("rich")
    from rich.markup import escape
    from rich.table import Table

    text = "list only names that contain this, with families in full"
    text_filter = parse(Envs, "envs", arguments, "FILTER", text).env
    entries = _entries(text_filter.lower())
    if not entries:
        raise RegistryError(f'no environment has "{text_filter}" in its name; `puffer envs` lists all')
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("installed")
    table.add_column("what it is")
    for (description, extra, ready), group in itertools.groupby(
        entries, lambda entry: (entry.description, entry.extra, registry.installed(entry))
    ):
        what = description if ready else f'{description}: pip install "pufferlib[{extra}]"'
        table.add_row("\n".join(entry.name for entry in group), "yes" if ready else "no", escape(what))
    console = new_console()
    console.print(table)
    if not text_filter:
        console.print(
            "\nYou can also name any other id that is registered with Gymnasium, or your own module:function.\n"
            "`puffer envs minigrid` lists all names that contain minigrid."
        )
    return 0


def check(arguments: list[str]) -> int:
    """Run ``puffer check ENV``: find an environment's faults.

    Returns the exit status: 0 if the environment passes the checks, else 1.
    """
    require("rich")
    from rich.markup import escape
    from rich.table import Table

    from pufferlib.testing import CHECKS, Result
    from pufferlib.testing.isolation import check_isolated

    options: Check = parse(Check, "check", arguments)
    console = new_console()
    if options.backend is not None or options.device is not None or options.report:
        return _check_kernel(options, console)
    width = max(map(len, CHECKS))

    def before(name: str) -> None:
        passing(console, f"{name} …")

    def show(status: str, name: str, text: str) -> None:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=len("warning"), style=STYLES[status])
        table.add_column(width=width)
        table.add_column()
        table.add_row("n/a" if status == "not applicable" else status, name, escape(text))
        console.print(table)

    def after(result: Result) -> None:
        passing(console, "")
        if not result.waits_for:
            show(result.status, result.name, result.text)

    def waiting(call: str, seconds: float) -> None:
        passing(console, f"{call} has not returned for {seconds:.0f} s …")

    registry.creator(options.env)  # report a wrong name or a failing import from this process
    with cleared(console):
        report, ended, stack, printed = check_isolated(
            options.env,
            env_kwargs=keywords(options.env_kwargs),
            wrap_kwargs=options.wrap.kwargs(),
            num_steps=options.num_steps,
            seed=options.seed,
            only=options.only or None,
            step_timeout=options.step_timeout,
            before=before,
            after=after,
            waiting=waiting,
            through=sys.stdout.write if options.prints else None,
        )
    for cause, names in report.waiting.items():
        show("not applicable", "", f"until {cause} passes: {', '.join(names)}")
    lines = ["", "Traceback of the call, innermost last:", *(f"  {line}" for line in stack)] if stack else []
    if printed.num_lines and not options.prints:
        lines += ["", f"It printed {printed.num_lines:,} lines, which --prints shows{'; the last ones:' * bool(ended)}"]
        lines += [f"  {line}" for line in printed.last] if ended else []
    lines += ["", f"{options.env}: {report.summary}, in {report.seconds:.1f} s"]
    flags = dict.fromkeys(flag for result in report.failures for flag in _flags(result.text))
    if flags:
        lines.append(f"Next: puffer check {typed(options, without=flags)} {' '.join(f'{flag} N' for flag in flags)}")
    elif report.passed:
        lines += [f"Next: puffer bench {typed(options)}", f"      puffer train {typed(options)}"]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)  # unwrapped, so that it can be copied
    return 0 if report.passed else 1


def _check_kernel(options: Check, console: Any) -> int:
    """Run ``puffer check ENV --backend cuda``: compare a kernel with its reference; return the exit status.

    With --report, instead print the resources that the kernel needs. Raises PlanError without --backend cuda.
    """
    from pufferlib.testing import check_kernel

    if options.backend != "cuda":
        raise PlanError(
            "--backend, --device and --report are for kernels, which --backend cuda compares with their references; "
            "leave them out to check an environment on all other backends"
        )
    if options.report:
        return kernel_report(options, console)
    next_s = 0.0

    def after(mode: str, step: int, of: int) -> None:
        nonlocal next_s
        if step == 0:
            passing(console, f"{mode}: making environments, compiling the kernel …")
        elif time.monotonic() >= next_s:
            passing(console, f"{mode}: {step:,} of {of:,} steps compared …")
            next_s = time.monotonic() + SHOWN_S

    with cleared(console):
        report = check_kernel(
            options.env,
            device=options.device,
            env_kwargs=keywords(options.env_kwargs),
            num_steps=options.num_steps,
            seed=options.seed,
            budget=options.budget,
            after=after,
        )
    more = "" if report.budget is None else "; --budget allows more time"
    console.print(f"{report}{more}", markup=False, soft_wrap=True)
    return 0 if report.passed else 1


def bench(arguments: list[str]) -> int:
    """Run ``puffer bench ENV``: measure steps per second on each backend; return the exit status, always 0."""
    require("rich")
    from rich.markup import escape
    from rich.table import Table

    from pufferlib.tuning.bench import compare_backends, machine, overload, verdict

    options: Bench = parse(Bench, "bench", arguments)
    console = new_console()
    warning = overload()
    turn_counter = itertools.count(1)
    num_turns = options.repeats * len(options.backends)
    passing(console, "starting …")
    with cleared(console):
        speeds = compare_backends(
            options.env,
            backends=options.backends,
            num_envs=options.num_envs,
            num_workers=options.num_workers,
            batch_size=options.batch_size,
            seconds=options.seconds,
            repeats=options.repeats,
            seed=options.seed,
            env_kwargs=keywords(options.env_kwargs),
            wrap_kwargs=options.wrap.kwargs(),
            device=options.device,
            profile=options.profile,
            after=lambda repeat, backend: passing(console, f"{next(turn_counter)} of {num_turns} turns …"),
        )
    base = next((speed for speed in speeds if speed.backend == "serial"), speeds[0])
    num_agents = base.agents_per_env
    rows = f", of {num_agents} agents each" if num_agents > 1 else ""
    console.print(f"[bold]{escape(options.env)}: {base.num_envs} environments{rows}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("backend", no_wrap=True)
    for name in ("workers", "batch", "steps/s", "", f"times {base.backend}", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for speed in speeds:
        rates, ratios = speed.steps_per_s, speed.ratios(base)
        table.add_row(
            speed.backend,
            str(speed.num_workers),
            str(speed.batch_size),
            rate_text(median(rates)),
            f"{rate_text(min(rates))}–{rate_text(max(rates))}",
            *((f"{median(ratios):.2f}", f"{min(ratios):.2f}–{max(ratios):.2f}") if speed is not base else ()),
        )
    console.print(table)
    console.print(f"Medians and ranges of {options.repeats} turns of {options.seconds:g} s each. {machine()}.")
    if warning:
        console.print(warning, style="yellow")
    console.print(f"\n{verdict(speeds)}")
    if options.profile:
        _profiled(console, options, speeds)
    return 0


def _profiled(console: Console, options: Bench, speeds: Sequence[Speed]) -> None:
    """Print each backend's statistics and, for backends other than "cuda", draw them in one PNG per backend."""
    from pufferlib.tuning.bench import profile_text
    from pufferlib.vectorization.device.vecenv import KernelStats

    for speed in speeds:
        assert speed.stats is not None
        console.print(f"\n{profile_text(speed, speeds)}", markup=False, soft_wrap=True)
        if isinstance(speed.stats, KernelStats):  # they have nothing to draw
            continue
        name = file_name(f"bench-{options.env}-{speed.backend}")
        try:
            console.print(f"drawn in {speed.stats.plot(f'{name}.png')}", markup=False, soft_wrap=True)
        except MissingExtra as error:
            console.print(str(error), markup=False, style="yellow")


def autotune(arguments: list[str]) -> int:
    """Run ``puffer autotune ENV``: find the fastest plan, and explain it; return the exit status, always 0."""
    require("rich")
    from rich.live import Live
    from rich.table import Table

    from pufferlib.tuning.autotune import autotune as search
    from pufferlib.tuning.bench import machine, overload

    options: Autotune = parse(Autotune, "autotune", arguments)
    console = new_console()
    warning = overload()

    def drawn(rows: Sequence[Row]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column, name in enumerate(HEADER):
            right = 0 < column < len(HEADER) - 1
            table.add_column(name, justify="right" if right else "left", no_wrap=right or not column)
        for row in rows:
            if not row.untried:
                table.add_row(*row.cells)
        return table

    with Live(console=console, auto_refresh=False, transient=True) as live:  # without a thread

        def after(rows: Sequence[Row]) -> None:
            live.update(drawn([row for row in rows if row.steps_per_s]), refresh=True)

        live.update("examining the environment …", refresh=True)
        plan = search(
            options.env,
            budget_s=options.budget,
            max_memory=options.max_memory,
            backend=options.backend,
            num_envs=options.num_envs,
            num_workers=options.num_workers,
            batch_size=options.batch_size,
            learner_s=options.learner_s,
            seed=options.seed,
            env_kwargs=keywords(options.env_kwargs),
            wrap_kwargs=options.wrap.kwargs(),
            after=after,
        )
    console.print(drawn(plan.table))
    notes = ("Medians and ranges.", untried_text(plan.table), f"{machine()}.")
    console.print(" ".join(note for note in notes if note), markup=False)
    if warning:
        console.print(warning, style="yellow")
    call = ", ".join(f"{name}={value!r}" for name, value in plan.items())
    for line in ("", plan.reason, f"pufferlib.make(…, {call})"):
        console.print(line, markup=False, soft_wrap=True)
    if options.save is not None:
        path = plan.save(options.save)
        console.print(f"saved in {path}", markup=False, soft_wrap=True)
        if "backend_kwargs" not in plan:  # trainers have no such setting
            again = typed(options, "--config", str(path))
            console.print(f"Next: puffer train {again}", markup=False, soft_wrap=True)
    return 0


def doctor(arguments: list[str]) -> int:
    """Run ``puffer doctor``: describe this machine, and find what is broken.

    Returns the exit status: 0 if nothing is broken, else 1.
    """
    from pufferlib.cli.doctor import diagnose
    from pufferlib.cli.ray_doctor import STEP_MS, diagnose_ray

    parser = argparse.ArgumentParser("puffer doctor", allow_abbrev=False)  # tyro may be broken
    parser.add_argument("--json", action="store_true", help="print a list of objects with name, text, fine")
    parser.add_argument("--ray", action="store_true", help="also check a Ray cluster; start one if none runs")
    parser.add_argument("--address", help="address of the cluster: auto, or host:port; default: that of backend ray")
    step_help = f"milliseconds of an environment's step, for the advice; default: {STEP_MS:g}"
    parser.add_argument("--step-ms", type=float, help=step_help)
    options = parser.parse_args(arguments)
    step_ms = STEP_MS if options.step_ms is None else options.step_ms
    if not options.ray and (options.address, options.step_ms) != (None, None):
        parser.error("--address and --step-ms are about a cluster; add --ray")
    if not 0 < step_ms < math.inf:
        parser.error(f"--step-ms {step_ms:g} is impossible; use milliseconds, more than 0")
    findings = []
    for finding in itertools.chain(diagnose(), diagnose_ray(options.address, step_ms) if options.ray else ()):
        findings.append(finding)
        if not options.json:
            print(f"{finding.name:14}{finding.text}", flush=True)
    if options.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=1))
    return 0 if all(finding.fine for finding in findings) else 1


def record(arguments: list[str]) -> int:
    """Run ``puffer record ENV``: play an environment at random, and save the trajectories.

    Returns the exit status: 1 if an error cut the recording short, else 0.
    """
    from pufferlib.cli.recordings import recorded

    options: Record = parse(Record, "record", arguments)
    console = new_console()
    with cleared(console):
        status, lines = recorded(options, f"{file_name(options.env)}.npz", counting(console))
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    return status


def replay(arguments: list[str]) -> int:
    """Run ``puffer replay FILE``: replay a recording, and show the first difference.

    Returns the exit status: 0 if the replay equals the recording, else 1.
    """
    from pufferlib.cli.recordings import replayed

    options: Replay = parse(Replay, "replay", arguments, "FILE", "a file saved by `puffer record`", "file")
    console = new_console()
    with cleared(console):
        status, lines = replayed(options, counting(console))
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    return status


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "envs": envs,
    "check": check,
    "bench": bench,
    "autotune": autotune,
    "train": train,
    "eval": evaluate,
    "plot": plot,
    "ocean": ocean,
    "league": league,
    "record": record,
    "replay": replay,
    "doctor": doctor,
}


def _entries(text_filter: str) -> list[registry.Entry]:
    """Return the registry's entries whose name, extra or package contains a text, given in lower case.

    If the text is empty, each family is one entry. Otherwise, the environments of a family are separate entries; to
    find them, the packages of the installed families are imported.
    """
    for entry in registry.names() if text_filter else ():
        if not entry.target and registry.installed(entry):
            with contextlib.suppress(Exception):  # a failing import must not prevent listing the others
                environments.register(environments.families()[entry.family])
    entries = registry.names(members=bool(text_filter))
    return [entry for entry in entries if text_filter in f"{entry.name} {entry.extra} {entry.package}".lower()]


def _flags(text: str) -> list[str]:
    """Return the command-line flags for the size limits that an error message mentions."""
    sizes = (field.name for field in dataclasses.fields(Wrap) if field.name.startswith("max_"))
    return [
        f"--wrap.{name.replace('_', '-')}" for name in sizes if re.search(rf"\b{name}(=|'?:| in wrap_kwargs)", text)
    ]
