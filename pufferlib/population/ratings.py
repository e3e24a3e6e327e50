"""Ratings: the strength of each policy as one number with its uncertainty, from comparisons of returns.

The scale is openskill's: an unknown policy is rated 25 ± 8.3, and a policy that wins two of three games against another
is rated about 4 higher. Ratings suit games in which policies can be ordered by strength; rock, paper and scissors,
which beat each other in a circle, all get the same rating. ``standings`` lists the policies of a payoff table with
their ratings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from pufferlib.errors import MissingExtra, PlanError
from pufferlib.population.matchmaking import Matchmaker, Matchup, Mixture, policies_of
from pufferlib.population.payoff import PayoffTable
from pufferlib.util.annotations import Array

__all__ = ["Rated", "Rating", "Ratings", "Standing", "Teams", "rate_table", "standings"]

Teams = Sequence[Sequence[int]]  # the seats of each team

EXACT_EPISODES = 1000  # as which a computed cell counts
MAX_STEPS, SMALL = 100, 1e-9  # of Newton's method, and the step size at which it stops


class Rating(NamedTuple):
    """The strength of a policy, as the mean and the standard deviation of a normal distribution."""

    mean: float
    deviation: float

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return (low, high), the bounds between which the strength lies with probability ``confidence``."""
        half = NormalDist().inv_cdf((1 + confidence) / 2) * self.deviation
        return self.mean - half, self.mean + half


class Ratings:
    """Ratings of policies by openskill's Plackett-Luce model; ``update`` adjusts them after an episode.

    Later episodes have more weight. teams: for each team, the seats that win and lose together; teams may differ in
    size. By default, each seat is a team. Teams with equal mean returns draw. If a policy has several seats in an
    episode, its new rating is the mean of the new ratings computed for these seats.
    Raises MissingExtra if openskill is not installed.
    Source: Weng & Lin, "A Bayesian approximation method for online ranking", JMLR 12, 2011.
    """

    def __init__(self, teams: Teams | None = None) -> None:
        self._model, self._teams = _model(), teams
        self._ratings: dict[int, Any] = {}
        self._games: dict[int, int] = {}

    def update(self, matchup: Matchup, returns: Any) -> None:
        """Update the ratings after an episode; do nothing if all teams have the same policies.

        returns: each seat's return, (num_seats,). Raises PlanError for returns of another shape, for returns that are
        not finite, and for teams that do not fit the matchup.
        """
        teams = _checked(self._teams, len(matchup))
        values = np.asarray(returns, np.float64)
        if values.shape != (len(matchup),) or not np.isfinite(values).all():
            raise PlanError(f"returns={returns!r} must be finite numbers, one for each seat of matchup {matchup}")
        sides = [[matchup[seat] for seat in team] for team in teams]
        if len({tuple(sorted(side)) for side in sides}) == 1:  # this does not show who is better
            return
        old_ratings = [[self._ratings.get(policy) or self._model.rating() for policy in side] for side in sides]
        # Equal ranks are a draw.
        ranks = [-float(values[list(team)].mean()) for team in teams]
        new_ratings = self._model.rate(old_ratings, ranks=ranks)
        updates_by_policy: dict[int, list[Any]] = {}
        for side, rated in zip(sides, new_ratings, strict=True):
            for policy, rating in zip(side, rated, strict=True):
                updates_by_policy.setdefault(policy, []).append(rating)
        for policy, updates in updates_by_policy.items():
            mean, deviation = (
                float(np.mean([getattr(update, name) for update in updates])) for name in ("mu", "sigma")
            )
            self._ratings[policy] = self._model.rating(mu=mean, sigma=deviation)
            self._games[policy] = self._games.get(policy, 0) + 1

    def __getitem__(self, policy: int) -> Rating:
        """Return a policy's rating, or the initial rating if it has not played."""
        rating = self._ratings.get(policy) or self._model.rating()
        return Rating(rating.mu, rating.sigma)

    def games(self, policy: int) -> int:
        """Return how many episodes have updated a policy's rating."""
        return self._games.get(policy, 0)


class Rated(Matchmaker):
    """A matchmaker that forwards calls to another one, ``maker``, and updates ratings.

    ratings: the ratings, which are updated after each episode that is reported with returns.
    """

    def __init__(self, maker: Matchmaker, ratings: Ratings) -> None:
        self.ratings = ratings
        self._maker = maker

    def assign(self, env_ids: Sequence[int]) -> Sequence[Matchup]:
        return self._maker.assign(env_ids)

    def report(self, env_id: int, matchup: Matchup, returns: Array | None) -> None:
        if returns is not None:
            self.ratings.update(matchup, returns)
        self._maker.report(env_id, matchup, returns)

    def policies(self) -> set[int] | None:
        """Return the ids of the policies that ``maker`` can seat; None if they are unknown."""
        return policies_of(self._maker)


def rate_table(table: PayoffTable, teams: Teams | None = None) -> dict[int, Rating]:
    """Return the ratings of all policies in a table, keyed by policy id.

    A table does not store the order of its episodes, so the episodes cannot be rated one after another. Instead, the
    means are the most likely strengths given all cells, under the prior and the win probabilities of openskill's model;
    repeated single updates would converge to these means. Each deviation is the standard deviation of a policy's
    strength relative to the mean of all strengths, computed from the curvature of the log posterior at its maximum. A
    computed cell counts as a thousand episodes, an empty one as none.
    teams: see ``Ratings``. A team's strength is the sum of its policies' strengths. One team's win rate against another
    is the mean of its seats' win rates against each of the other's seats. With n teams, each pair of teams in an
    episode counts as 1/(n - 1) of an episode.
    Raises MissingExtra if openskill is not installed, PlanError if teams do not fit the table.
    Source: Bradley & Terry, "Rank analysis of incomplete block designs", Biometrika 39, 1952.
    """
    model = _model()
    if not any(table.populations):
        return {}
    signs, win_rates, counts, policies = _comparisons(table, _checked(teams, table.num_seats))
    scale = 1 / (np.sqrt(2) * model.beta)
    prior = 1 / model.sigma**2
    strengths = np.zeros(len(policies))  # relative to the prior's mean

    def chances(strengths: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(np.clip(-scale * (signs @ strengths), -500, 500))))

    def curvature(strengths: Array) -> Array:
        chance = chances(strengths)
        weights = scale**2 * counts * chance * (1 - chance)
        return np.asarray((signs.T * weights) @ signs + prior * np.eye(len(policies)))

    def log_posterior(strengths: Array) -> float:
        chance = np.clip(chances(strengths), 1e-300, 1 - 1e-16)
        log_likelihoods = counts * (win_rates * np.log(chance) + (1 - win_rates) * np.log(1 - chance))
        return float(log_likelihoods.sum() - prior * (strengths**2).sum() / 2)

    for _ in range(MAX_STEPS):
        slope = scale * (signs.T @ (counts * (win_rates - chances(strengths)))) - prior * strengths
        step = np.linalg.solve(curvature(strengths), slope)
        while log_posterior(strengths + step) < log_posterior(strengths) and np.abs(step).max() > SMALL:
            step = step / 2  # the log posterior is concave, so a smaller step increases it
        strengths = strengths + step
        if np.abs(step).max() <= SMALL:
            break
    # Episodes determine only the differences between strengths; their common level comes from the prior alone.
    centering = np.eye(len(policies)) - 1 / max(1, len(policies))
    deviations = np.sqrt(np.maximum(0, np.diag(centering @ np.linalg.inv(curvature(strengths)) @ centering)))
    return {
        policy: Rating(model.mu + float(strength), float(deviation))
        for policy, strength, deviation in zip(policies, strengths, deviations, strict=True)
    }


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


def _comparisons(table: PayoffTable, teams: Teams) -> tuple[Array, Array, Array, list[int]]:
    """Return (signs, win rates, counts, policies) for all comparisons of two teams, in all cells that have win rates.

    signs: (comparisons, policies), the number of the policy's seats in the first team minus that in the second. win
    rates: those of the first team, (comparisons,). counts: the cell's number of episodes, divided by the number of
    teams minus 1, (comparisons,). policies: the ids of all policies, sorted.
    """
    policies = sorted({policy for ids in table.populations for policy in ids})
    column = {policy: number for number, policy in enumerate(policies)}
    rows: list[Array] = []
    win_rates: list[float] = []
    counts: list[float] = []
    pairs = [(first, second) for number, first in enumerate(teams) for second in teams[number + 1 :]]
    for cell in np.ndindex(*table.counts.shape):
        count = EXACT_EPISODES if table.exact[cell] else int(table.counts[cell])
        wins, matchup = table.wins[(slice(None), slice(None), *cell)], table.matchup(cell)
        for first, second in pairs:
            share = float(wins[np.ix_(first, second)].mean())
            if not count or np.isnan(share):
                continue
            row = np.zeros(len(policies))
            for seats, sign in ((first, 1), (second, -1)):
                np.add.at(row, [column[matchup[seat]] for seat in seats], sign)
            rows.append(row)
            win_rates.append(share)
            counts.append(count / (len(teams) - 1))
    return np.array(rows).reshape(-1, len(policies)), np.array(win_rates), np.array(counts), policies


def _checked(teams: Teams | None, num_seats: int) -> Teams:
    """Check teams and return them; for None, return one team per seat.

    Raises PlanError if fewer than two teams are passed, if one is empty, or if a seat is not in exactly one team.
    """
    if teams is None:
        return [(seat,) for seat in range(num_seats)]
    if sorted(seat for team in teams for seat in team) != list(range(num_seats)) or len(teams) < 2 or not all(teams):
        raise PlanError(
            f"teams={teams!r} must be two or more, with each of the seats 0 to {num_seats - 1} in exactly one team"
        )
    return teams


def _model() -> Any:
    try:
        from openskill.models import PlackettLuce
    except ImportError as error:
        raise MissingExtra('ratings need openskill: pip install "pufferlib[games]"') from error
    return PlackettLuce()
