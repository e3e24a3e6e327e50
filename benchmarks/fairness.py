"""What a pool's preference for fast environments does to a learner's rows, and what ``make(fair=…)`` costs.

    python -m benchmarks.fairness [--short] [--cases environment episode] [--step-ms MS] [--picture]
    python -m benchmarks.fairness --learners [NAME …] [--seeds N …] [--step-ms MS]

Ten environments, whose steps take 0.5 ms (--step-ms) or ten times as long, by sleeping: half of the environments are
always slow, or each episode is, with equal probability. A slow step's reward is 1, a fast one's 0, so that the mean
reward of all rows should be 0.5. Contestants take turns of some thousand rows: synchronous, a plain pool with batches
of five, one with weights, and quotas of 1 and 8 rows. For each: rows per second, the mean reward, weighted if there are
weights, the slow environments' share of the rows, and the effective share of the rows, (sum of w)² / (n · sum of w²):
a mean over n rows with weights w has the variance of a mean over that share of n rows with equal weights.

The full form plays a million rows with each, in three quarters of an hour for each of the two cases, and stores each in
benchmarks/results/fairness.json; --short plays 4,000 in half a minute and stores nothing. --picture draws
docs/pictures/fairness.png from these results.

--learners trains PPO on ``ocean/uneven``, ours and those of Tianshou and TorchRL (benchmarks.uneven_learners), each on
steps of all environments and on those of the environments that finish first, 15,000 rows with each seed, and stores
each score in the same file; what is there already is skipped. Fast steps take 20 ms, as the other collectors need
milliseconds for a row, which would make all environments equally fast; synchronous learners step without sleeping, as
they get the same rows. It takes half an hour, of which most is spent asleep. Every run writes docs/fairness.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import pufferlib
from benchmarks.lines import table_text
from benchmarks.pages import fill, table, write_page
from benchmarks.processes import send_signal
from benchmarks.revisions import version
from benchmarks.venvs import NotInstalled, python_of
from pufferlib.tuning.bench import machine
from pufferlib.util.files import written_whole

__all__ = ["LEARNERS", "PAGE", "sections", "stored"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "fairness.md"
RESULT = Path(__file__).parent / "results" / "fairness.json"
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "fairness.png"
NUM_ENVS, BATCH_SIZE = 10, 5
SLOW, HORIZON = 10, 20
CASES = {"environment": False, "episode": True}
CONTESTANTS: dict[str, dict[str, Any]] = {
    "synchronous": {"backend": "multiprocessing", "batch_size": NUM_ENVS},
    "plain pool": {},
    "weights": {"fair": "weights"},
    "quota 1": {"fair": 1},
    "quota 8": {"fair": 8},
}
NUM_POINTS = 50  # of a curve
# By name: the library and the kind of benchmarks.uneven_learners.
LEARNERS = {
    "ours, synchronous": ("ours", "sync"),
    "ours, a pool with weights": ("ours", "weights"),
    "ours, a plain pool": ("ours", "async"),
    "Tianshou, Collector": ("tianshou", "sync"),
    "Tianshou, AsyncCollector": ("tianshou", "async"),
    "TorchRL, Collector": ("torchrl", "sync"),
    "TorchRL, AsyncBatchedCollector": ("torchrl", "async"),
}
BARS = {"sync": "≥ 0.95", "weights": "≥ 0.95", "async": "< 0.2"}  # by kind: the scores that are expected
NUM_LEARNT = 15_000  # rows of a training
SEEDS = (1, 2, 3, 4, 5)
LEARNERS_STEP_MS = 20.0
TIMEOUT_S = 900

Part = dict[str, Any]


class Paced(gymnasium.Env[Any, Any]):
    """An environment that is slow, if ``by_episode`` in half of its episodes, else in all if ``env_index`` is odd."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, by_episode: bool, step_s: float, env_index: int) -> None:
        self.by_episode, self.step_s, self.is_slow = by_episode, step_s, env_index % 2 == 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps_left = HORIZON
        if self.by_episode:
            self.is_slow = bool(self.np_random.integers(2))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.step_s * (SLOW if self.is_slow else 1))
        self.steps_left -= 1
        return np.zeros(1, np.float32), float(self.is_slow), self.steps_left == 0, False, {}


class Contestant:
    """A VecEnv, and sums over the rows that it has delivered."""

    def __init__(self, vec: pufferlib.VecEnv) -> None:
        self.vec, self.actions = vec, np.zeros(vec.batch_size, np.int64)
        self.rates: list[float] = []  # rows per second of each turn
        self.num_rows = np.zeros(NUM_ENVS)
        self.weight = self.squares = self.reward = 0.0
        self.num_weighted = 0
        self.curve: list[list[float]] = []  # rows so far, mean reward so far
        vec.async_reset()

    def play(self, num_rows: int) -> None:
        """Receive about ``num_rows`` rows in batches, and answer each of them."""
        start_s, num_batches = time.perf_counter(), num_rows // self.vec.batch_size
        for _ in range(num_batches):
            batch = self.vec.recv()
            self.vec.send(self.actions)
            self.num_rows[batch.env_ids] += 1
            weights = np.where(batch.masks, 1.0 if batch.weights is None else batch.weights.astype(float), 0.0)
            self.weight += float(weights.sum())
            self.squares += float((weights**2).sum())
            self.reward += float((weights * batch.rewards).sum())
            self.num_weighted += int(batch.masks.sum())
        self.rates.append(num_batches * self.vec.batch_size / (time.perf_counter() - start_s))
        self.curve.append([float(self.num_rows.sum()), self.reward / self.weight])

    def figures(self, slow: np.ndarray[Any, Any]) -> dict[str, Any]:
        """Return all figures. slow: the ids of slow environments."""
        return {
            "rows_per_s": self.rates,
            "mean_reward": self.reward / self.weight,
            "slow_share": float(self.num_rows[slow].sum() / self.num_rows.sum()),
            "shares": (self.num_rows / self.num_rows.sum()).tolist(),
            "effective_share": self.weight**2 / self.squares / self.num_weighted,
            "curve": self.curve,
        }


def measure(case: str, num_rows: int, num_turns: int, step_s: float) -> Part:
    """Return the figures of each contestant in a case, and the load average before and after.

    num_rows: of each contestant, in num_turns turns. step_s: the seconds of a fast step.
    """
    arguments: dict[str, Any] = {
        "backend": "pool",
        "num_envs": NUM_ENVS,
        "num_workers": NUM_ENVS,
        "batch_size": BATCH_SIZE,
        "seed": 1,
        "env_kwargs": {"by_episode": CASES[case], "step_s": step_s},
    }
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        contestants = {
            name: Contestant(stack.enter_context(pufferlib.make(Paced, **(arguments | kwargs))))
            for name, kwargs in CONTESTANTS.items()
        }
        for _ in range(num_turns):
            for contestant in contestants.values():
                contestant.play(num_rows // num_turns)
        slow = np.arange(1, NUM_ENVS, 2)
        figures = {name: contestant.figures(slow) for name, contestant in contestants.items()}
    return {"load": [load, os.getloadavg()[0]], "figures": figures}


def rows_table(parts: Mapping[str, Part]) -> str:
    """Return the measured cases as a Markdown table. Rows per second are a ratio to the plain pool's, turn by turn."""
    lines = []
    for case in (case for case in CASES if case in parts):
        contestants = parts[case]["figures"]
        plain = contestants["plain pool"]["rows_per_s"]
        for name, row in contestants.items():
            ratios = [rate / other for rate, other in zip(row["rows_per_s"], plain, strict=True)]
            ratio = f"{median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"
            cells = f"{row['mean_reward']:.3f}", f"{row['slow_share']:.2f}", ratio, f"{row['effective_share']:.2f}"
            lines.append((f"an {case}", name, *cells))
    heads = "mean reward (0.5 is due)", "slow environments' share of rows", "rows per second, to the plain pool's"
    return table(("speed belongs to", "", *heads, "effective share of rows"), lines)


# ----------------------------------------------------------------------------------------------------- learners


def learner_run(name: str, seed: int, step_ms: float, python: Path) -> dict[str, Any]:
    """Return the result of one training. Raises RuntimeError with the end of its standard error."""
    library, kind = LEARNERS[name]
    numbers = (seed, NUM_LEARNT, 0.0 if kind == "sync" else step_ms)
    process = subprocess.Popen(
        [python, "-W", "ignore", "-m", "benchmarks.uneven_learners", library, kind, *map(str, numbers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    except BaseException:
        send_signal(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise RuntimeError(f"{name}, seed {seed} ended with code {process.returncode}:\n{errors[-2000:]}")
    result: dict[str, Any] = json.loads([line for line in output.splitlines() if line.startswith("{")][-1])
    return {"learner": name, "seed": seed, "step_ms": numbers[-1], **result}


def learn(names: Sequence[str], seeds: Sequence[int], step_ms: float, parts: dict[str, Part]) -> None:
    """Train what ``parts`` lacks, and store each result as soon as it is there."""
    runs = parts.get("learners", {}).get("runs", [])
    for seed in seeds:
        for name in names:
            if any((run["learner"], run["seed"]) == (name, seed) for run in runs):
                continue
            library = LEARNERS[name][0]
            try:
                python = Path(sys.executable) if library == "ours" else python_of(library)
            except NotInstalled as error:
                print(f"{name}: {error}")
                continue
            runs.append(learner_run(name, seed, step_ms, python) | {"load": round(os.getloadavg()[0], 1)})
            print(runs[-1], flush=True)
            store(parts, "learners", {"num_rows": NUM_LEARNT, "runs": runs})


def learners_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the scores as a Markdown table: the lowest and the highest, and how many are as expected."""
    lines = []
    for name, (_, kind) in LEARNERS.items():
        scores = [run["score"] for run in runs if run["learner"] == name]
        if not scores:
            lines.append((name, "not measured", f"{BARS[kind]} expected", "–"))
            continue
        num_met = sum(score < 0.2 if kind == "async" else score >= 0.95 for score in scores)
        cells = f"{min(scores):.3f} – {max(scores):.3f}", f"{num_met} of {len(scores)} {BARS[kind]}"
        lines.append((name, *cells, shares(runs, name)))
    return table(("PPO on `ocean/uneven`", "score", "seeds", "rows of a fast environment to a slow one's"), lines)


def shares(runs: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return how many rows an always fast environment has for each row of an always slow one, if it is known."""
    known = [np.array(run["shares"]) for run in runs if run["learner"] == name and "shares" in run]
    return f"{np.mean([of[::4].sum() / of[1::4].sum() for of in known]):.1f}" if known else "–"


# ------------------------------------------------------------------------------------------------------ results


def stored() -> dict[str, Part]:
    """Return the stored parts, by name."""
    return json.loads(RESULT.read_text())["by_part"] if RESULT.exists() else {}


def store(parts: dict[str, Part], name: str, part: Part) -> None:
    """Store a part, with the facts of its measurement."""
    parts[name] = {"machine": machine(), "revision": version(), "date": time.strftime("%Y-%m-%d"), **part}
    with written_whole(RESULT) as file:
        file.write_text(table_text({"by_part": parts}))


def sections(parts: Mapping[str, Part]) -> dict[str, str]:
    """Return the texts of docs/fairness.md, by the names of their marks."""
    texts = dict.fromkeys(("fairness_rows", "fairness_learners"), "Not measured yet.")
    if any(case in parts for case in CASES):
        texts["fairness_rows"] = rows_table(parts)
    if "learners" in parts:
        texts["fairness_learners"] = learners_table(parts["learners"]["runs"])
    return texts


def draw(parts: Mapping[str, Part], path: Path) -> None:
    """Draw each environment's share of a plain pool's rows, and the mean reward over the rows so far."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    shares, *panels = figure.subplots(1, 3, width_ratios=(1, 1.1, 1.1))
    values = parts["environment"]["figures"]["plain pool"]["shares"]
    shares.bar(range(NUM_ENVS), values, color=["tab:orange" if index % 2 else "tab:blue" for index in range(NUM_ENVS)])
    shares.axhline(1 / NUM_ENVS, color="grey", linestyle=":", linewidth=1)
    shares.set(title="a plain pool's rows", xlabel="environment (odd: slow)", ylabel="share of the rows")
    for case, axes in zip(CASES, panels, strict=True):
        for name, row in parts[case]["figures"].items():
            rows, means = np.array(row["curve"]).T
            axes.plot(rows / 1000, means, label=name, linewidth=1.5)
        axes.axhline(0.5, color="grey", linestyle=":", linewidth=1)
        axes.set(title=f"speed belongs to an {case}", xlabel="thousand rows", ylim=(0, 1))
    panels[0].set_ylabel("mean reward so far")
    panels[1].legend(fontsize=8, frameon=False)
    for axes in (shares, *panels):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, format="png")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="4,000 rows of each; stores nothing")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="what speed belongs to")
    parser.add_argument("--step-ms", type=float, help="milliseconds of a fast step; more on a busy machine")
    parser.add_argument("--picture", action="store_true", help=f"draws {PICTURE.name}")
    parser.add_argument("--learners", nargs="*", choices=list(LEARNERS), help="trains these, by default all")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="of the learners")
    options = parser.parse_args()
    parts = stored()
    if options.picture and (missing := {*CASES} - {*options.cases, *parts}):
        parser.error(f"the picture needs both cases, and {', '.join(missing)} is not stored; leave out --cases")
    if options.learners is not None:
        step_ms = LEARNERS_STEP_MS if options.step_ms is None else options.step_ms
        learn(options.learners or list(LEARNERS), options.seeds, step_ms, parts)
    else:
        num_rows, num_turns = (4_000, 10) if options.short else (1_000_000, NUM_POINTS)
        step_s = (0.5 if options.step_ms is None else options.step_ms) / 1000
        measured: dict[str, Part] = {}
        for case in options.cases:
            measured[case] = measure(case, num_rows, num_turns, step_s)
            if not options.short:
                store(parts, case, measured[case])
        print(rows_table(measured))
        for case, part in measured.items():
            before, after = part["load"]
            print(f"Load average, an {case}: {before:.1f} before, {after:.1f} after")
        if options.picture:
            draw({**parts, **measured}, PICTURE)
            print(f"Wrote {PICTURE}")
    write_page(PAGE, fill(PAGE.read_text(), sections(parts)))


if __name__ == "__main__":
    main()
