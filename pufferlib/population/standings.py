"""Standings: the rating, win rate, payoff and weight of each policy in a payoff table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pufferlib.population.matchup import Mixture
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.ratings import Rating, Teams, rate_table

__all__ = ["Standing", "standings"]


@dataclass(frozen=True)
class Standing:
    """The standing of a policy in a seat.

    rating: the policy's rating from ``rate_table``. games: the number of episodes in the table in which the policy
    played this seat; None if all of the policy's cells were computed. win_rate: how often its return is higher than
    that of another seat, averaged over its cells and the other seats, with draws counted as half; NaN if unknown.
    payoff: its mean payoff if the other seats play the mixture; NaN if unknown. weight: its probability in the mixture.
    """

    policy: int
    seat: int
    rating: Rating
    games: int | None
    win_rate: float
    payoff: float
    weight: float


def standings(table: PayoffTable, mixture: Mixture, teams: Teams | None = None) -> list[Standing]:
    """Return the standings of all policies in a table, highest rating first.

    mixture: a mixture over the table's populations; only its marginals are used. teams: see ``rate_table``. Raises the
    errors of ``rate_table``.
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
