"""Ratings: one number for how strong each policy is, and how sure that is, from who got more than whom.

The scale is openskill's: a policy of which nothing is known has 25 ± 8.3, and one that wins two games of three against
another stands about 4 above it. Ratings suit games in which strength has an order; of rock, paper and scissors, which
beat each other in a circle, all are rated alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from pufferlib.errors import MissingExtra, PlanError
from pufferlib.population.matchmaker import Matchmaker, policies_of
from pufferlib.population.matchup import Matchup
from pufferlib.population.payoff import PayoffTable

__all__ = ["Rated", "Rating", "Ratings", "Teams", "rate_table"]

Array = np.ndarray[Any, Any]
Teams = Sequence[Sequence[int]]  # of seats, each in one

EXACT_EPISODES = 1000  # that a computed cell counts for
MAX_STEPS, SMALL = 100, 1e-9  # of Newton's method, and a step that ends it


class Rating(NamedTuple):
    """How strong a policy is. mean, deviation: of what its strength may be, normally distributed."""

    mean: float
    deviation: float

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return (lowest, highest), between which the strength is with a probability of ``confidence``."""
        half = NormalDist().inv_cdf((1 + confidence) / 2) * self.deviation
        return self.mean - half, self.mean + half


class Ratings:
    """Ratings that follow episodes as they end, by openskill's Plackett-Luce model. Later episodes weigh more.

    teams: the seats that win and lose together, which need not be of one size; by default each seat alone. A team that
    gets as much as another has a draw. A policy that plays in several teams of an episode at once is moved by the mean
    of what moves it in each. Raises MissingExtra without openskill.
    Source: Weng & Lin, "A Bayesian approximation method for online ranking", JMLR 12, 2011.
    """

    def __init__(self, teams: Teams | None = None) -> None:
        self._model, self._teams = _model(), teams
        self._ratings: dict[int, Any] = {}
        self._games: dict[int, int] = {}

    def update(self, matchup: Matchup, returns: Any) -> None:
        """Take note of an episode. returns: (num_seats,), what each seat got."""
        teams = _checked(self._teams, len(matchup))
        values = np.asarray(returns, np.float64)
        if values.shape != (len(matchup),) or not np.isfinite(values).all():
            raise PlanError(f"returns={returns!r} are no finite numbers, one for each seat of matchup {matchup}")
        sides = [[matchup[seat] for seat in team] for team in teams]
        if len({tuple(sorted(side)) for side in sides}) == 1:  # says nothing of who is better
            return
        old_ratings = [[self._ratings.get(policy) or self._model.rating() for policy in side] for side in sides]
        # A draw's ranks are equal.
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
        """Return a policy's rating; of one that has not played, what everyone begins with."""
        rating = self._ratings.get(policy) or self._model.rating()
        return Rating(rating.mu, rating.sigma)

    def games(self, policy: int) -> int:
        """Return how many episodes have moved a policy."""
        return self._games.get(policy, 0)


class Rated(Matchmaker):
    """Another matchmaker, ``maker``, whose episodes are rated as they end, in ``ratings``."""

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
        """Return what the other matchmaker can seat; None where that is not known."""
        return policies_of(self._maker)


def rate_table(table: PayoffTable, teams: Teams | None = None) -> dict[int, Rating]:
    """Return the ratings of all policies of a table, which depend on its cells and on no order.

    A table does not know which episode came first. So policies are not moved by one episode after another: these are
    the strengths that all cells together make likeliest, where openskill's model has each policy begin, and with its
    chance that one beats another. Single updates would come to rest there. deviation: of how far a policy stands from
    the mean of all, from the curvature at that place. A computed cell counts for a thousand episodes, an empty one for
    none.
    teams: as ``Ratings`` has them; a team's strength is the sum of its policies', and how often it beats another the
    mean over pairs of their seats. Of several teams each pair counts for its share of an episode.
    Raises MissingExtra without openskill.
    Source: Bradley & Terry, "Rank analysis of incomplete block designs", Biometrika 39, 1952.
    """
    model = _model()
    if not any(table.populations):
        return {}
    signs, win_rates, counts, policies = _comparisons(table, _checked(teams, table.num_seats))
    scale = 1 / (np.sqrt(2) * model.beta)
    prior = 1 / model.sigma**2
    strengths = np.zeros(len(policies))  # above where everyone begins

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
            step = step / 2  # the logarithm of the likelihood is concave: some step this way is uphill
        strengths = strengths + step
        if np.abs(step).max() <= SMALL:
            break
    # Games say how policies stand to each other; where all stand together, only the prior does.
    centering = np.eye(len(policies)) - 1 / max(1, len(policies))
    deviations = np.sqrt(np.maximum(0, np.diag(centering @ np.linalg.inv(curvature(strengths)) @ centering)))
    return {
        policy: Rating(model.mu + float(strength), float(deviation))
        for policy, strength, deviation in zip(policies, strengths, deviations, strict=True)
    }


def _comparisons(table: PayoffTable, teams: Teams) -> tuple[Array, Array, Array, list[int]]:
    """Return what compares teams: who is on which side (comparisons, policies), how often the first won, episodes."""
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
    """Return teams of all seats. Raises PlanError where a seat is in none or in several, or all are in one."""
    if teams is None:
        return [(seat,) for seat in range(num_seats)]
    if sorted(seat for team in teams for seat in team) != list(range(num_seats)) or len(teams) < 2 or not all(teams):
        raise PlanError(f"teams={teams!r} do not part the seats 0 to {num_seats - 1}; each is in one of two or more")
    return teams


def _model() -> Any:
    try:
        from openskill.models import PlackettLuce
    except ImportError as error:
        raise MissingExtra('ratings need openskill: pip install "pufferlib[games]"') from error
    return PlackettLuce()
