"""Pictures of a league: a heat map of the payoffs, a curve of NashConv, and the mixtures over iterations.

Each picture is a PNG file, narrow enough to be read on a phone. Drawing needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pufferlib.errors import MissingExtra
from pufferlib.population.payoff import PayoffTable
from pufferlib.util.files import written_whole

__all__ = ["draw_mixtures", "draw_nash_conv", "draw_payoffs"]

Row = Mapping[str, Any]  # of a league's ``rows``

MOST_WRITTEN = 6  # policies per seat up to which the heat map shows numbers
MOST_NAMED = 10  # policies of a seat up to which each is named; more are shown on a colour bar
MOST_TICKS = 9
WIDTH, DPI = 5.0, 180  # inches
DARK = 0.6  # share of the colour range above which the numbers are white


def draw_payoffs(table: PayoffTable, path: str | Path, names: Sequence[str] = ()) -> Path:
    """Draw the first seat's payoffs against the second seat, averaged over any other seats' policies; return the path.

    names: the seats' names; by default, "seat 0", "seat 1", …. Cells without a payoff stay white. Raises MissingExtra
    if matplotlib is not installed.
    """
    names = names or _seat_names(table)
    rows, columns = [*map(len, table.populations), 1][:2]
    means = table.means[0].reshape(rows, columns, -1).mean(-1)
    figure = _new_figure(float(np.clip(3.9 * rows / columns, 1.5, 7)) + 0.7)
    (axes,) = figure.axes
    most = float(np.nanmax(np.abs(means), initial=0)) or 1.0
    image = axes.imshow(means, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    for axis, ids in zip((axes.yaxis, axes.xaxis), table.populations, strict=False):
        step = -(-len(ids) // MOST_TICKS)
        axis.set_ticks(range(0, len(ids), step), [str(policy) for policy in ids[::step]])
    if max(means.shape) <= MOST_WRITTEN:
        for (row, column), value in np.ndenumerate(means):
            color = "white" if abs(value) > DARK * most else "black"
            axes.text(column, row, f"{round(value, 2) + 0.0:.2f}", ha="center", va="center", color=color)
    axes.set(ylabel=f"policy of {names[0]}", xlabel=f"policy of {names[1]}" if len(names) > 1 else "")
    figure.colorbar(image, label=f"{names[0]} gets")
    return _save(figure, path)


def draw_nash_conv(rows: Sequence[Row], path: str | Path) -> Path | None:
    """Draw NashConv over the iterations that have it; return the path, or None if there are no such iterations.

    Raises MissingExtra if matplotlib is not installed.
    """
    measured = [row for row in rows if row["nash_conv"] is not None]
    if not measured:
        return None
    figure, ticker = _new_figure(3.4), _ticker()
    (axes,) = figure.axes
    values = [row["nash_conv"] for row in measured]
    axes.plot([row["iteration"] for row in measured], values, marker="o", markersize=3)
    if min(values) > 0 and max(values) > 10 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.set(xlabel="iteration", ylabel="NashConv of the mixture")
    axes.grid(alpha=0.3)
    return _save(figure, path)


def draw_mixtures(rows: Sequence[Row], table: PayoffTable, path: str | Path, names: Sequence[str] = ()) -> Path:
    """Draw each seat's mixture over iterations as bands, one per policy and as wide as its share; return the path.

    The oldest policy's band is lowest and darkest. rows: a league's rows, at least one. names: as for ``draw_payoffs``.
    Raises MissingExtra if matplotlib is not installed.
    """
    names, populations = names or _seat_names(table), table.populations
    figure, ticker = _new_figure(0.8 + 2.4 * len(populations), len(populations)), _ticker()
    edges = [row["iteration"] for row in rows]
    edges.append(edges[-1] + 1)  # a mixture holds for a whole iteration
    for seat, (axes, ids) in enumerate(zip(figure.axes, populations, strict=True)):
        shares = np.zeros((len(ids), len(edges)))
        for column, row in enumerate([*rows, rows[-1]]):
            shares[: len(row["mixture"][seat]), column] = row["mixture"][seat]
        colors = _colors(len(ids))
        bands = axes.stackplot(edges, shares, colors=colors(range(len(ids))), step="post")
        axes.set(title=names[seat], ylabel="share", ylim=(0, 1), xlim=(edges[0], edges[-1]))
        axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        if len(ids) <= MOST_NAMED:
            style = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False, "handlelength": 1}
            axes.legend(bands[::-1], list(map(str, reversed(ids))), title="policy", **style)
        else:
            bar = figure.colorbar(_scale(colors, len(ids)), ax=axes, label="policy")
            step = -(-len(ids) // MOST_TICKS)
            bar.set_ticks(range(0, len(ids), step), labels=[str(policy) for policy in ids[::step]])
            bar.minorticks_off()
    figure.axes[len(populations) - 1].set_xlabel("iteration")
    return _save(figure, path)


def _seat_names(table: PayoffTable) -> list[str]:
    return [f"seat {number}" for number in range(table.num_seats)]


def _new_figure(height: float, num_panels: int = 1) -> Any:
    """Return a figure of panels, one above the other. height: the figure's height in inches.

    Raises MissingExtra if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra('pictures need matplotlib: pip install "pufferlib[train]"') from error
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, and leaves pyplot's state alone
    figure.subplots(num_panels, sharex=True)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _ticker() -> Any:
    from matplotlib import ticker

    return ticker


def _colors(num_policies: int) -> Any:
    """Return a colour map with one colour per policy, from dark to light."""
    from matplotlib import colormaps

    return colormaps["viridis"].resampled(num_policies)


def _scale(colors: Any, num_policies: int) -> Any:
    """Return a mapping from a policy's index in its population to its colour, for a colour bar."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm

    return ScalarMappable(BoundaryNorm(np.arange(num_policies + 1) - 0.5, num_policies), colors)


def _save(figure: Any, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as part:
        figure.savefig(part, dpi=DPI, format="png")
    return path
