"""Measure whether self-play learns: past selves of cleanrl_demo.ppo_selfplay against chance and the newest self.

    python -m benchmarks.selfplay [--only tictactoe|connect_four|tag] [--page]

Trains with the settings in ``GAMES`` and one seed. Each past self then plays each seat against a random opponent and
against the newest self; the figures are mean returns over ``NUM_EPISODES`` episodes. The newest self's return against
perfect play in tic-tac-toe is computed, not sampled. Writes benchmarks/results/selfplay.json, and the picture and the
table of docs/population.md; --page writes only these.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

from benchmarks import tictactoe
from benchmarks.lines import table_text
from benchmarks.pages import fill, write_page
from benchmarks.revisions import version
from cleanrl_demo import ppo_selfplay
from pufferlib.models import Actor
from pufferlib.population import Evaluator, PayoffTable
from pufferlib.training.self_play import seats_of_run
from pufferlib.training.session import environments, run
from pufferlib.training.settings import family_settings
from pufferlib.tuning.bench import machine
from pufferlib.util.files import written_whole

__all__ = ["played", "sections"]

FOLDER = Path(__file__).parent
RESULT = FOLDER / "results" / "selfplay.json"
PAGE = FOLDER.parent / "docs" / "population.md"
PICTURE = FOLDER.parent / "docs" / "pictures" / "selfplay.svg"
NUM_EPISODES = 200


def board_game(name: str, **changes: Any) -> ppo_selfplay.Config:
    """Return the settings of one of PettingZoo's classic games, with the family's defaults."""
    env = f"pettingzoo.classic.{name}:env"
    settings = {**family_settings(env, ppo_selfplay.Config)[1], **changes}
    return ppo_selfplay.Config(env=env, backend="serial", eval_episodes=32, runs=None, **settings)


GAMES: Mapping[str, ppo_selfplay.Config] = {
    "tictactoe": board_game("tictactoe_v3"),
    "connect_four": board_game("connect_four_v3", total_steps=500_000),
    "tag": ppo_selfplay.Config(
        env="tag/grid",
        env_kwargs={"num_taggers": 2, "grid_length": 7, "episode_length": 40},
        backend="cuda",  # with device="cpu": on the host
        teams=True,
        meet="uniform",
        num_envs=128,
        total_steps=1_000_000,
        entropy_coefficient=0.003,
        eval_episodes=128,
        runs=None,
    ),
}


def played(config: ppo_selfplay.Config) -> dict[str, Any]:
    """Train, and return the returns by seat and rival, each a list over the past selves up to the newest."""
    start, cpu_start, learners = perf_counter(), process_time(), list[ppo_selfplay.Learner]()

    def make(*args: Any) -> ppo_selfplay.Learner:
        learners.append(ppo_selfplay.make_learner(*args))
        return learners[-1]

    result = run(config, make, ppo_selfplay.learn)
    report: dict[str, Any] = {
        "num_steps": result.num_steps,
        "cpu_s": round(process_time() - cpu_start, 1),
        "wall_s": round(perf_counter() - start, 1),
        "returns": {},
    }
    (learner,) = learners
    pool = learner.pool
    selves = [*learner.past, pool.freeze(learner.id)]
    chance = pool.add(
        {name: torch.zeros_like(value) for name, value in pool.weights(selves[0]).items()}, learner.origin
    )
    report["steps"] = [round(number * config.total_steps / config.num_past) for number in range(len(selves))]
    with environments(config, None) as vec:
        if "tictactoe" in config.env:
            report["perfect"] = against_perfect(pool.actor(selves[-1], vec.observation_layout, vec.single_action_space))
        seats = seats_of_run(vec, config.teams)
        for number, seat in enumerate(seats):
            opponents = [chance, selves[-1]]
            table = PayoffTable(2, [selves, opponents] if number == 0 else [opponents, selves])
            Evaluator(vec, pool, min_episodes=NUM_EPISODES, seats=seats, seed=1)(table)
            means = table.means[number] if number == 0 else table.means[number].T
            wins = table.wins[number, 1 - number] if number == 0 else table.wins[number, 1 - number].T
            both = PayoffTable(2, [[chance], [chance]])
            Evaluator(vec, pool, min_episodes=NUM_EPISODES, seats=seats, seed=2)(both)
            report["returns"][seat.name] = {
                "random": means[:, 0].round(3).tolist(),
                "newest": means[:, 1].round(3).tolist(),
                "wins": wins[:, 0].round(3).tolist(),
                "chance": round(float(both.means[number, 0, 0]), 3),
            }
    return report


def against_perfect(actor: Actor) -> list[float]:
    """Return the value of a policy in each seat of tic-tac-toe against perfect play."""
    ours, perfect = tictactoe.play_of(actor, actor.layout), tictactoe.perfect()
    values = [tictactoe.value(ours, perfect), -tictactoe.value(perfect, ours)]
    return [round(value, 3) for value in values]


def sections(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the Markdown table by its name."""
    lines = [
        "| game | seat | rival | chance gets | first self | newest self | steps | CPU seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for game, game_result in results["games"].items():
        for seat, returns in game_result["returns"].items():
            cells = f"{returns['chance']:.2f} | {returns['random'][0]:.2f} | {returns['random'][-1]:.2f}"
            lines.append(
                f"| {game} | {seat} | chance | {cells} | {game_result['num_steps']:,} | {game_result['cpu_s']:.0f} |"
            )
            cells = f"– | {returns['newest'][0]:.2f} | {returns['newest'][-1]:.2f}"
            lines.append(f"| | | newest self | {cells} | | |")
        for seat, gets in zip(game_result["returns"], game_result.get("perfect", ()), strict=False):
            lines.append(f"| | {seat} | perfect play | – | – | {round(gets, 2) + 0:.2f} | | |")
    return {"selfplay": "\n".join([*lines, "", f"{results['machine']}."])}


def draw(results: Mapping[str, Any], out: Path) -> None:
    """Draw the returns of past selves in each seat, by the steps of their training."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "1", "svg.fonttype": "none", "font.size": 9}):
        figure, panels = plt.subplots(1, len(results["games"]), figsize=(8, 3.2), layout="constrained", squeeze=False)
        for axes, (game, game_result) in zip(panels.flat, results["games"].items(), strict=True):
            for color, (seat, returns) in zip(("C0", "C3"), game_result["returns"].items(), strict=True):
                axes.plot(
                    game_result["steps"], returns["random"], color=color, marker=".", label=f"{seat}, against chance"
                )
                axes.plot(
                    game_result["steps"], returns["newest"], "--", color=color, label=f"{seat}, against the newest"
                )
            axes.set(title=game, xlabel="steps of the past self", ylabel="mean return")
            axes.grid(alpha=0.3)
            axes.legend(frameon=False, fontsize=7)
        figure.savefig(out, metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(GAMES))
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {"games": {}}
    for game in () if options.page else (options.only,) if options.only else GAMES:
        results["games"][game] = played(GAMES[game])
        results |= {"machine": machine(), "revision": version()}
        with written_whole(RESULT) as part:
            part.write_text(table_text(results))
    draw(results, PICTURE)
    write_page(PAGE, fill(PAGE.read_text(), sections(results)))
    print(sections(results)["selfplay"])


if __name__ == "__main__":
    main()
