"""`puffer ocean`: its arguments and output. ocean.suite does the work."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from pufferlib.cli.options import Ocean
from pufferlib.cli.parsing import parse, require
from pufferlib.cli.screen import new_console
from pufferlib.errors import PlanError
from pufferlib.vectorization.core.plan import available_cpus

__all__ = ["num_jobs", "ocean", "require_numbers"]

MOST_JOBS = 2  # the default limit, because each training also has worker processes


def ocean(arguments: list[str]) -> int:
    """Run ``puffer ocean``: test a learner on the Ocean environments.

    Returns the exit status: 1 if the learner fails an environment or if, when all are tested, an environment that
    should be learnable is not; else 0.
    """
    if any(argument.startswith("--mutant") for argument in arguments):
        raise PlanError(
            "`puffer ocean --mutants` is now `python -m tests.mutants`, from the root of a checkout of the repository"
        )
    require("torch", "tyro", "rich")
    options: Ocean = parse(Ocean, "ocean", arguments, name=None)
    require_numbers(options.seeds, options.seed, options.jobs, options.timeout)
    wrong = {} if options.env else _suite("tasks").faults()
    for sentence in wrong.values():  # the other environments are still tested
        print(f"puffer: {sentence}", file=sys.stderr)
    return max(1 if wrong else 0, _examined(options))


def _examined(options: Ocean) -> int:
    """Train the learner on each environment, and print the results; return the exit status.

    The status is 1 if the learner fails any environment, else 0. With --watch, calls ``_watched`` instead.
    """
    examining, table, console = _suite("examining"), _suite("table"), new_console()
    seeds = range(options.seed, options.seed + options.seeds)
    tasks = list(_suite("tasks").tasks(options.env, options.backend, seeds))
    named = examining.DEMO if options.trainer is None else options.trainer
    train = examining.learner(named)  # a wrong name raises here, once
    if options.watch:
        return _watched(tasks, train, console)
    examinations = [examining.Examination(task, named) for task in tasks]
    jobs = min(num_jobs(options.jobs), len(examinations))
    start_s, verdicts = time.monotonic(), list[Any]()
    try:
        with table.Screen(examinations, console, jobs) as screen:
            results = examining.examined(
                examinations, jobs=jobs, timeout_s=options.timeout, began=screen.began, meanwhile=screen.refresh
            )
            for examination, verdict in results:
                screen.ended(examination, verdict)
                verdicts.append(verdict)
    finally:  # after Ctrl-C too
        seconds = time.monotonic() - start_s
        num_unjudged = len(examinations) - len(verdicts)
        console.print(table.closing_line(verdicts, seconds, num_unjudged, jobs=jobs), soft_wrap=True)
    return 1 if any(verdict.failed for verdict in verdicts) else 0


def require_numbers(seeds: int, seed: int, jobs: int | None, timeout_s: float) -> None:
    """Raise PlanError for options that are out of range."""
    if seeds < 1:
        raise PlanError(f"--seeds {seeds} is impossible; use 1 or more")
    if seed < 0:
        raise PlanError(f"--seed {seed} is impossible; use 0 or more")
    if jobs is not None and jobs < 1:
        raise PlanError(f"--jobs {jobs} is impossible; use 1 or more")
    if not timeout_s > 0:
        raise PlanError(f"--timeout {timeout_s} is impossible; use seconds above 0")


def num_jobs(jobs: int | None) -> int:
    """Return the number of concurrent trainings: ``jobs``; by default, 2 on several cores and 1 on a single core."""
    return min(MOST_JOBS, available_cpus()) if jobs is None else jobs


def _watched(tasks: list[Any], train: Any, console: Any) -> int:
    """Train in this process, and show the learnt behaviour; return the exit status.

    The status is 1 if the learner fails an environment, else 0. An environment that the learner does not support counts
    neither as passed nor as failed. Raises PlanError if the console is not a terminal.
    """
    if not console.is_terminal:
        raise PlanError("--watch needs a terminal")
    passed = []
    for task in tasks:
        try:
            verdict, play = _suite("examining").examine(task, train)
        except _suite("tasks").Cannot as error:
            console.print(f"{task.env}  {error}", soft_wrap=True, markup=False)
            continue
        text = f"score {verdict.score:.3f}, bar {verdict.bar:.2f}: {'passed' if verdict.passed else 'FAILED'}"
        console.print(f"{task.env}  {text}", soft_wrap=True)
        _suite("watching").watch(task, play, console)
        passed.append(verdict.passed)
    return 0 if all(passed) else 1


def _suite(name: str) -> Any:
    """Import and return a module of ocean.suite, by name because ocean is in a higher layer than this file."""
    return importlib.import_module(f"ocean.suite.{name}")
