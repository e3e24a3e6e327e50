"""`puffer check`: find an environment's faults, compare a kernel with its reference, or report what a kernel needs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from pufferlib import registry
from pufferlib.cli.options import Check, keywords, size_flags, typed
from pufferlib.cli.parsing import parse, require
from pufferlib.cli.screen import SHOWN_S, cleared, new_console, passing
from pufferlib.errors import KernelError, PlanError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["check"]

STYLES = {"passed": "green", "failed": "bold red", "warning": "yellow", "not applicable": "dim"}


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
            **options.arguments(),
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
    flags = dict.fromkeys(flag for result in report.failures for flag in size_flags(result.text))
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
        return _kernel_report(options, console)
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


def _kernel_report(options: Check, console: Console) -> int:
    """Compile the kernel for each kind of launch and each GPU architecture; print a table of the resources needed.

    The architectures are those of ``cuda_ext.occupancy`` that the installed NVRTC supports. Returns the exit status,
    always 0. Raises KernelError if it supports none of them.
    """
    from rich.table import Table

    from pufferlib.testing.kernel_usage import HIDDEN, LAUNCHES, architectures, kernel_usage

    version, supported, unknown = architectures()
    if not supported:
        raise KernelError(
            f"NVRTC {version} compiles for none of {', '.join(unknown)}; install another nvidia-cuda-nvrtc"
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for name in ("registers", "shared", "stack", "spilled", "blocks", "threads"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    usage: Any = None  # of the last compilation; the values printed from it are equal in all
    with cleared(console):
        for launch in LAUNCHES:
            table.add_row(launch)
            for architecture in supported:
                passing(console, f"{launch}: compiling for {architecture} …")
                usage = kernel_usage(options.env, launch, architecture, keywords(options.env_kwargs))
                cubin, occupancy = usage.cubin, usage.occupancy
                table.add_row(
                    f"  {architecture}",
                    str(cubin.num_registers),
                    f"{cubin.shared_nbytes:,}",
                    f"{cubin.stack_nbytes:,}",
                    f"[bold red]{cubin.spilled_nbytes:,}" if cubin.spilled_nbytes else "0",
                    str(occupancy.num_blocks),
                    f"{occupancy.share:.0%}",
                    occupancy.limit,
                )
    shape, agents = usage.shape, f"{usage.num_agents} agent{'s' * (usage.num_agents > 1)}"
    console.print(
        f"{options.env}: {agents} an environment, {usage.observation_size} numbers each; {shape.envs_per_block} "
        f"environment{'s' * (shape.envs_per_block > 1)} a block of {shape.block_size} threads",
        style="bold",
        markup=False,
        soft_wrap=True,
    )
    console.print(table)
    notes = (
        "Per thread: registers, and bytes of stack and of spilled registers. Per block: bytes of shared memory. Per "
        "multiprocessor: resident blocks, the share of its threads that they use, and the resource that limits them. "
        f"The network has hidden layers of {' and '.join(map(str, HIDDEN))}. NVRTC {version}"
    )
    more = f" does not know {', '.join(unknown)}; a newer nvidia-cuda-nvrtc does." if unknown else "."
    console.print(f"\n{notes}{more}", markup=False)
    return 0
