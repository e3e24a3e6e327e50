"""Self-play of one policy, the learner, against its past versions: seats, opponents, and a measure of progress."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pufferlib import VecEnv
from pufferlib.emulation.extra_leaves import type_of_name
from pufferlib.errors import PlanError
from pufferlib.population import Evaluator, Matchmaker, Matchup, PayoffTable, Prioritized, Seat, seats_of
from pufferlib.population.matchmaking import even, hard

__all__ = ["MEET", "PastOpponents", "seats_of_run", "versus"]

# Weights of opponents by the learner's win rates against them: whom to prefer.
MEET: Mapping[str, Callable[[Any], Any]] = {
    "hard": hard,  # those that often beat the learner
    "even": even,  # those that are equally strong
    "uniform": np.ones_like,
}
VERSUS_EPISODES = 200  # or more, for each mean return


def seats_of_run(vec: VecEnv, teams: bool) -> tuple[Seat, ...]:
    """Return a seat for each agent or, with ``teams``, for each group of agents whose names differ only in numbers."""
    return seats_of(vec, type_of_name if teams else None)


class PastOpponents(Matchmaker):
    """A matchmaker that moves the learner to the next seat in each episode, and draws opponents for the other seats.

    learner, past: the ids of the learner and of its past versions, which are the opponents, as is the learner itself.
    meet: the name, in MEET, of the opponents to prefer. Raises PlanError if there are fewer than two seats.
    """

    def __init__(self, num_seats: int, learner: int, past: Sequence[int], meet: str, seed: int) -> None:
        if num_seats < 2:
            raise PlanError("self-play needs two seats; with teams=False each agent has its own")
        opponents = [[learner, *past]] * (num_seats - 1)
        seeds = np.random.SeedSequence(seed).spawn(num_seats)
        self.matchmakers = [
            Prioritized(seat, learner, opponents, weight=MEET[meet], seed=int(seeds[seat].generate_state(1)[0]))
            for seat in range(num_seats)
        ]
        self.seat: dict[int, int] = {}  # of the learner, by environment

    def add(self, past: int) -> None:
        """Add a past version to the opponents for all seats."""
        for other_seat, matchmaker in itertools.product(range(len(self.matchmakers) - 1), self.matchmakers):
            matchmaker.add(other_seat, past)

    def assign(self, env_ids: Sequence[int]) -> list[Matchup]:
        for env_id in env_ids:
            self.seat[env_id] = (self.seat.get(env_id, env_id) + 1) % len(self.matchmakers)
        return [self.matchmakers[self.seat[env_id]].assign([env_id])[0] for env_id in env_ids]

    def report(self, env_id: int, matchup: Matchup, returns: np.ndarray | None) -> None:
        self.matchmakers[self.seat[env_id]].report(env_id, matchup, returns)

    def win_rates(self, past: int) -> dict[str, float]:
        """Return the learner's win rate in each seat against a past version, keyed by scalar name; 0.5 if never met."""
        return {
            f"self_play/win_rate_{seat}": matchmaker.win_rates()[past]
            for seat, matchmaker in enumerate(self.matchmakers)
        }


def versus(vec: VecEnv, learner: Any, seats: Sequence[Seat], seed: int) -> dict[str, float]:
    """Return the learner's margins over random play and over its oldest version in each seat, keyed by name.

    A margin is the learner's mean return in a seat minus the opponent's in it, with the opponent in all other seats.
    learner: an object with the attributes ``pool``, ``id``, ``origin`` and ``past`` (see ``ppo_selfplay.Learner``).
    """
    pool, newest, margins = learner.pool, learner.pool.freeze(learner.id), dict[str, float]()
    chance = {name: torch.zeros_like(value) for name, value in pool.weights(newest).items()}
    opponents = {"random": pool.add(chance, learner.origin), "oldest": learner.past[0]}
    for (name, opponent), (number, seat) in itertools.product(opponents.items(), enumerate(seats)):
        table = PayoffTable(len(seats), [[opponent, newest] if other is seat else [opponent] for other in seats])
        Evaluator(vec, pool, min_episodes=VERSUS_EPISODES, seats=seats, seed=seed)(table)
        opponent_mean, learner_mean = table.means[number].reshape(-1).tolist()
        margins[f"versus/{name}_{seat.name}"] = learner_mean - opponent_mean
    return margins
