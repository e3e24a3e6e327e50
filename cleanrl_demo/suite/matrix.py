"""The matrix: which environment of Ocean catches which mutant. `puffer ocean --mutants`.

Each mutant is trained on the environments that are meant to catch it with all seeds, and on the others, which show
what it does not break, with the first one; the correct trainer everywhere with all. A cell says how many were caught:
below the bar, or without a score. Trainings that a file holds already are not done again.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from cleanrl_demo.suite.checks import CHECKS, checked_elsewhere
from cleanrl_demo.suite.examining import Examination, Verdict, examined
from cleanrl_demo.suite.mutants import MUTANTS, Mutant
from cleanrl_demo.suite.tasks import NUM_EPISODES, Task, tasks
from pufferlib.errors import PlanError
from pufferlib.util.files import alone_in, written_whole

__all__ = ["CORRECT", "Matrix", "Results", "examinations", "page", "run"]

NUM_MUTANT_EPISODES = 200  # what mutants score lies far from the bars; a standard error is .02 at most near one
CORRECT = "correct trainer"
POOLED = ("identity",)  # environments that show nothing elsewhere
PAGE = """\
# Ocean's mutants

Each row is the demo trainer, or the library below it, with one bug on purpose; `cleanrl_demo/suite/mutants.py` has the
edits. It is trained from scratch on each environment of Ocean. A cell says how many trainings were caught, which is to
say that they ended below the environment's bar or without a score: **in bold** where the environment is meant to catch
the bug, with {num_seeds} seeds; elsewhere with one if it does not say otherwise, and · where all passed. † is said of
bugs with which nothing at all need be learnt; all others still pass somewhere. Checks need no
training (`cleanrl_demo/suite/checks.py`). Some bugs only they show, and some are not even trained with.

A mutant's score is the mean of {num_mutant_episodes} fresh episodes, the correct trainer's of {num_episodes:,}. The
page is made by `puffer ocean --mutants --page docs/ocean_mutants.md`.

<!-- begin revision_ocean_mutants -->

<!-- end revision_ocean_mutants -->
"""  # `python -m benchmarks.report` writes the revision
LATER = (
    ("step_timeout", None),
    ("checkpoint_minutes", 1.0),
)  # settings that results were kept without; so given, they change nothing
DRAWN_S = 0.5  # between two drawings of the table


def examinations(
    mutants: Sequence[str] = (), envs: Sequence[str] = (), seeds: Sequence[int] = (1,), *, all_seeds: bool = False
) -> list[Examination]:
    """Return the trainings of the matrix: what is meant to catch something first, the correct trainer last.

    mutants: by name; all where none is named, and then the correct trainer. all_seeds: also where nothing is meant to
    be caught. Raises PlanError for a mutant or an environment that there is not.
    """
    for name in mutants:
        if name not in MUTANTS and name != CORRECT:
            raise PlanError(f"mutant={name!r} is unknown; there are {', '.join([*MUTANTS, CORRECT])}")
    chosen = [MUTANTS[name] for name in mutants if name != CORRECT] if mutants else list(MUTANTS.values())
    plain = [
        replace(task, backend="pool") if short(task) in POOLED else task for task in tasks(envs, ["serial"], seeds)
    ]
    pooled = [replace(task, backend="pool") for task in plain]
    meant, others = list[Examination](), list[Examination]()
    for mutant in chosen:
        if mutant.portable:
            continue
        for task in pooled if mutant.backend == "pool" else plain:
            examination = Examination(task, mutant=mutant.name, num_episodes=NUM_MUTANT_EPISODES)
            if short(task) in mutant.envs:
                meant.append(examination)
            elif all_seeds or task.seed == seeds[0]:
                others.append(examination)
    correct = [] if mutants and CORRECT not in mutants else [Examination(task) for task in plain]
    return [*meant, *correct, *others]


def short(task: Task) -> str:
    """Return an environment's name without ocean/."""
    return task.env.partition("/")[2]


class Results:
    """Verdicts by examination, and what checks found; in a file, if there is one, after each of them.

    Kept are the verdicts of examinations that are the same still: mutant, settings and bar. Of the code they are those
    that it was when they were made: after a change of an environment or a trainer one begins with another file. What
    other runs put into the file meanwhile stays there. Raises PlanError for a file of something else.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.kept, self.checks = _read(file)

    def get(self, examination: Examination) -> Verdict | None:
        """Return what came of an examination, None if it is to be done yet."""
        held = self.kept.get(_key(examination))
        if held is None:
            return None
        return Verdict(**{each.name: held[each.name] for each in fields(Verdict) if each.name in held})

    def add(self, examination: Examination, verdict: Verdict) -> None:
        """Keep what came of an examination."""
        task, key = examination.task, _key(examination)
        named = {"mutant": examination.mutant, "env": short(task), "backend": task.backend, "seed": task.seed}
        self.kept[key] = {**named, **asdict(verdict), "passed": verdict.passed, "key": key}
        self.save()

    def save(self) -> None:
        """Write the file, if there is one, with what it has got from others."""
        if self.file is None:
            return
        with alone_in(self.file.parent):
            self.kept = {**_read(self.file)[0], **self.kept}
            text = json.dumps({"checks": self.checks, "trainings": list(self.kept.values())}, indent=1)
            with written_whole(self.file) as part:
                part.write_text(text + "\n")


def _read(file: Path | None) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, bool]]]:
    """Return the trainings by key, and the checks, that a file holds; nothing if it is not there."""
    if file is None or not file.exists():
        return {}, {}
    try:
        held = json.loads(file.read_text())
        if not all({"score", "bar", "seconds"} <= each.keys() for each in held["trainings"]):
            raise ValueError("a training without its score")
        return {each["key"]: each for each in held["trainings"]}, dict(held["checks"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PlanError(
            f"{file} holds something else than results of `puffer ocean --mutants`, and is left as it is; name another"
        ) from error


def _key(examination: Examination) -> str:
    """Return what an examination is, in a few letters."""
    task = examination.task
    mutant = None if examination.mutant is None else MUTANTS[examination.mutant].edits
    settings = sorted(item for item in task.settings.items() if item not in LATER)
    what = (task.env, task.backend, task.seed, task.bar, settings, mutant)
    return hashlib.sha256(repr((what, examination.num_episodes)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Cell:
    """A learner on an environment: how many of its trainings are done, and how many of these were caught."""

    caught: int
    done: int
    wanted: int
    meant: bool

    @property
    def text(self) -> str:
        """What the table shows."""
        if not self.wanted:
            return ""
        if self.done < self.wanted:
            return f"{self.caught}/{self.done}…" if self.done else "…"
        return f"{self.caught}/{self.done}" if self.caught or self.meant else "·"


class Matrix:
    """What is known of the mutants: rows of cells, and whether each is caught where it should be."""

    def __init__(self, wanted: Sequence[Examination], results: Results, mutants: Sequence[str] = ()) -> None:
        self.wanted, self.results = wanted, results
        self._wanted: dict[tuple[str | None, str], list[Examination]] = {}
        for each in wanted:
            self._wanted.setdefault((each.mutant, short(each.task)), []).append(each)
        names = mutants or [*MUTANTS, CORRECT]
        self.rows = [name for name in names if name in MUTANTS]
        self.has_correct = any(each.mutant is None for each in wanted)
        self.envs = list(dict.fromkeys(sorted(short(each.task) for each in wanted)))

    def cell(self, name: str | None, env: str) -> Cell:
        """Return the cell of a mutant, or of the correct trainer (None), and an environment."""
        verdicts = self.verdicts(name, env)
        caught, wanted = sum(not verdict.passed for verdict in verdicts), len(self._wanted.get((name, env), ()))
        return Cell(caught, len(verdicts), wanted, name is not None and env in MUTANTS[name].envs)

    def verdicts(self, name: str | None, env: str) -> list[Verdict]:
        """Return what came of the trainings of a cell that are done."""
        here = self._wanted.get((name, env), ())
        return [verdict for each in here if (verdict := self.results.get(each)) is not None]

    def checks(self, name: str) -> dict[str, bool]:
        """Return the checks that are meant to catch a mutant, and whether they do."""
        found = self.results.checks.get(name, {})
        return {check: found.get(check, False) for check in MUTANTS[name].checks}

    def faults(self, name: str) -> list[str]:
        """Return, in words, what is not as it should be with a mutant; nothing if all is, and all is done."""
        mutant, cells = MUTANTS[name], {env: self.cell(name, env) for env in self.envs}
        wrong = []
        for env, cell in cells.items():
            if cell.done < cell.wanted:
                wrong.append(f"{env} is not done")
            elif cell.meant and cell.caught < cell.done:
                wrong.append(f"{env} caught {cell.caught} of {cell.done}")
        others = [cell for cell in cells.values() if cell.wanted and not cell.meant]
        if others and not mutant.everywhere and all(cell.caught for cell in others):
            wrong.append("it passes nowhere")
        return wrong + [f"{check} found nothing" for check, found in self.checks(name).items() if not found]

    def correct_faults(self) -> list[str]:
        """Return the same of the correct trainer."""
        cells = {env: self.cell(None, env) for env in self.envs} if self.has_correct else {}
        wrong = [f"{env} failed {cell.caught} of {cell.done}" for env, cell in cells.items() if cell.caught]
        wrong += [f"{env} is not done" for env, cell in cells.items() if cell.done < cell.wanted]
        return wrong + [f"{check} found something" for check, found in self.results.checks.get("", {}).items() if found]

    @property
    def all_faults(self) -> dict[str, list[str]]:
        """Return what is not as it should be, by row."""
        faults = {name: self.faults(name) for name in self.rows} | {CORRECT: self.correct_faults()}
        return {name: wrong for name, wrong in faults.items() if wrong}

    def table(self) -> Table:
        """Return the matrix as it is shown in a terminal."""
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
        table.add_column("mutant", no_wrap=True)
        for env in self.envs:
            table.add_column("\n".join(textwrap.wrap(env, 5)), justify="center", no_wrap=True)
        table.add_column("checks")
        for name in self.rows:
            cells = [self.cell(name, env) for env in self.envs]
            shown = [f"[bold]{cell.text}[/]" if cell.meant else f"[dim]{cell.text}[/]" for cell in cells]
            checks = [check if found else f"[red]not {check}[/]" for check, found in self.checks(name).items()]
            table.add_row(name, *shown, ", ".join(checks))
        if self.has_correct:
            table.add_section()
            table.add_row(CORRECT, *(self.cell(None, env).text for env in self.envs))
        return table


class Window:
    """A context manager that shows the matrix while it grows: a table in a terminal, a line a training elsewhere."""

    def __init__(self, matrix: Matrix, console: Console) -> None:
        self.matrix, self.console = matrix, console
        self.drawn_s = 0.0
        self.live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self.live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Window:
        if self.live is not None:
            self.live.start()
        return self

    def refresh(self) -> None:
        """Draw the table anew, if it is time."""
        if self.live is not None and time.monotonic() > self.drawn_s + DRAWN_S:
            self.live.update(self.matrix.table(), refresh=True)
            self.drawn_s = time.monotonic()

    def ended(self, examination: Examination, verdict: Verdict) -> None:
        """Tell what came of a training."""
        if self.live is None:
            task, said = examination.task, "no score" if verdict.score is None else f"score {verdict.score:.3f}"
            self.console.print(
                f"{examination.mutant or CORRECT:<30}{short(task):<12}seed {task.seed}  {said}, bar {verdict.bar:.2f}  "
                f"{verdict.seconds:.1f} s  {'passed' if verdict.passed else 'caught'}",
                soft_wrap=True,
            )
        self.refresh()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()
        self.console.print(self.matrix.table())


def run(
    wanted: Sequence[Examination],
    results: Results,
    console: Console,
    *,
    mutants: Sequence[str] = (),
    jobs: int = 1,
    timeout_s: float,
    page_file: Path | None = None,
) -> Matrix:
    """Do the trainings whose results are not there yet, and the checks; show how it goes, and return the matrix.

    page_file: where the matrix is written to as a page, after each of them.
    """
    matrix = Matrix(wanted, results, mutants)

    def write_page() -> None:
        if page_file is not None:
            with written_whole(page_file) as part:
                part.write_text(page(matrix))

    results.save()  # what cannot be written is told at once
    results.checks = checked_elsewhere()
    results.save()
    write_page()
    missing = [each for each in wanted if results.get(each) is None]
    with Window(matrix, console) as window:
        for examination, verdict in examined(missing, jobs=jobs, timeout_s=timeout_s, meanwhile=window.refresh):
            results.add(examination, verdict)
            write_page()
            window.ended(examination, verdict)
    for name, wrong in matrix.all_faults.items():
        console.print(f"{name}: {'; '.join(wrong)}", soft_wrap=True, highlight=False)
    return matrix


def page(matrix: Matrix) -> str:
    """Return the matrix as a page of Markdown."""
    num_seeds = len({each.task.seed for each in matrix.wanted})
    lines = [
        PAGE.format(num_seeds=num_seeds, num_mutant_episodes=NUM_MUTANT_EPISODES, num_episodes=NUM_EPISODES),
        "| mutant | " + " | ".join(matrix.envs) + " | checks |",
        "|---|" + ":-:|" * len(matrix.envs) + "---|",
    ]
    for name in matrix.rows:
        cells = [matrix.cell(name, env) for env in matrix.envs]
        shown = [f"**{cell.text}**" if cell.meant else cell.text for cell in cells]
        checks = ", ".join(f"`{check}`" for check, found in matrix.checks(name).items() if found)
        mark = " †" if MUTANTS[name].everywhere else ""
        lines.append(f"| {name}{mark} | {' | '.join(shown)} | {checks} |")
    if matrix.has_correct:
        lines.append(f"| *{CORRECT}* | {' | '.join(matrix.cell(None, env).text for env in matrix.envs)} | |")
    lines += ["", "## What is broken", ""]
    lines += ["| mutant | what it gets wrong | scores where it is meant to be caught (bar) |", "|---|---|---|"]
    lines += [f"| {name} | {MUTANTS[name].description} | {_scores(matrix, MUTANTS[name])} |" for name in matrix.rows]
    lines += ["", "## What the checks say of sound code", ""]
    lines += [f"- `{name}`: {check.description}." for name, check in CHECKS.items()]
    faults = [f"- {name}: {'; '.join(wrong)}" for name, wrong in matrix.all_faults.items()]
    if faults:
        lines += ["", "## What is not as it should be", "", *faults]
    return "\n".join(lines) + "\n"


def _scores(matrix: Matrix, mutant: Mutant) -> str:
    """Return the least and the largest score in each environment that is meant to catch a mutant."""
    told = []
    for env in mutant.envs:
        verdicts = matrix.verdicts(mutant.name, env)
        scores = [verdict.score for verdict in verdicts if verdict.score is not None]
        if scores:
            told.append(f"{env} {min(scores):.2f}–{max(scores):.2f} ({verdicts[0].bar:.2f})")
    return ", ".join(told)
