"""How a run is watched: a live line in a terminal, plain lines elsewhere, and TensorBoard scalars in its folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

NUM_PLAIN_LINES = 10
WIDTH_OF_NEWS = 80  # columns


class Report:
    """A context manager around training; call ``update`` after each piece of it."""

    def __init__(self, title: str, total_steps: int, folder: Path | None, console: Console | None = None) -> None:
        """folder: where TensorBoard scalars go; None: nowhere."""
        self.title, self.total_steps, self.folder = title, total_steps, folder
        self.console = Console(highlight=False) if console is None else console
        self.writer = None
        self.live: Progress | None = None
        self.next_line = 0.0

    def __enter__(self) -> Report:
        if self.folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder))
        if self.console.is_terminal:
            bar = [BarColumn(bar_width=20)] if self.console.width > WIDTH_OF_NEWS + 20 else []
            self.live = Progress(
                TextColumn("[bold]{task.description}"),
                *bar,
                TextColumn("{task.percentage:>3.0f}%  {task.fields[news]}"),
                TimeRemainingColumn(compact=True),
                TextColumn("left"),
                console=self.console,
            )
            self.task = self.live.add_task(self.title, total=self.total_steps, news="")
            self.live.start()
        self.start_s = time.perf_counter()
        return self

    def update(self, num_steps: int, scalars: Mapping[str, float]) -> None:
        """Show that ``num_steps`` have been played, and store scalars by their TensorBoard names."""
        seconds = time.perf_counter() - self.start_s
        steps_per_second = num_steps / seconds
        if self.writer is not None:
            for name, value in {**scalars, "charts/SPS": steps_per_second}.items():
                self.writer.add_scalar(name, value, num_steps)
        news = f"{num_steps:,} steps  {steps_per_second:,.0f}/s"
        for name in ("episodic_return", "score"):
            if f"charts/{name}" in scalars:
                news += f"  {name.removeprefix('episodic_')} {scalars[f'charts/{name}']:.2f}"
        done = min(1.0, num_steps / self.total_steps)
        if self.live is not None:
            self.live.update(self.task, completed=min(num_steps, self.total_steps), news=news)
        elif done >= self.next_line:
            self.next_line += 1 / NUM_PLAIN_LINES
            line = f"{self.title}  {done:.0%}  {news}  {seconds / done - seconds:.0f} s left"
            self.console.print(line, soft_wrap=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()
        if self.writer is not None:
            self.writer.close()
