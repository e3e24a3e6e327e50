"""Measure PSRO with learned responses: the distance from an equilibrium, by time and episodes.

    python -m benchmarks.learned_oracles [--only CASE] [--seeds 1 2 3] [--minutes 20] [--page]

A response is learnt (pufferlib/training/oracles.py) over a VecEnv of ``GameEnv``s, against opponents drawn for each
episode from the meta-solver's mixture; it starts from the seat's last response. ``kuhn_poker``, ``leduc_poker``: by
tabular DQN. ``leduc_network``: by DQN with a network of two hidden layers of 64, which reads the game's information
state tensor; its settings were chosen on other seeds than 1, 2 and 3. Payoffs are sampled. NashConv is exact
(``ExactOracle.nash_conv``) and not part of the learning, but its computation counts in the times. The program is one
process with one thread: its CPU time is the time on an idle core, and limits each run (--minutes); the wall time shows
how busy the machine was. A run ends earlier if NashConv reaches the last of its case's ``levels``. Writes
benchmarks/results/learned_oracles.json after each iteration, one line per run, then the picture and the tables of
docs/population.md; --page writes only these.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from threadpoolctl import threadpool_limits

import pufferlib
from benchmarks.lines import table_text
from benchmarks.pages import fill, table, write_page
from benchmarks.ratios import MedianRange
from benchmarks.revisions import version
from cleanrl_demo import dqn
from pufferlib.population import Evaluator, ExactOracle, PayoffTable, PolicyPool, Solver, psro, solvers
from pufferlib.population.games import GameEnv
from pufferlib.training import RunConfig
from pufferlib.training.oracles import LearnedOracle
from pufferlib.tuning.bench import machine
from pufferlib.util.files import written_whole

__all__ = ["CASES", "curve", "sections"]

FOLDER = Path(__file__).parent
RESULT = FOLDER / "results" / "learned_oracles.json"
PAGE = FOLDER.parent / "docs" / "population.md"
PICTURE = FOLDER.parent / "docs" / "pictures" / "learned-oracles.svg"


@dataclass(frozen=True)
class Case:
    """A game and the learner of responses. config: the learner's; its total_steps are those of one response.

    levels: of NashConv to report; the last one ends a run. target: of NashConv, which a complete run must reach.
    """

    game: str
    responses: str
    config: RunConfig
    solver: Solver
    episodes_per_cell: int
    levels: tuple[float, ...]
    target: float
    observation: str = "index"
    seeds: tuple[int, ...] = (1,)
    minutes: float = 20.0


TABLE = dqn.Config(
    policy="pufferlib.population.games:Logits",
    total_steps=40_000,
    gamma=1.0,
    learning_rate=0.05,
    steps_per_update=16,
    minibatch_size=256,
    end_epsilon=0.1,
    exploration_fraction=0.5,
)
NETWORK = replace(
    TABLE,
    policy="default",
    policy_kwargs={"hidden_size": 64},
    total_steps=20_000,
    learning_rate=0.003,
    steps_per_update=32,
)
LEVELS = (3.0, 2.0, 1.5, 1.0)
CASES: Mapping[str, Case] = {
    "kuhn_poker": Case(
        "kuhn_poker", "table", replace(TABLE, total_steps=4_000), solvers.lp_nash, 1_000, (0.3, 0.15, 0.05), 0.15
    ),
    "leduc_poker": Case("leduc_poker", "table", TABLE, solvers.alpha_rank, 200, LEVELS, 1.5),
    "leduc_network": Case(
        "leduc_poker", "network", NETWORK, solvers.alpha_rank, 200, LEVELS, 2.0, "tensor", (1, 2, 3), 6.0
    ),
}
NUM_ENVS = 256
BUDGETS = (25_000, 50_000, 100_000, 200_000, 400_000, 600_000)  # learning episodes at which NashConv is compared
# NashConv by episodes on Leduc, from digitised curves of aicenter/openspiel_reproductions and arXiv:2103.00187.
PUBLISHED: Mapping[str, Mapping[int, float]] = {
    "PSRO's paper": {5_000: 4.98, 62_000: 2.07, 310_000: 0.98, 1_900_000: 0.796, 3_000_000: 0.90},
    "NFSP": {957_000: 0.99, 5_500_000: 0.584, 9_200_000: 0.506, 24_800_000: 0.334},
}


def curve(case: Case, seed: int, budget_s: float, num_envs: int = NUM_ENVS) -> Iterator[dict[str, float]]:
    """Yield the NashConv, policies per seat, seconds, CPU seconds and episodes so far of each iteration."""
    start, cpu_start, config = perf_counter(), process_time(), replace(case.config, seed=seed)
    env = partial(GameEnv, case.game, observation=case.observation)
    with pufferlib.make(env, num_envs=num_envs, seed=seed, as_torch=True) as vec:
        pool, evaluated = PolicyPool(), 0
        exact = ExactOracle(case.game, pool, observation=case.observation)
        oracle = LearnedOracle(vec, pool, config)
        evaluator = Evaluator(vec, pool, min_episodes=case.episodes_per_cell, seed=seed)

        def evaluate(table: PayoffTable) -> None:
            nonlocal evaluated
            evaluated += evaluator(table)

        # The usual start is uniform play, by a table. A table cannot read tensors, so there it is a new network.
        first = exact if case.observation == "index" else oracle
        payoffs = PayoffTable(2, [[first.initial(seat)] for seat in (0, 1)])
        for iteration in psro(oracle, payoffs, case.solver, evaluate=evaluate, measure=exact.nash_conv):
            assert iteration.nash_conv is not None
            cpu_s = process_time() - cpu_start
            yield {
                "nash_conv": round(iteration.nash_conv, 4),
                "policies": iteration.sizes[0],
                "wall_s": round(perf_counter() - start, 1),
                "cpu_s": round(cpu_s, 1),
                "training_episodes": oracle.num_episodes,
                "episodes": oracle.num_episodes + evaluated,
            }
            if cpu_s > budget_s or iteration.nash_conv <= case.levels[-1]:
                return


# ------------------------------------------------------------------------------------------------------- report


def runs_of(results: Mapping[str, Any], case: str) -> list[Any]:
    """Return the runs of a case, by seed."""
    return sorted((run for run in results["runs"] if run["case"] == case), key=lambda run: run["seed"])


def sections(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the Markdown tables by their names."""
    rows = []
    for name, case in CASES.items():
        runs = runs_of(results, name)
        for level in case.levels if runs else ():
            reached = [
                point
                for run in runs
                for point in [next((point for point in run["points"] if point["nash_conv"] <= level), None)]
                if point is not None
            ]
            cells = [f"`{case.game}`", case.responses, f"{level}", f"{len(reached)} of {len(runs)}"]
            for key in ("policies", "episodes", "training_episodes", "cpu_s"):
                cells.append(_range_text([point[key] for point in reached]))
            rows.append(cells)
    heads = ("game", "responses", "NashConv", "seeds", "policies each", "episodes", "of them to learn", "CPU seconds")
    machines = sorted({run["machine"] for run in results["runs"]})
    learned = "\n".join([table(heads, rows), "", f"{'; '.join(machines)}."])
    return {"learned": learned, "learned_leduc": _leduc(results)}


def _range_text(values: Sequence[float]) -> str:
    """Format the median with the range; a single value without, and no value as a dash."""
    if not values:
        return "–"
    return f"{MedianRange.of(values):,.0f}" if len(values) > 1 else f"{values[0]:,.0f}"


def _leduc(results: Mapping[str, Any]) -> str:
    """Return the table of NashConv on Leduc after equal numbers of learning episodes, a column for each run."""
    runs = [(CASES[name], run) for name in ("leduc_poker", "leduc_network") for run in runs_of(results, name)]
    heads = ["learning episodes, up to", *(f"{case.responses}, seed {run['seed']}" for case, run in runs)]
    rows, over = [], set[int]()
    for budget in BUDGETS:
        cells = [f"{budget:,}"]
        for number, (_, run) in enumerate(runs):
            within = [point for point in run["points"] if 0 < point["training_episodes"] <= budget]
            cells.append("–" if number in over or not within else f"{within[-1]['nash_conv']:.2f}")
            if within == run["points"][1:] and number not in over:
                over.add(number)
                cells[-1] += " (the end)"
        rows.append(cells)
    lowest = [f"{min(point['nash_conv'] for point in run['points']):.2f}" for _, run in runs]
    last_cpu = [f"{run['points'][-1]['cpu_s']:.0f}" for _, run in runs]
    return table(heads, [*rows, ["lowest NashConv", *lowest], ["CPU seconds in all", *last_cpu]])


def draw(results: Mapping[str, Any], out: Path) -> None:
    """Draw NashConv on Leduc by episodes, next to published curves, and by CPU time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    with plt.rc_context({"svg.hashsalt": "1", "svg.fonttype": "none", "font.size": 9}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
        for color, name in (("C0", "leduc_poker"), ("C3", "leduc_network")):
            for number, run in enumerate(runs_of(results, name)):
                label = f"here, DQN with a {CASES[name].responses}"
                points = [point for point in run["points"] if point["training_episodes"]]
                style = {"color": color, "marker": ".", "linewidth": 1, "label": None if number else label}
                nash_conv = [point["nash_conv"] for point in points]
                left.plot([point["training_episodes"] for point in points], nash_conv, **style)
                right.plot([point["cpu_s"] for point in points], nash_conv, **style)
        for color, (name, published) in zip(("C1", "C2"), PUBLISHED.items(), strict=True):
            left.plot(list(published), list(published.values()), "x--", color=color, label=name)
        left.set(xscale="log", yscale="log", xlabel="episodes of learning", ylabel="NashConv, Leduc poker")
        right.set(xlabel="CPU seconds, one core")
        for axes in (left, right):
            axes.axhline(CASES["leduc_poker"].target, color="grey", linewidth=0.8, linestyle=":")
            axes.grid(alpha=0.3, which="both")
        left.yaxis.set_minor_formatter(NullFormatter())
        left.set_yticks([0.5, 1, 2, 5], ["0.5", "1", "2", "5"])
        left.legend(frameon=False)
        figure.savefig(out, metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: those of the case")
    parser.add_argument("--minutes", type=float, help="of CPU time for a run; default: those of the case")
    parser.add_argument("--page", action="store_true", help="only write the tables and the picture")
    options = parser.parse_args()
    facts = {"machine": machine(), "revision": version()}  # of the program as it has been loaded
    with threadpool_limits(1):
        torch.set_num_threads(1)
        for name in () if options.page else (options.only,) if options.only else CASES:
            for seed in options.seeds or CASES[name].seeds:
                run: dict[str, Any] = {"case": name, "seed": seed, **facts}
                run |= {"date": time.strftime("%Y-%m-%d"), "load": round(os.getloadavg()[0], 1), "points": []}
                for point in curve(CASES[name], seed, 60 * (options.minutes or CASES[name].minutes)):
                    run["points"].append(point)
                    store(run)
                    print(name, seed, point, flush=True)
    results = json.loads(RESULT.read_text())
    draw(results, PICTURE)
    texts = sections(results)
    write_page(PAGE, fill(PAGE.read_text(), texts))
    print(*texts.values(), sep="\n\n")
    for run in results["runs"]:
        lowest, target = min(point["nash_conv"] for point in run["points"]), CASES[run["case"]].target
        name = f"{run['case']}, seed {run['seed']}"
        assert lowest <= target, f"{name}: the lowest NashConv was {lowest}, above the target of {target}"


def store(run: Mapping[str, Any]) -> None:
    """Write a run into the results, in place of an earlier run of the same case and seed."""
    runs = json.loads(RESULT.read_text())["runs"] if RESULT.exists() else []
    others = [other for other in runs if (other["case"], other["seed"]) != (run["case"], run["seed"])]
    order = list(CASES)
    runs = sorted([*others, run], key=lambda item: (order.index(item["case"]), item["seed"]))
    with written_whole(RESULT) as part:
        part.write_text(table_text({"runs": runs}))


if __name__ == "__main__":
    main()
