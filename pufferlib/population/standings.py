"""Standings: of each policy of a payoff table how strong it is, how often it wins, and how often it is played."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pufferlib.population.matchup import Mixture
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.ratings import Rating, Teams, rate_table

__all__ = ["Standing", "standings"]


@dataclass(frozen=True)
class Standing:
    """A policy in a seat.

    rating: as ``rate_table`` has it. games: episodes that the table counts; None where all its cells are computed.
    win_rate: how often it gets more than another seat, the mean over cells and seats, a draw counted as half; NaN where
    that is not known. payoff: what the seat gets on average where the others play the mixture. weight: of the policy in
    the seat's mixture.
    """

    policy: int
    seat: int
    rating: Rating
    games: int | None
    win_rate: float
    payoff: float
    weight: float


def standings(table: PayoffTable, mixture: Mixture, teams: Teams | None = None) -> list[Standing]:
    """Return the standings of all policies of a table, the highest rating first.

    mixture: over the table's populations; of a joint one its marginals count. teams: as ``rate_table`` has them.
    Raises MissingExtra without openskill.
    """
    ratings = rate_table(table, teams)
    results = []
    for seat, ids in enumerate(table.populations):
        means, opponents = table.means[seat], [other for other in range(table.num_seats) if other != seat]
        for other in reversed(opponents):
            means = np.tensordot(means, mixture.marginals[other], (other, 0))
        cells = np.moveaxis(table.wins[seat, opponents], seat + 1, 0).reshape(len(ids), -1)
        mask = ~np.isnan(cells)
        sums, num = np.where(mask, cells, 0).sum(1), mask.sum(1)
        counts = np.moveaxis(table.counts, seat, 0).reshape(len(ids), -1).sum(1)
        exact = np.moveaxis(table.exact, seat, 0).reshape(len(ids), -1).min(1)
        for index, policy in enumerate(ids):
            results.append(
                Standing(
                    policy,
                    seat,
                    ratings[policy],
                    None if exact[index] else int(counts[index]),
                    float(sums[index] / num[index]) if num[index] else float("nan"),
                    float(means[index]),
                    float(mixture.marginals[seat][index]),
                )
            )
    return sorted(results, key=lambda standing: (-standing.rating.mean, standing.seat, standing.policy))
