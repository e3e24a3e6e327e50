"""puffer ocean: what it is told, and what it says. What it does is cleanrl_demo's."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import time
from pathlib import Path
from typing import Any

from pufferlib.cli.options import Ocean
from pufferlib.cli.parsing import parse, require
from pufferlib.cli.screen import new_console
from pufferlib.errors import PlanError
from pufferlib.vectorization.core.plan import available_cpus

__all__ = ["ocean"]

OF_MUTANTS = ("mutant", "all_seeds", "save", "page")
NOT_OF_MUTANTS = ("backend", "trainer", "watch")
MOST_JOBS = 2  # by default: each training has worker processes besides its own


def ocean(words: list[str]) -> int:
    """puffer ocean"""
    require("torch", "tyro", "rich")
    options: Ocean = parse(Ocean, "ocean", words, name=None)
    _check(options)
    wrong = {} if options.env else _suite("tasks").faults()
    for sentence in wrong.values():  # and the others go on
        print(f"puffer: {sentence}", file=sys.stderr)
    return max(1 if wrong else 0, _mutants(options) if options.mutants else _examined(options))


def _examined(options: Ocean) -> int:
    """Train the learner on each environment; the exit code is 0 if it fails none."""
    examining, table, console = _suite("examining"), _suite("table"), new_console()
    tasks = list(_suite("tasks").tasks(options.env, options.backend, _seeds(options)))
    named = examining.DEMO if options.trainer is None else options.trainer
    train = examining.learner(named)  # a name that is wrong is told once, and at once
    if options.watch:
        return _watched(tasks, train, console)
    examinations = [examining.Examination(task, named) for task in tasks]
    jobs = min(_jobs(options), len(examinations))
    start_s, verdicts = time.monotonic(), list[Any]()
    try:
        with table.Screen(examinations, console, jobs) as screen:
            found = examining.examined(
                examinations, jobs=jobs, timeout_s=options.timeout, began=screen.began, meanwhile=screen.refresh
            )
            for examination, verdict in found:
                screen.ended(examination, verdict)
                verdicts.append(verdict)
    finally:  # after Ctrl-C too
        seconds = time.monotonic() - start_s
        num_unjudged = len(examinations) - len(verdicts)
        console.print(table.closing_line(verdicts, seconds, num_unjudged, jobs=jobs), soft_wrap=True)
    return 1 if any(verdict.failed for verdict in verdicts) else 0


def _check(options: Ocean) -> None:
    """Raise PlanError for numbers with which nothing would be learnt, and for flags that would be passed over."""
    if options.seeds is not None and options.seeds < 1:
        raise PlanError(f"--seeds {options.seeds} leaves nothing to train; use 1 or more")
    if options.seed < 0:
        raise PlanError(f"--seed {options.seed} seeds nothing; use 0 or more")
    if options.jobs is not None and options.jobs < 1:
        raise PlanError(f"--jobs {options.jobs} trains nothing; use 1 or more")
    if not options.timeout > 0:
        raise PlanError(f"--timeout {options.timeout} is no time to learn in; use seconds above 0")
    idle = NOT_OF_MUTANTS if options.mutants else OF_MUTANTS
    given = [each.name for each in dataclasses.fields(options) if getattr(options, each.name) != each.default]
    flags = [f"--{name.replace('_', '-')}" for name in given if name in idle]
    if flags:
        verb, where = "says" if len(flags) == 1 else "say", "with" if options.mutants else "without"
        raise PlanError(f"{', '.join(flags)} {verb} nothing {where} --mutants")


def _jobs(options: Ocean) -> int:
    """Return how many trainings run at a time: by default two, but no more than there are cores."""
    return min(MOST_JOBS, available_cpus()) if options.jobs is None else options.jobs


def _seeds(options: Ocean) -> list[int]:
    num = options.seeds if options.seeds is not None else 3 if options.mutants else 1
    return list(range(options.seed, options.seed + num))


def _watched(tasks: list[Any], train: Any, console: Any) -> int:
    """Train in this process, and show what was learnt."""
    if not console.is_terminal:
        raise PlanError("--watch needs a terminal to show it in")
    passed = []
    for task in tasks:
        try:
            verdict, play = _suite("examining").examine(task, train)
        except _suite("tasks").Cannot as error:
            console.print(f"{task.env}  {error}", soft_wrap=True, markup=False)
            continue
        said = f"score {verdict.score:.3f}, bar {verdict.bar:.2f}: {'passed' if verdict.passed else 'FAILED'}"
        console.print(f"{task.env}  {said}", soft_wrap=True)
        _suite("watching").watch(task, play, console)
        passed.append(verdict.passed)
    return 0 if all(passed) else 1


def _mutants(options: Ocean) -> int:
    """Train mutants; the exit code is 0 if each is caught where it should be, and nothing else is."""
    matrix, console = _suite("matrix"), new_console()
    wanted = matrix.examinations(options.mutant, options.env, _seeds(options), all_seeds=options.all_seeds)
    save, page_file = (None if path is None else Path(path) for path in (options.save, options.page))
    how = {"mutants": options.mutant, "jobs": _jobs(options), "timeout_s": options.timeout, "page_file": page_file}
    found = matrix.run(wanted, matrix.Results(save), console, **how)
    return 1 if found.all_faults else 0


def _suite(name: str) -> Any:
    """Return a module of the suite, by name, as that stands above this package."""
    return importlib.import_module(f"cleanrl_demo.suite.{name}")
