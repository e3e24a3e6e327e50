"""Run the demo trainer on all of Ocean with ten seeds; it was not tuned on the second five.

    python -m benchmarks.ocean                     all of them, on serial and on a pool: about half an hour
    python -m benchmarks.ocean --seeds 1 101       some of them
    python -m benchmarks.ocean --ratio --seeds 1   only compare the cost of a pool with serial, and write nothing

It trains one task at a time, since it reports seconds, and alternates serial and pool, so that both see the same
machine. Seconds are left out of the page if the load was above twice the number of CPUs. Runs that
benchmarks/results/ocean.json already holds are skipped, so a stopped run can go on. Writes that file, with a line per
environment, docs/ocean_scores.md, docs/curves/ocean.png and docs/pictures/ocean.svg. Needs pufferlib[train,pettingzoo].
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.lines import table_text
from benchmarks.pages import mark, write_page
from benchmarks.processes import children_cpu_s
from benchmarks.revisions import version
from benchmarks.svg import write_svg
from ocean.suite import demo
from ocean.suite.examining import Examination, Verdict, examined
from ocean.suite.table import Screen
from ocean.suite.tasks import NUM_EPISODES, Task, names, tasks
from pufferlib.training.plot import Curve, band_of, read
from pufferlib.tuning.bench import machine
from pufferlib.util.files import written_whole
from pufferlib.vectorization.core.plan import available_cpus
from pufferlib.version import __version__

FOLDER = Path(__file__).parent
DOCS = FOLDER.parent / "docs"
TUNED = (1, 2, 3, 4, 5)  # the settings were chosen with these
SEEDS = (*TUNED, 101, 102, 103, 104, 105)
BACKENDS = ("serial", "pool")
WIDTH = 72  # columns of the picture
NUM_POINTS = 60  # of a stored curve
# Scores of the original by PufferLib's blog, after 30,000 steps each.
ORIGINAL = {"bandit": 0.904, "memory": 0.979, "multiagent": 1.0, "password": 1.0, "spaces": 0.972, "squared": 0.971,
            "stochastic": 0.998, "continuous": 0.907}  # fmt: skip
Key = tuple[str, str, int]  # environment, backend, seed
Results = dict[str, dict[str, Any]]  # by environment: machine, date, version, revision, runs


def runs_of(task: Task) -> Path:
    """Return the folder of a task's run, which exists until its curve is read."""
    return Path(tempfile.gettempdir()) / f"puffer-ocean-{task.env.replace('/', '-')}-{task.backend}-{task.seed}"


def train(task: Task) -> Callable[[Any], Any]:
    """Return the demo trainer of a task, with a run folder that stores its curves."""
    return demo.train(task, runs=str(runs_of(task)))


def curve_of(task: Task) -> list[list[float]]:
    """Return the score of the last hundred episodes over the steps of a run, and delete the run."""
    (run,) = runs_of(task).iterdir()
    curve = read(run, "charts/score")
    shutil.rmtree(runs_of(task))
    chosen = np.unique(np.linspace(0, len(curve.steps) - 1, NUM_POINTS).astype(int))
    return [[int(curve.steps[point]), round(float(curve.values[point]), 4)] for point in chosen]


def runs_in(results: Results) -> dict[Key, dict[str, Any]]:
    """Return all runs of the results."""
    return {(env, run["backend"], run["seed"]): run for env, facts in results.items() for run in facts["runs"]}


def _measured(results: Results) -> list[str]:
    """Return a line for each machine, date and version; all but that of most environments name theirs."""
    envs: dict[str, list[str]] = {}
    for env, facts in results.items():
        envs.setdefault(f"{facts['machine']}. {facts['date']}, version {facts['version']}.", []).append(env)
    first, *others = sorted(envs, key=lambda text: -len(envs[text]))
    return [first, *(f"{', '.join(envs[text])}: {text}" for text in others)]


def page(results: Results) -> str:
    """Return docs/ocean_scores.md."""
    runs = runs_in(results)
    timed = {key: run["seconds"] for key, run in runs.items() if not run.get("busy")}
    seeds = sorted({seed for _, _, seed in runs})
    lines = [
        "# Ocean: scores and seconds of the demo trainer",
        "",
        "`python -m benchmarks.ocean` made this page from runs of `puffer ocean` with seeds "
        f"{', '.join(map(str, seeds))}.",
        f"Of these, {', '.join(str(seed) for seed in seeds if seed not in TUNED) or 'none'} played no part in choosing "
        'the settings (`[ppo."ocean/*"]` and the tables after it in',
        "[pufferlib/training/defaults.toml](../pufferlib/training/defaults.toml), each exception with its reason).",
        f"A score is the mean over {NUM_EPISODES:,} fresh episodes after training, with sampled actions; a cell has",
        "the lowest and the highest of the seeds. Seconds are training time, including the making of the environments:",
        "the median and the longest. *Original* is the score that PufferLib's blog reports for its own suite, the",
        "model of this one, whose environments are not quite the same. Seconds on a busy machine are left out.",
        "",
        *_measured(results),
        "Raw results: [benchmarks/results/ocean.json](../benchmarks/results/ocean.json).",
        "",
        mark("revision_ocean"),
        "",
        "| environment | steps | chance | bar | score, serial | score, pool | seconds, serial | seconds, pool "
        "| original | passed |",
        "|" + " --- |" * 10,
    ]
    for task in tasks():
        cells = [task.env, f"{task.total_steps:,}", f"{task.chance:.3f}", f"{task.bar:.2f}"]
        task_runs = {name: [run for (env, backend, _), run in runs.items() if (env, backend) == (task.env, name)]
                 for name in BACKENDS}  # fmt: skip
        for name in BACKENDS:
            scores = [run["score"] for run in task_runs[name]]
            cells.append("—" if not scores else f"{min(scores):.3f} – {max(scores):.3f}")
        for name in BACKENDS:
            seconds = [value for (env, backend, _), value in timed.items() if (env, backend) == (task.env, name)]
            cells.append("—" if not seconds else f"{median(seconds):.1f}, {max(seconds):.1f}")
        both = [run for name in BACKENDS for run in task_runs[name]]
        original = ORIGINAL.get(task.env.removeprefix("ocean/"))
        cells += ["—" if original is None else f"{original:.3f}"]
        cells += [f"{sum(run['score'] >= task.bar for run in both)} of {len(both)}"]
        lines.append(f"| {' | '.join(cells)} |")
    total = {name: [sum(value for (_, backend, at), value in timed.items() if (backend, at) == (name, seed))
                    for seed in seeds] for name in BACKENDS}  # fmt: skip
    untimed = [env for env in results if not any(key[0] == env for key in timed)]
    lines += [
        "",
        f"All environments{' but ' if untimed else ''}{', '.join(untimed)}, one after another, take "
        + " and ".join(f"{median(total[name]):.0f} s of training on {name}" for name in BACKENDS)
        + " (medians over seeds).",
        "",
        "The curves show training on a pool: the score of the last hundred episodes, its mean over seeds, and the 95 %",
        "interval of that mean. The dotted line is the bar.",
        "",
        "![curves of all environments](curves/ocean.png)",
        "",
    ]
    return "\n".join(lines)


def picture(runs: Mapping[Key, Mapping[str, Any]], out: Path) -> None:
    """Draw the curves of all environments on a pool."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = [task for task in tasks() if any(key[:2] == (task.env, "pool") for key in runs)]
    figure = Figure(figsize=(11, 2.2 * -(-len(drawn) // 4)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(-(-len(drawn) // 4), 4, sharey=True, squeeze=False).flat)
    for task, axes in zip(drawn, panels, strict=False):
        curves = [Curve(*np.array(run["curve"]).T) for key, run in runs.items() if key[:2] == (task.env, "pool")]
        band = band_of(task.env, curves)
        (line,) = axes.plot(band.x / 1000, band.mean)
        axes.fill_between(band.x / 1000, band.low, band.high, color=line.get_color(), alpha=0.2, linewidth=0)
        axes.axhline(task.bar, color="grey", linestyle=":", linewidth=1)
        axes.set_title(task.env, fontsize=9)
        axes.set(xlabel="thousand steps", ylim=(0, 1.05))
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(drawn) :]:
        axes.set_axis_off()
    figure.savefig(out, dpi=110, format="png")
    print(f"Wrote {out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=names())
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--ratio", action="store_true", help="compare seconds of training on a pool with serial's")
    parser.add_argument("--again", action="store_true", help="run again what the results hold already")
    parser.add_argument("--results", type=Path, default=FOLDER / "results" / "ocean.json", metavar="FILE")
    options = parser.parse_args()
    options.seeds = list(dict.fromkeys(options.seeds))
    results: Results = json.loads(options.results.read_text())["by_env"] if options.results.exists() else {}
    runs = runs_in(results)
    chosen = sorted(
        tasks(options.env, options.backends, options.seeds), key=lambda task: options.seeds.index(task.seed)
    )
    if options.ratio:
        return ratio(chosen)
    due = [task for task in chosen if options.again or (task.env, task.backend, task.seed) not in runs]
    for task in due:
        shutil.rmtree(runs_of(task), ignore_errors=True)  # left by a stopped run
    for examination, verdict in examined([Examination(task, "benchmarks.ocean:train") for task in due]):
        task = examination.task
        print(f"{task.env:20} {task.backend:8} {task.seed:4}  {verdict.score}  {verdict.seconds:.1f} s {verdict.error}")
        assert verdict.score is not None, verdict.error
        runs[task.env, task.backend, task.seed] = {
            "backend": task.backend,
            "seed": task.seed,
            "score": verdict.score,
            "seconds": round(verdict.seconds, 2),
            "busy": os.getloadavg()[0] > 2 * available_cpus(),
            "curve": curve_of(task),
        }
        date = datetime.date.today().isoformat()
        facts = {"machine": machine(), "date": date, "version": __version__, "revision": version()}
        results[task.env] = {**facts, "runs": [runs[key] for key in sorted(runs) if key[0] == task.env]}
        write(options.results, results)
    write_page(DOCS / "ocean_scores.md", page(results))
    picture(runs, DOCS / "curves" / "ocean.png")
    terminal(runs, options.seeds[0])


def ratio(chosen: Sequence[Task]) -> None:
    """Train on each backend in turns; print the wall and CPU seconds of each, and the ratio of the sums.

    CPU seconds are those of the process and its workers, including one episode that they play after training.
    """
    costs: dict[str, list[Any]] = {name: [] for name in BACKENDS}  # (seconds, CPU seconds) of each training
    print(f"{machine()}\nload before: {os.getloadavg()[0]:.1f}")
    before = children_cpu_s()
    for examination, verdict in examined([Examination(task, num_episodes=1) for task in chosen]):
        task, after = examination.task, children_cpu_s()
        assert verdict.score is not None, verdict.error
        costs[task.backend].append((verdict.seconds, after - before))
        print(
            f"{task.env:20} {task.backend:8} {task.seed:4}  {verdict.seconds:6.1f} s, CPU {after - before:6.1f} s",
            flush=True,
        )
        before = after
    print(f"load after: {os.getloadavg()[0]:.1f}")
    totals = {name: np.sum(values, 0) for name, values in costs.items() if values}
    for name, (seconds, cpu_s) in totals.items():
        print(f"all on {name}: {seconds:.1f} s, CPU {cpu_s:.1f} s")
    if len(totals) == len(BACKENDS):
        seconds, cpu_s = totals["pool"] / totals["serial"]
        print(f"pool / serial: {seconds:.2f} by the clock, {cpu_s:.2f} in CPU seconds")


def write(path: Path, results: Results) -> None:
    """Write the results, one environment per line."""
    with written_whole(path) as part:
        part.write_text(table_text({"by_env": {env: results[env] for env in sorted(results)}}))


def terminal(runs: Mapping[Key, Mapping[str, Any]], seed: int) -> None:
    """Draw the terminal of `puffer ocean --jobs 1 --seed SEED` at its end, without runs on a busy machine."""
    busy = {key for key, run in runs.items() if run.get("busy")}
    examinations = [
        Examination(task) for task in tasks(seeds=[seed]) if (task.env, task.backend, task.seed) not in busy
    ]
    by_key = {
        (examination.task.env, examination.task.backend, examination.task.seed): examination
        for examination in examinations
    }
    screen = Screen(examinations, Console())
    for key in by_key.keys() & runs.keys():
        run, task = runs[key], by_key[key].task
        screen.verdicts[by_key[key]] = Verdict(run["score"], task.bar, run["seconds"])
    write_svg(screen.table(), "puffer ocean --jobs 1", DOCS / "pictures" / "ocean.svg", WIDTH)


if __name__ == "__main__":
    main()
