"""A display of examinations: a live table in a terminal, elsewhere a line per verdict; then a closing line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ocean.suite.examining import Examination, Verdict
from ocean.suite.tasks import Task, shortfall

__all__ = ["Screen", "closing_line"]

PASSED, FAILED, CANNOT = ("passed", "green"), ("FAILED", "bold red"), ("cannot", "yellow")


class Screen:
    """A context manager that displays examinations as they begin and end.

    In a terminal it shows a table of all examinations, elsewhere a line for each verdict. At the end it prints the
    reason for each verdict that is not a pass. jobs: how many examinations run at a time.
    """

    def __init__(self, examinations: Sequence[Examination], console: Console, jobs: int = 1) -> None:
        self.console, self.jobs = console, jobs
        self.examinations = examinations
        self.verdicts: dict[Examination, Verdict] = {}
        self.begun_s: dict[Examination, float] = {}
        self.several = {
            "backend": len({examination.task.backend for examination in examinations}) > 1,
            "seed": len({examination.task.seed for examination in examinations}) > 1,
        }
        self.live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self.live = Live(console=console, auto_refresh=False, vertical_overflow="visible")

    def __enter__(self) -> Screen:
        if self.live is not None:
            self.live.start()
        return self

    def began(self, examination: Examination) -> None:
        """Record that an examination has begun, and redraw the table, if there is one."""
        self.begun_s[examination] = time.monotonic()
        self.refresh()

    def ended(self, examination: Examination, verdict: Verdict) -> None:
        """Record an examination's verdict, and display it."""
        self.verdicts[examination] = verdict
        if self.live is None:
            label, style = _outcome(verdict)
            task, score = examination.task, "no score" if verdict.score is None else f"score {verdict.score:.3f}"
            self.console.print(
                f"{self._name(task):<{self._width()}}  {score}, chance {task.chance:.3f}, bar {verdict.bar:.2f}  "
                f"{verdict.seconds:.1f} s  [{style}]{label}[/]",
                soft_wrap=True,
            )
        self.refresh()

    def refresh(self) -> None:
        """Redraw the table, if there is one."""
        if self.live is not None:
            self.live.update(self.table(), refresh=True)

    def table(self) -> Table:
        """Return a table of all examinations and their results so far; its caption shows how many run at a time."""
        caption = f"{self.jobs} training{'s' * (self.jobs > 1)} at a time"
        table = Table(
            "environment", box=None, pad_edge=False, header_style="bold", caption=caption, caption_justify="left"
        )
        for name in ("chance", "score", "bar", "seconds", ""):
            table.add_column(name, justify="right" if name else "left", min_width=0 if name else len("learning"))
        for examination in self.examinations:
            table.add_row(self._name(examination.task), *self._cells(examination))
        return table

    def _cells(self, examination: Examination) -> tuple[str, str, str, str, str]:
        task, verdict = examination.task, self.verdicts.get(examination)
        references = f"{task.chance:.3f}", f"{task.bar:.2f}"
        if verdict is not None:
            label, style = _outcome(verdict)
            score = "–" if verdict.score is None else f"{verdict.score:.3f}"
            return references[0], score, references[1], f"{verdict.seconds:.1f}", f"[{style}]{label}[/]"
        if examination in self.begun_s:
            seconds = time.monotonic() - self.begun_s[examination]
            return references[0], "…", references[1], f"{seconds:.0f}", "[yellow]learning[/]"
        return references[0], "", references[1], "", ""

    def _name(self, task: Task) -> str:
        parts = [task.env]
        parts += [task.backend] if self.several["backend"] else []
        parts += [f"seed {task.seed}"] if self.several["seed"] else []
        return "  ".join(parts)

    def _width(self) -> int:
        return max(len(self._name(examination.task)) for examination in self.examinations)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.refresh()
            self.live.stop()
        for examination, verdict in self.verdicts.items():
            if not verdict.passed:
                self.console.print(f"\n[bold]{self._name(examination.task)}[/]", soft_wrap=True)
                reason = verdict.error if verdict.score is None else shortfall(examination.task, verdict.score)
                self.console.print(reason, soft_wrap=True, markup=False, highlight=False)


def closing_line(verdicts: Sequence[Verdict], seconds: float, num_unjudged: int = 0, *, jobs: int = 1) -> str:
    """Return a one-line summary: how many examinations passed, in how many seconds, and the counts of other outcomes.

    seconds: the duration of all examinations together. num_unjudged: the number of examinations without a verdict,
    such as those that an interrupt stopped. jobs: how many ran at a time.
    """
    num_failed = sum(verdict.failed for verdict in verdicts)
    num_impossible = sum(verdict.cannot for verdict in verdicts)
    num_passed = len(verdicts) - num_failed - num_impossible
    notes = [f"{num_failed} failed"] if num_failed else []
    notes += [f"{num_impossible} cannot be learnt by it"] if num_impossible else []
    notes += [f"{num_unjudged} not judged"] if num_unjudged else []
    return (
        f"{num_passed} of {len(verdicts) + num_unjudged} passed in {seconds:.0f} s, {jobs} at a time: "
        f"{', '.join(notes) or 'all passed'}"
    )


def _outcome(verdict: Verdict) -> tuple[str, str]:
    return PASSED if verdict.passed else CANNOT if verdict.cannot else FAILED
