"""Write the tables and plots of results into benchmarks/README.md, docs/benchmarks.md, docs/faults.md and README.md.

    python -m benchmarks.report

It replaces the text between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; text around these marks stays.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import against
from benchmarks.fault_tables import PAGE as FAULTS_PAGE
from benchmarks.fault_tables import fault_sections
from benchmarks.overhead_tables import overhead_tables
from benchmarks.pages import fill, table, write_page
from benchmarks.participants import FLOORS
from benchmarks.ratios import MedianRange, counterpart, figures, rates, ratios
from benchmarks.revisions import MARK
from benchmarks.targets_table import COLUMNS, FIGURES, targets_table
from benchmarks.workloads import LIBRARIES, OURS, WORKLOADS, Participant

__all__ = ["fill", "load", "sections"]

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PAGES = (Path(__file__).parent / "README.md", ROOT / "docs" / "benchmarks.md", ROOT / "README.md")
PLOTS = ROOT / "docs" / "benchmarks"
COMMON_PACKAGES = ("Gymnasium", "NumPy")  # reported with the version of each library
NO_PEERS = (*OURS, *FLOORS)  # not alternatives that a user could choose
STORING = ("loop", "processes")  # arrangements of bare loops

NATIVE = "its own native environments"  # of a library that steps no others
LEFT_OUT = "not in these runs"  # of a participant that was not run, as with --short

Result = Mapping[str, Any]


def load(folder: Path) -> dict[str, Result]:
    """Return the existing results by name, in the order of the workloads."""
    results = {}
    for name in WORKLOADS:
        path = folder / f"{name}.json"
        if path.exists():
            results[name] = json.loads(path.read_text())
    return results


def sections(results: Mapping[str, Result]) -> dict[str, str]:
    """Return the Markdown of each section by its name."""
    if not results:
        nothing = "Nothing has been measured yet: `python -m benchmarks.peers`."
        names = ("machine", "targets", "workloads", "grid", "losses", "missing")
        return {**dict.fromkeys(names, nothing), **overhead_tables({}), "speed": ""}
    return {
        "machine": machine_text(results),
        "targets": targets_table(results),
        "workloads": "\n\n".join(workload_text(result) for result in results.values() if not _cell(result)),
        **overhead_tables(results),
        "grid": grid_table(results),
        "losses": losses_table(results),
        "missing": missing_table(results),
        "speed": speed_text(results),
    }


# ---------------------------------------------------------------------------------------------------------- texts


def machine_text(results: Mapping[str, Result]) -> str:
    """Return the lines on the machine, its load, the dates, the commands and the libraries' versions."""
    all_results = list(results.values())
    dates = sorted(result["date"][:10] for result in all_results)
    versions = sorted({result["version"] for result in all_results})
    loads = [round(result["load"][0], 1) for result in all_results]
    lines = [
        f"- Machine: {'; '.join(sorted({result['machine'] for result in all_results}))}.",
        f"- Measured: {' to '.join(dict.fromkeys((dates[0], dates[-1])))}, version {', '.join(versions)}, by "
        f"{', '.join(sorted({'`' + result['command'] + '`' for result in all_results}))}.",
        f"- Repeats: {_range([result['repeats'] for result in all_results])}; a turn lasts "
        f"{_range([result['window_s'] for result in all_results])} s; load before a workload {_range(loads)}.",
        f"- Libraries: {_versions(all_results)}.",
    ]
    return "\n".join(lines)


def workload_text(result: Result) -> str:
    """Return the table of one workload: the figures of all participants, compared with ours on the same games."""
    workload, entries = result["workload"], result["participants"]
    played = workload["kind"] == "play"
    several = any(Participant.of(entry["name"]).library == "ours-old" for entry in entries)
    unit = "packs" if workload["name"] == "nested-pack" else "steps"
    heads = ["", *(head for head, _ in COLUMNS[workload["kind"]].values())]
    if played:
        heads = ["", *(["Gymnasium"] * several), f"{unit}/s (min – max)", "ours is … times"]
    rows = []
    for entry in sorted(entries, key=_order):
        row = [_named(entry) + ("" if "path" not in entry else f" ({entry['path'].partition(':')[0]})")]
        if played and several:
            row.append(entry.get("versions", {}).get("gymnasium", ""))
        if entry["status"] != "ran":
            row.append(f"{entry['status']}: {_short(entry['reason'])}")
        elif played:
            best = counterpart(entry, entries)
            compared = "" if best in (None, entry) else f"{MedianRange.of(ratios(rates(best), rates(entry))):.2f}"
            row += [f"{MedianRange.of(rates(entry)):,.0f}", compared]
        else:
            row += [_figure(figure, entry) for figure in COLUMNS[workload["kind"]]]
        rows.append(row + [""] * (len(heads) - len(row)))
    return f"### {workload['title'][:1].upper()}{workload['title'][1:]}\n\n{table(heads, rows)}"


def grid_table(results: Mapping[str, Result]) -> str:
    """Return the ratio of our best to the best peer, by delay and number of environments."""
    cells = {name: result for name, result in results.items() if "kind" in _cell(result)}
    if not cells:
        return "The grid has not been measured yet: `python -m benchmarks.peers --only 'grid-*'`."
    counts = sorted({_cell(result)["num_envs"] for result in cells.values()})
    rows: dict[str, dict[int, str]] = {}
    for result in cells.values():
        best = best_against_peers(result)
        text = "—" if best is None else f"{best[1]:.2f}, {_without_counts(best[0])}"
        rows.setdefault(_delay(_cell(result)), {})[_cell(result)["num_envs"]] = text
    heads = ("a step takes", *(f"{count} env{'s' * (count > 1)}" for count in counts))
    return table(heads, [(delay, *(row.get(count, "") for count in counts)) for delay, row in rows.items()])


def losses_table(results: Mapping[str, Result]) -> str:
    """Return the table of participants that were faster than our best arrangement, the fastest first.

    Both step the same games, except for libraries with native games, whose rows say so.
    """
    rows = []
    for result in results.values():
        for entry in result["participants"] if result["workload"]["kind"] == "play" else ():
            best = counterpart(entry, result["participants"])
            library, arrangement, *_ = Participant.of(entry["name"])
            # The other bare loops store less than an environment returns: they are only floors.
            if (
                best is None
                or library in OURS
                or (library in FLOORS and arrangement not in STORING)
                or not rates(entry)
            ):
                continue
            median_range = MedianRange.of(ratios(rates(best), rates(entry)))
            if median_range.median < 1:
                row = (result["workload"]["title"], _named(entry), best["name"], f"{median_range:.2f}")
                rows.append((median_range.median, row))
    if not rows:
        return "Nowhere in this run."
    return table(("workload", "faster is", "than", "ours is … times"), [row for _, row in sorted(rows)])


def missing_table(results: Mapping[str, Result]) -> str:
    """Return the table of participants that could not be installed or run, with reasons, or were left out."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, result in results.items():
        present = {entry["name"] for entry in result["participants"]}
        for participant in WORKLOADS[name].participants if name in WORKLOADS else ():
            if participant not in present:
                reasons.setdefault((participant, LEFT_OUT), []).append(name)
        for entry in result["participants"]:
            if entry["status"] != "ran":
                reason = f"{entry['status']}: {_short(entry['reason'])}"
                reasons.setdefault((entry["name"], reason), []).append(name)
    never = [name for name in WORKLOADS if name not in results]
    if never:
        reasons["all", "not measured yet"] = never
    if not reasons:
        return "Every participant of every workload ran."
    rows = [(name, reason, _some(workloads)) for (name, reason), workloads in reasons.items()]
    return table(("participant", "what happened", "in"), rows)


# -------------------------------------------------------------------------------------------------------- shared


def _figure(figure: str, entry: Mapping[str, Any]) -> str:
    return FIGURES[figure][1](MedianRange.of(figures(entry, figure)))


def speed_text(results: Mapping[str, Result]) -> str:
    """Return the Markdown of the README's picture; "" until all its workloads are measured."""
    if not all(name in results for name in SPEED):
        return ""
    return (
        "![Steps per second of every library: an environment that takes no time, HalfCheetah with its infos, replayed "
        "and played, and simple_tag with four agents](docs/benchmarks/speed.png)"
    )


def best_against_peers(result: Result) -> tuple[str, MedianRange] | None:
    """Return the fastest peer and our best arrangement's ratios to it; None if one side did not run."""
    peers = [entry for entry in result["participants"] if Participant.of(entry["name"]).library not in NO_PEERS]
    fastest = max((entry for entry in peers if rates(entry)), key=lambda entry: median(rates(entry)), default=None)
    best = fastest and counterpart(fastest, result["participants"])
    if best is None or fastest is None:
        return None
    return fastest["name"], MedianRange.of(ratios(rates(best), rates(fastest)))


def _named(entry: Mapping[str, Any]) -> str:
    """Return a participant's name, with a note if it steps only its own games."""
    name: str = entry["name"]
    return f"{name} ({NATIVE})" if LIBRARIES[Participant.of(name).library].own_games else name


def _cell(result: Result) -> Mapping[str, Any]:
    cell: Mapping[str, Any] = result["workload"]["cell"]
    return cell


def _delay(cell: Mapping[str, Any]) -> str:
    return f"{cell['mean_ms']:g} ms ± {cell['spread']} %, {cell['kind']}" if cell["mean_ms"] else "no time"


def _order(entry: Mapping[str, Any]) -> tuple[bool, float]:
    figures = rates(entry)
    return not figures, -median(figures) if figures else 0.0


def _versions(results: Iterable[Result]) -> str:
    titles = {}
    for result in results:
        for entry in result["participants"]:
            name = Participant.of(entry["name"]).library
            if name not in (*FLOORS, "ours-portable") and "versions" in entry:
                library, versions = LIBRARIES[name], entry["versions"]
                others = [
                    f"{title} {versions[title.lower()]}" for title in COMMON_PACKAGES if title.lower() in versions
                ]
                others = [other for other in others if not other.startswith(library.title)]
                title = " ".join(filter(None, (library.title, versions.get(library.package, ""))))
                titles[name] = f"{title} with {' and '.join(others)}" if others else title
    return "; ".join(titles.values())


def _range(values: Sequence[float]) -> str:
    return " – ".join(dict.fromkeys(f"{value:g}" for value in (min(values), max(values))))


def _short(reason: str) -> str:
    return reason.replace("|", "\\|").replace("\n", " ")[:160]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _without_counts(name: str) -> str:
    return name.partition("@")[0] + (" pool" if "b" in name.partition("@")[2] else "")


# ---------------------------------------------------------------------------------------------------------- plots


def draw(results: Mapping[str, Result], folder: Path) -> list[Path]:
    """Draw the plots of all existing results; return their paths."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [
        draw_points(results, OVERHEAD, folder / "overhead.png", "steps/s of an environment that takes no time"),
        draw_points(results, REAL_WORKLOADS, folder / "real.png", "steps/s of real environments"),
        *([draw_points(results, SPEED, folder / "speed.png", SPEED_TITLE)] if speed_text(results) else []),
        draw_grid(results, folder / "grid.png"),
    ]
    return [path for path in drawn if path is not None]


OVERHEAD = ("trivial-sync", "trivial-pool", "trivial-process-per-env", "trivial-serial-32", "large-sync", "large-pool")
REAL_WORKLOADS = ("cartpole", "minigrid", "simple-tag", "knights-archers-zombies", "atari", "atari-native")
SPEED = ("trivial-serial-32", "replayed-half-cheetah", "played-half-cheetah", "played-simple-tag")  # of the README
SPEED_TITLE = "steps/s: without work; with infos, replayed and played; of four agents"
COLOURS = {
    "ours": "#c8341b",
    "ours-old": "#8f2413",
    "ours-portable": "#e08a76",
    "bare": "#222222",
    "bare-old": "#222222",
}
OTHERS = "#4f7396"


def draw_points(results: Mapping[str, Result], names: Sequence[str], path: Path, title: str) -> Path | None:
    """Draw a panel per workload: medians as points on a logarithmic scale, with lines from least to greatest."""
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter, NullFormatter

    chosen = [results[name] for name in names if name in results]
    ran = [sorted((entry for entry in result["participants"] if rates(entry)), key=_order) for result in chosen]
    if not chosen:
        return None
    columns, text = min(2, len(chosen)), EngFormatter(sep="", places=1)
    heights = [1.5 + max(map(len, ran[first : first + columns])) for first in range(0, len(chosen), columns)]
    figure, grid = pyplot.subplots(
        *(len(heights), columns),
        figsize=(6.2 * columns, 0.5 + 0.24 * sum(heights)),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    for axes, result, entries in zip(grid.flat, chosen, ran, strict=False):
        for row, entry in enumerate(entries):
            median_range, library = MedianRange.of(rates(entry)), Participant.of(entry["name"]).library
            colour = COLOURS.get(library, OTHERS)
            axes.plot([median_range.low, median_range.high], [row, row], color=colour, linewidth=2, alpha=0.5)
            axes.plot([median_range.median], [row], "o", color=colour, markersize=6)
            where = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center", "fontsize": 7}
            axes.annotate(text(median_range.median), (median_range.median, row), color=colour, **where)
        axes.set_yticks(range(len(entries)), [entry["name"] for entry in entries])
        axes.set_ylim(len(entries) - 0.4, -0.8)
        axes.set_xscale("log")
        axes.margins(x=0.08)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_title(result["workload"]["title"], fontsize=10)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(grid.flat)[len(chosen) :]:
        axes.axis("off")
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def draw_grid(results: Mapping[str, Result], path: Path) -> Path | None:
    """Draw the grid of the ratios of our best to the best peer; red below 1."""
    import numpy as np
    from matplotlib import pyplot

    cells = {
        (_delay(_cell(result)), _cell(result)["num_envs"]): best_against_peers(result)
        for result in results.values()
        if "kind" in _cell(result)
    }
    if not cells:
        return None
    delays = list(dict.fromkeys(delay for delay, _ in cells))
    counts = sorted({count for _, count in cells})
    values = np.full((len(delays), len(counts)), np.nan)
    for (delay, count), best in cells.items():
        if best is not None:
            values[delays.index(delay), counts.index(count)] = best[1].median
    figure, axes = pyplot.subplots(figsize=(2.2 + 1.6 * len(counts), 1.2 + 0.38 * len(delays)), layout="constrained")
    axes.imshow(np.log2(values), cmap="RdYlGn", vmin=-2, vmax=2, aspect="auto")
    for row, column in np.ndindex(values.shape):
        if np.isfinite(values[row, column]):
            axes.text(column, row, f"{values[row, column]:.2f}", ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(counts)), [f"{count} env{'s' * (count > 1)}" for count in counts])
    axes.set_yticks(range(len(delays)), delays)
    axes.set_title("our best over the best peer, steps/s", fontsize=10)
    axes.tick_params(labelsize=9, length=0)
    axes.spines[:].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="the folder of results")
    options = parser.parse_args()
    results = load(options.results)
    texts = sections(results)
    texts |= fault_sections(options.results / "faults.json")
    texts["against"] = against.section(options.results)
    for page in (*PAGES, FAULTS_PAGE):
        write_page(page, fill(page.read_text(), texts))
        print(page.relative_to(ROOT))
    for page in sorted((ROOT / "docs").glob("*.md")):  # these name the age of their results
        if MARK.search(page.read_text()):
            write_page(page, page.read_text())
    for path in draw(results, PLOTS):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
