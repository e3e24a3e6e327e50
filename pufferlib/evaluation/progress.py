"""A progress bar for evaluations, with the time left. It needs rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pufferlib.errors import MissingExtra

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(num_episodes: int) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error; yield a function to call with the numbers of finished episodes and of steps.

    num_episodes: how many episodes there are in all. Raises MissingExtra if rich is not installed.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError as error:
        raise MissingExtra(
            "a progress bar needs rich, which is not installed; run `pip install rich`, or pass a function as progress"
        ) from error
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("episodes, {task.fields[steps]:,} steps, left:")
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=num_episodes, steps=0)
        yield lambda num_finished, num_steps: bar.update(task, completed=num_finished, steps=num_steps)
