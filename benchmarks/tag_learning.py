"""Measure whether taggers and runners trained together play better than chance against random opponents.

    python -m benchmarks.tag_learning                      both games, five seeds, on the host
    python -m benchmarks.tag_learning --device cuda

Each team has its own policy (cleanrl_demo.ppo_cuda --separate). The score of taggers is the share of random runners
that they tag, that of runners the share of them that random taggers do not tag: means over episodes, with their
standard errors. A team's gain over random players must be three standard errors of its mean over the seeds. Writes
benchmarks/results/tag-learning-<device>.json.
"""

from __future__ import annotations

import argparse
import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pufferlib
from benchmarks.lines import table_text
from benchmarks.revisions import version
from cleanrl_demo.ppo_cuda import Config, train
from pufferlib.models import Actor, Decisions
from pufferlib.tuning.bench import machine

RESULTS = Path(__file__).parent / "results"
NUM_EPISODES = 1_000
NUM_ERRORS = 3.0  # the least difference, in standard errors
GAMES: Mapping[str, Mapping[str, Any]] = {
    "tag/grid": {"num_taggers": 2, "grid_length": 7, "episode_length": 40},
    "tag/continuous": {
        "num_taggers": 2,
        "num_runners": 4,
        "grid_length": 10.0,
        "episode_length": 40,
        "tagging_distance": 0.1,
        "tag_penalty_for_runner": -1.0,
        "step_reward_for_runner": 0.05,
        "max_acceleration": 0.3,
        "num_acceleration_levels": 3,
        "num_turn_levels": 4,
    },
}


@dataclass(frozen=True)
class Comparison:
    """The scores of a team, trained and at random, against random opponents; errors are standard errors."""

    game: str
    team: str
    seed: int
    trained: float
    random: float
    trained_error: float
    random_error: float

    @property
    def num_errors(self) -> float:
        """The trained team's lead in standard errors of the difference."""
        return (self.trained - self.random) / max(1e-9, math.hypot(self.trained_error, self.random_error))


def tagged(actor: Actor | None, game: str, team: str, seed: int, device: str) -> np.ndarray[Any, Any]:
    """Play an episode in each of NUM_EPISODES environments; return the share of runners tagged in each.

    actor: plays the agents of a team, and all others play at random; None: all play at random.
    """
    with pufferlib.make(
        game, backend="cuda", device=device, num_envs=NUM_EPISODES, env_kwargs=GAMES[game], autoreset_mode="disabled"
    ) as vec:
        generator = torch.Generator(vec.device).manual_seed(seed)  # type: ignore[attr-defined]
        teams = [re.sub(r"_\d+$", "", name) for name in vec.agent_names]
        ours = torch.tensor([name == team for name in teams] * NUM_EPISODES, device=vec.device)  # type: ignore[attr-defined]
        runners = [agent_index for agent_index, name in enumerate(teams) if name == "runner"]
        options = torch.tensor(Decisions(vec.single_action_space).nvec)
        observations: Any = vec.reset(seed=seed)[0]
        caught = torch.zeros(NUM_EPISODES, len(teams), dtype=torch.bool, device=ours.device)
        for _ in range(GAMES[game]["episode_length"]):
            shape = (len(ours), len(options))
            drawn = (torch.rand(shape, generator=generator, device=ours.device) * options.to(ours.device)).long()
            if actor is not None:
                with torch.no_grad():
                    chosen, _ = actor(observations)[0].sample(generator)
                drawn = torch.where(ours[:, None], chosen, drawn)
            shaped: Any = drawn.reshape(-1, *(vec.single_action_space.shape or ()))
            observations, _, terminations, _, _ = vec.step(shaped)
            caught |= torch.as_tensor(terminations).view_as(caught)
        return caught[:, runners].float().mean(1).cpu().numpy()


def compared(actor: Actor, game: str, seed: int, device: str) -> list[Comparison]:
    """Return the comparison of each team."""
    comparisons = []
    for team in ("tagger", "runner"):
        shares = [tagged(policy, game, team, 1_000 + seed, device) for policy in (actor, None)]
        if team == "runner":
            shares = [1 - share for share in shares]
        means = [float(share.mean()) for share in shares]
        errors = [float(share.std(ddof=1) / math.sqrt(len(share))) for share in shares]
        comparisons.append(Comparison(game, team, seed, *means, *errors))
    return comparisons


def trained(game: str, seed: int, device: str, total_steps: int) -> Actor:
    """Return the policies of both teams, trained together."""
    config = Config(
        env=game,
        env_kwargs=GAMES[game],
        device=device,
        seed=seed,
        num_envs=128,
        total_steps=total_steps,
        entropy_coefficient=0.003,
        separate=True,
        eval_episodes=1,
        runs=None,
    )
    return train(config).actor


def improvements(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the mean gain of each team over chance, over the seeds, and that gain in its standard errors."""
    rows = []
    for game, team in dict.fromkeys((comparison.game, comparison.team) for comparison in comparisons):
        differences = [
            comparison.trained - comparison.random
            for comparison in comparisons
            if (comparison.game, comparison.team) == (game, team)
        ]
        mean, error = np.mean(differences), np.std(differences, ddof=1) / math.sqrt(len(differences))
        rows.append(
            {"game": game, "team": team, "gain": round(float(mean), 4), "num_errors": round(float(mean / error), 1)}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="host")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--games", nargs="+", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--total-steps", type=int, default=1_000_000)
    options = parser.parse_args()
    comparisons = []
    for game in options.games:
        for seed in options.seeds:
            actor = trained(game, seed, options.device, options.total_steps)
            for comparison in compared(actor, game, seed, options.device):
                comparisons.append(comparison)
                print(
                    f"{game:15} {comparison.team}s, seed {seed}: {comparison.trained:.3f} "
                    f"± {comparison.trained_error:.3f}, at random {comparison.random:.3f} "
                    f"± {comparison.random_error:.3f}: {comparison.num_errors:.1f} standard errors"
                )
    rows = improvements(comparisons)
    for gain in rows:
        print(f"{gain['game']:15} {gain['team']}s gain {gain['gain']:.3f}: {gain['num_errors']} standard errors")
    facts = {
        "machine": machine(),
        "revision": version(),
        "date": datetime.date.today().isoformat(),
        "total_steps": options.total_steps,
        "gains": rows,
        "passed": all(row["num_errors"] >= NUM_ERRORS for row in rows),
        "comparisons": [
            {**asdict(comparison), "num_errors": round(comparison.num_errors, 1)} for comparison in comparisons
        ],
    }
    path = RESULTS / f"tag-learning-{options.device.replace(':', '')}.json"
    path.write_text(table_text(facts))
    print(f"Wrote {path}")


if __name__ == "__main__":
    main()
