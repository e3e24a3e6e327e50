"""Measure PSRO with learned responses: the distance from an equilibrium, by time and episodes.

    python -m benchmarks.learned_oracles [--only kuhn_poker|leduc_poker] [--minutes 20] [--page]

A response is tabular DQN (pufferlib/training/oracles.py) over a VecEnv of ``GameEnv``s, against opponents drawn for
each episode from the meta-solver's mixture; it starts from the seat's last response. Payoffs are sampled. NashConv is
exact (``ExactOracle.nash_conv``) and not part of the learning, but its computation counts in the times. The program is
one process with one thread: its CPU time is the time on an idle core, and limits the run (--minutes); the wall time
shows how busy the machine was. A game ends earlier if NashConv reaches the last of its ``levels``. Writes
benchmarks/results/learned_oracles.json after each iteration, then the picture and the table of docs/population.md;
--page writes only these.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from threadpoolctl import threadpool_limits

import pufferlib
from benchmarks.lines import table_text
from benchmarks.pages import fill, write_page
from benchmarks.revisions import version
from cleanrl_demo import dqn
from pufferlib.population import Evaluator, ExactOracle, PayoffTable, PolicyPool, Solver, psro, solvers
from pufferlib.population.games import GameEnv
from pufferlib.training.oracles import LearnedOracle
from pufferlib.tuning.bench import machine
from pufferlib.util.files import written_whole

__all__ = ["curve", "sections"]

FOLDER = Path(__file__).parent
RESULT = FOLDER / "results" / "learned_oracles.json"
PAGE = FOLDER.parent / "docs" / "population.md"
PICTURE = FOLDER.parent / "docs" / "pictures" / "learned-oracles.svg"


@dataclass(frozen=True)
class Setting:
    """The settings of a game. total_steps: of a response. levels: of NashConv to report; the last one ends a run."""

    solver: Solver
    total_steps: int
    episodes_per_cell: int
    levels: tuple[float, ...]
    target: float


GAMES: Mapping[str, Setting] = {
    "kuhn_poker": Setting(solvers.lp_nash, 4_000, 1_000, (0.3, 0.15, 0.05), 0.15),
    "leduc_poker": Setting(solvers.alpha_rank, 40_000, 200, (3.0, 2.0, 1.5, 1.0), 1.5),
}
NUM_ENVS = 256
# NashConv by episodes on Leduc, from digitised curves of aicenter/openspiel_reproductions and arXiv:2103.00187.
PUBLISHED: Mapping[str, Mapping[int, float]] = {
    "PSRO's paper": {5_000: 4.98, 62_000: 2.07, 310_000: 0.98, 1_900_000: 0.796, 3_000_000: 0.90},
    "NFSP": {957_000: 0.99, 5_500_000: 0.584, 9_200_000: 0.506, 24_800_000: 0.334},
}


def curve(game: str, seed: int, budget_s: float) -> Iterator[dict[str, float]]:
    """Yield the NashConv, policies per seat, seconds, CPU seconds and episodes so far of each iteration."""
    setting, start, cpu_start = GAMES[game], perf_counter(), process_time()
    env = partial(GameEnv, game, observation="index")
    with pufferlib.make(env, num_envs=NUM_ENVS, seed=seed, as_torch=True) as vec:
        pool, evaluated = PolicyPool(), 0
        exact = ExactOracle(game, pool)
        oracle = LearnedOracle(vec, pool, config_of(setting, seed))
        evaluator = Evaluator(vec, pool, min_episodes=setting.episodes_per_cell, seed=seed)

        def evaluate(table: PayoffTable) -> None:
            nonlocal evaluated
            evaluated += evaluator(table)

        table = PayoffTable(2, [[exact.initial(seat)] for seat in (0, 1)])  # uniform play, the usual start
        for iteration in psro(oracle, table, setting.solver, evaluate=evaluate, measure=exact.nash_conv):
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
            if cpu_s > budget_s or iteration.nash_conv <= setting.levels[-1]:
                return


def config_of(setting: Setting, seed: int) -> dqn.Config:
    """Return the configuration of the learner of responses."""
    return dqn.Config(
        policy="pufferlib.population.games:Logits",
        total_steps=setting.total_steps,
        gamma=1.0,
        learning_rate=0.05,
        steps_per_update=16,
        minibatch_size=256,
        end_epsilon=0.1,
        exploration_fraction=0.5,
        seed=seed,
    )


def sections(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the Markdown table by its name."""
    lines = [
        "| game | NashConv | policies each | episodes | of them to learn | CPU seconds | wall seconds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for game, points in results["curves"].items():
        for level in GAMES[game].levels:
            point = next((point for point in points if point["nash_conv"] <= level), None)
            if point is None:
                lines.append(f"| `{game}` | {level} | not reached | – | – | {points[-1]['cpu_s']:.0f} | – |")
                continue
            cells = f"{point['policies']} | {point['episodes']:,} | {point['training_episodes']:,}"
            lines.append(f"| `{game}` | {level} | {cells} | {point['cpu_s']:.0f} | {point['wall_s']:.0f} |")
    return {"learned": "\n".join([*lines, "", f"{results['machine']}."])}


def draw(results: Mapping[str, Any], out: Path) -> None:
    """Draw NashConv on Leduc by episodes, next to published curves, and by CPU time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    points = results["curves"]["leduc_poker"]
    with plt.rc_context({"svg.hashsalt": "1", "svg.fonttype": "none", "font.size": 9}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
        learnt = [(point["training_episodes"], point["nash_conv"]) for point in points if point["training_episodes"]]
        left.plot(*zip(*learnt, strict=True), marker=".", label="here, DQN")
        for name, published in PUBLISHED.items():
            left.plot(list(published), list(published.values()), "x--", label=name)
        left.set(xscale="log", yscale="log", xlabel="episodes of learning", ylabel="NashConv, Leduc poker")
        right.plot([point["cpu_s"] for point in points], [point["nash_conv"] for point in points], marker=".")
        right.set(xlabel="CPU seconds, one core")
        for axes in (left, right):
            axes.axhline(GAMES["leduc_poker"].target, color="grey", linewidth=0.8, linestyle=":")
            axes.grid(alpha=0.3, which="both")
        left.yaxis.set_minor_formatter(NullFormatter())
        left.set_yticks([0.5, 1, 2, 5], ["0.5", "1", "2", "5"])
        left.legend(frameon=False)
        figure.savefig(out, metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(GAMES))
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {"curves": {}}
    with threadpool_limits(1):
        torch.set_num_threads(1)
        for game in () if options.page else (options.only,) if options.only else GAMES:
            points = results["curves"][game] = []
            for point in curve(game, options.seed, 60 * options.minutes):
                points.append(point)
                results |= {"machine": machine(), "revision": version(), "seed": options.seed}
                with written_whole(RESULT) as part:
                    part.write_text(table_text(results))
                print(game, point, flush=True)
    draw(results, PICTURE)
    write_page(PAGE, fill(PAGE.read_text(), sections(results)))
    print(sections(results)["learned"])
    for game, points in results["curves"].items():
        lowest, target = min(point["nash_conv"] for point in points), GAMES[game].target
        assert lowest <= target, f"{game}: the lowest NashConv was {lowest}, above the target of {target}"


if __name__ == "__main__":
    main()
