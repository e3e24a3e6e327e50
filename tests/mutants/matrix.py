"""The matrix: which environment of Ocean catches which mutant, and what is wrong with that."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from ocean.suite.examining import Examination, Verdict

from .catalogue import MUTANTS
from .trainings import CORRECT, Results, mutant_of, short

__all__ = ["Cell", "Matrix"]


@dataclass(frozen=True)
class Cell:
    """A learner on an environment: how many of its trainings are done, and how many of these were caught."""

    caught: int
    done: int
    num_trainings: int
    meant: bool
    """whether the environment should catch the learner"""

    @property
    def text(self) -> str:
        """The text that tables show: caught/done, or · where all passed as they should."""
        if not self.num_trainings:
            return ""
        if self.done < self.num_trainings:
            return f"{self.caught}/{self.done}…" if self.done else "…"
        return f"{self.caught}/{self.done}" if self.caught or self.meant else "·"


class Matrix:
    """The results so far: rows of cells, and whether each mutant is caught where it should be."""

    def __init__(self, examinations: Sequence[Examination], results: Results, mutants: Sequence[str] = ()) -> None:
        self.examinations, self.results = examinations, results
        self._cells: dict[tuple[str | None, str], list[Examination]] = {}
        for examination in examinations:
            self._cells.setdefault((mutant_of(examination), short(examination.task)), []).append(examination)
        names = mutants or [*MUTANTS, CORRECT]
        self.rows = [name for name in names if name in MUTANTS]
        self.has_correct = any(mutant_of(examination) is None for examination in examinations)
        self.envs = list(dict.fromkeys(sorted(short(examination.task) for examination in examinations)))

    def cell(self, name: str | None, env: str) -> Cell:
        """Return the cell of a mutant, or of the correct trainer (None), and an environment."""
        verdicts = self.verdicts(name, env)
        caught = sum(not verdict.passed for verdict in verdicts)
        meant = name is not None and env in MUTANTS[name].envs
        return Cell(caught, len(verdicts), len(self._cells.get((name, env), ())), meant)

    def verdicts(self, name: str | None, env: str) -> list[Verdict]:
        """Return the verdicts of a cell's trainings that are done."""
        verdicts = map(self.results.get, self._cells.get((name, env), ()))
        return [verdict for verdict in verdicts if verdict is not None]

    def checks(self, name: str) -> dict[str, bool]:
        """Return the checks that should catch a mutant, and whether they do."""
        results = self.results.checks.get(name, {})
        return {check: results.get(check, False) for check in MUTANTS[name].checks}

    def faults(self, name: str) -> list[str]:
        """Return sentences on what is wrong or not done with a mutant; none if it is caught where it should be."""
        mutant, cells = MUTANTS[name], {env: self.cell(name, env) for env in self.envs}
        faults = []
        for env, cell in cells.items():
            if cell.done < cell.num_trainings:
                faults.append(f"{env} is not done")
            elif cell.meant and cell.caught < cell.done:
                faults.append(f"{env} caught {cell.caught} of {cell.done}")
        others = [cell for cell in cells.values() if cell.num_trainings and not cell.meant]
        if others and not mutant.everywhere and all(cell.caught for cell in others):
            faults.append("it passes nowhere")
        return faults + [f"{check} found nothing" for check, caught in self.checks(name).items() if not caught]

    def correct_faults(self) -> list[str]:
        """Return the same of the correct trainer."""
        cells = {env: self.cell(None, env) for env in self.envs} if self.has_correct else {}
        faults = [f"{env} failed {cell.caught} of {cell.done}" for env, cell in cells.items() if cell.caught]
        faults += [f"{env} is not done" for env, cell in cells.items() if cell.done < cell.num_trainings]
        checks = self.results.checks.get("", {})
        return faults + [f"{check} found something" for check, caught in checks.items() if caught]

    @property
    def all_faults(self) -> dict[str, list[str]]:
        """The faults of all rows that have some, by row."""
        faults = {name: self.faults(name) for name in self.rows} | {CORRECT: self.correct_faults()}
        return {name: sentences for name, sentences in faults.items() if sentences}

    def table(self) -> Table:
        """Return the matrix for a terminal."""
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
        table.add_column("mutant", no_wrap=True)
        for env in self.envs:
            table.add_column("\n".join(textwrap.wrap(env, 5)), justify="center", no_wrap=True)
        table.add_column("checks")
        for name in self.rows:
            cells = [self.cell(name, env) for env in self.envs]
            texts = [f"[bold]{cell.text}[/]" if cell.meant else f"[dim]{cell.text}[/]" for cell in cells]
            checks = [check if caught else f"[red]not {check}[/]" for check, caught in self.checks(name).items()]
            table.add_row(name, *texts, ", ".join(checks))
        if self.has_correct:
            table.add_section()
            table.add_row(CORRECT, *(self.cell(None, env).text for env in self.envs))
        return table
