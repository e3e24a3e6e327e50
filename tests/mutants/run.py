"""Train mutants and show the matrix while it grows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live

from ocean.suite.examining import Examination, Verdict, examined
from pufferlib.util.files import written_whole

from .checks import checked_elsewhere
from .matrix import Matrix
from .page import page
from .trainings import CORRECT, Results, mutant_of, short

__all__ = ["run"]

DRAW_INTERVAL_S = 0.5


class Window:
    """A context manager that shows the matrix: a growing table in a terminal, else one line for each training."""

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
        """Draw the table again, at most every ``DRAW_INTERVAL_S`` seconds."""
        if self.live is not None and time.monotonic() > self.drawn_s + DRAW_INTERVAL_S:
            self.live.update(self.matrix.table(), refresh=True)
            self.drawn_s = time.monotonic()

    def show(self, examination: Examination, verdict: Verdict) -> None:
        """Show the verdict of a training."""
        if self.live is None:
            task, score = examination.task, "no score" if verdict.score is None else f"score {verdict.score:.3f}"
            self.console.print(
                f"{mutant_of(examination) or CORRECT:<30}{short(task):<12}seed {task.seed}  {score}, "
                f"bar {verdict.bar:.2f}  {verdict.seconds:.1f} s  {'passed' if verdict.passed else 'caught'}",
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
    examinations: Sequence[Examination],
    results: Results,
    console: Console,
    *,
    mutants: Sequence[str] = (),
    jobs: int = 1,
    timeout_s: float,
    page_file: Path | None = None,
) -> Matrix:
    """Run the checks, and the trainings that have no result yet; show the progress, and return the matrix.

    mutants: the rows, by name; () for all. jobs: trainings at a time. page_file: gets the matrix as a page, again after
    each training.
    """
    matrix = Matrix(examinations, results, mutants)

    def write_page() -> None:
        if page_file is not None:
            with written_whole(page_file) as part:
                part.write_text(page(matrix))

    results.save()  # before anything is trained: the file may not be writable
    results.checks = checked_elsewhere()
    results.save()
    write_page()
    missing = [examination for examination in examinations if results.get(examination) is None]
    if missing:
        import torch._dynamo  # noqa: F401  or the first optimizer of each process imports it, for a second
    with Window(matrix, console) as window:
        for examination, verdict in examined(missing, jobs=jobs, timeout_s=timeout_s, meanwhile=window.refresh):
            results.add(examination, verdict)
            write_page()
            window.show(examination, verdict)
    for name, sentences in matrix.all_faults.items():
        console.print(f"{name}: {'; '.join(sentences)}", soft_wrap=True, highlight=False)
    return matrix
