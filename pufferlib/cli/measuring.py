"""`puffer bench` and `puffer autotune`: measure backends, and find the fastest plan."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from pufferlib.cli.options import Autotune, Bench, typed
from pufferlib.cli.parsing import parse, require
from pufferlib.cli.screen import cleared, new_console, passing
from pufferlib.errors import MissingExtra
from pufferlib.tuning.plans import HEADER, Row, rate_text, untried_text
from pufferlib.util.files import file_name

if TYPE_CHECKING:
    from rich.console import Console

    from pufferlib.tuning.bench import Speed

__all__ = ["autotune", "bench"]


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
            **options.arguments(),
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
            **options.arguments(),
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
