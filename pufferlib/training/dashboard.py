"""A terminal dashboard for a training run: progress, speed, episodes, shares of time, and losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

NUM_INFOS = 12  # the most user scalars, and the most actors, to show; all of them are stored
WIDEST = 120  # maximum width in columns, so that numbers stay near their names
MARGIN = 3  # columns left free, so that a `^C` written by the terminal does not begin a new line
WIDE = 76  # minimum width in columns for blocks side by side
RATIOS = (5, 7, 8)  # of the blocks' widths
BORDERS = 4  # columns that the panel's borders take
COLORS = {"environments": "cyan", "inference": "green", "learning": "magenta"}


@dataclass(frozen=True)
class Dashboard:
    """A snapshot of a run's progress, drawn by rich. Seconds are training time; a step is one action of one agent.

    shares: each phase's share of the time, adding up to 1; empty if unknown.
    episodes, learning, infos: values, keyed by display name.
    actors: steps per second, keyed by node and by node/actor.
    """

    title: str
    num_steps: int
    total_steps: int
    seconds: float
    seconds_left: float
    steps_per_s: float
    mean_steps_per_s: float
    shares: Mapping[str, float] = field(default_factory=dict)
    episodes: Mapping[str, float] = field(default_factory=dict)
    learning: Mapping[str, float] = field(default_factory=dict)
    infos: Mapping[str, float] = field(default_factory=dict)
    actors: Mapping[str, float] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        wide, width = options.max_width >= WIDE, min(options.max_width - MARGIN, WIDEST)
        blocks = [_block("episodes", self.episodes or {"none has ended yet": None})]
        if self.shares:
            blocks.append(_times(self.shares))
        if self.learning:
            blocks.append(_block("learner", self.learning))
        parts = [self._progress(width - BORDERS), Text(), _side_by_side(blocks, RATIOS if wide else (1,))]
        # With many actors, show only the nodes.
        actors = {
            name: speed for name, speed in self.actors.items() if len(self.actors) <= NUM_INFOS or "/" not in name
        }
        for heading, rows in (("actors, steps/s", actors), ("infos", self.infos)):
            if rows:
                visible = dict(list(rows.items())[:NUM_INFOS])
                more = f", {len(visible)} of {len(rows)}" if len(rows) > len(visible) else ""
                parts += [Text(), _in_columns(f"{heading}{more}", visible, 3 if wide else 1)]
        title = Text(self.title, "bold")
        yield Panel(Group(*parts), title=title, title_align="left", box=box.ROUNDED, border_style="blue", width=width)

    def _progress(self, width: int) -> RenderableType:
        progress = min(1.0, self.num_steps / self.total_steps)
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(ratio=1)
        bar.add_column(justify="right", no_wrap=True)
        bar.add_row(ProgressBar(1.0, progress), Text(f"{progress:.0%}", "bold"))
        pieces = [
            f"{self.num_steps:,} of {self.total_steps:,} steps",
            f"{duration(self.seconds)} passed, {duration(self.seconds_left)} left",
        ]
        if self.mean_steps_per_s:
            pieces.append(f"{self.steps_per_s:,.0f} steps/s, mean {self.mean_steps_per_s:,.0f}")
        lines = [pieces[0]]
        for piece in pieces[1:]:  # wrap between pieces, not within them
            if len(lines[-1]) + len(piece) + 3 <= width:
                lines[-1] += f"   {piece}"
            else:
                lines.append(piece)
        return Group(bar, *map(Text, lines))


def number(value: float) -> str:
    """Format a number in at most about seven characters; integers below a million get no decimals."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-4:
        return f"{value:.1e}"
    if size >= 1000 or isinstance(value, int):
        return f"{value:,.0f}"
    return f"{value:.{4 if size < 0.1 else 3 if size < 10 else 1}f}"


def duration(seconds: float) -> str:
    """Format seconds as minutes:seconds or hours:minutes:seconds; a dash if they are not finite."""
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _grid(heading: str) -> Table:
    """Return an empty table that takes the full width, with a heading for its first column."""
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold blue")
    table.add_column(Text(heading), ratio=1, no_wrap=True, overflow="ellipsis")
    return table


def _block(heading: str, rows: Mapping[str, float | None]) -> Table:
    table = _grid(heading)
    table.add_column(justify="right", no_wrap=True)
    for name, value in rows.items():
        table.add_row(Text(name), Text("" if value is None else number(value), "bold"))
    return table


def _times(shares: Mapping[str, float]) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold blue")
    table.add_column("time", no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True, width=4)
    for name, share in shares.items():
        color = COLORS[name]
        table.add_row(name, ProgressBar(1.0, share, style="grey23", complete_style=color, finished_style=color),
                      Text(f"{share:.0%}", "bold"))  # fmt: skip
    return table


def _side_by_side(blocks: Sequence[RenderableType], ratios: Sequence[int]) -> Table:
    """Arrange blocks side by side, with widths in the given ratios; with only one ratio, one below another."""
    table = Table.grid(expand=True, padding=(0, 2, 0, 0), pad_edge=False)
    for ratio in ratios[: len(blocks)]:
        table.add_column(ratio=ratio)
    for row in [blocks] if len(ratios) > 1 else [[block] for block in blocks]:
        table.add_row(*row)
    return table


def _in_columns(heading: str, rows: Mapping[str, float], num_columns: int) -> RenderableType:
    """Return a block whose rows fill several columns, one column after another."""
    items = list(rows.items())
    height = -(-len(items) // num_columns)
    blocks = []
    for column in range(num_columns):
        blocks.append(_block(heading if column == 0 else "", dict(items[column * height : (column + 1) * height])))
    return _side_by_side(blocks, [1] * num_columns)
