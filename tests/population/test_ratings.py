"""Ratings: known strengths come out in their order, whichever policy played first, and with the right deviations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pufferlib.errors import PlanError
from pufferlib.population import (
    ExactOracle,
    Fixed,
    PayoffTable,
    Rated,
    Ratings,
    product,
    psro,
    rate_table,
    solvers,
    standings,
)
from pufferlib.population.payoff import pairwise_wins

pytest.importorskip("openskill")
pytestmark = [pytest.mark.beside, pytest.mark.extras]

SCALE = 25 / 6 * np.sqrt(2)  # openskill's: a difference of strengths by this is the logarithm of the odds


def table_of(strengths: Any, num_episodes: int = 200) -> PayoffTable:
    """Return a table of policies with these strengths that play each other as often as their odds say."""
    table = PayoffTable(2, [range(len(strengths))] * 2)
    for cell in np.ndindex(*table.counts.shape):
        difference = strengths[cell[0]] - strengths[cell[1]]
        won = round(num_episodes / (1 + np.exp(-difference / SCALE)))
        returns = [[1, -1]] * won + [[-1, 1]] * (num_episodes - won)
        table.update(table.matchup(cell), "", returns)
    return table


def test_rock_paper_and_scissors_are_alike() -> None:
    payoffs = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    sampled, computed = PayoffTable(2, [range(3)] * 2), PayoffTable(2, [range(3)] * 2)
    for cell in np.ndindex(3, 3):
        sampled.update(cell, "", [[payoffs[cell], -payoffs[cell]]] * 7)
    computed.fill(np.stack([payoffs, -payoffs]), sampled.wins)
    for table in (sampled, computed):
        assert [rating.mean for rating in rate_table(table).values()] == pytest.approx([25.0] * 3, abs=1e-9)
        assert all(standing.win_rate == 0.5 for standing in standings(table, product([range(3)] * 2, [[1, 0, 0]] * 2)))


def test_a_chain_of_strengths_comes_out_in_its_order_and_within_its_intervals() -> None:
    strengths = np.array([3.0, -8.0, 10.0, 0.0, -5.0])
    ratings = rate_table(table_of(strengths))
    means = np.array([ratings[policy].mean for policy in range(5)])
    np.testing.assert_allclose(means, 25 + strengths - strengths.mean(), atol=0.5)
    order = [standing.policy for standing in standings(table_of(strengths), product([range(5)] * 2, [[0.2] * 5] * 2))]
    assert order[::2] == [2, 0, 3, 4, 1]
    fewer = rate_table(table_of(strengths, 20))
    assert all(fewer[policy].deviation > ratings[policy].deviation for policy in ratings)
    low, high = ratings[2].interval()
    assert low < ratings[2].mean < high < fewer[2].interval()[1]


def test_a_tables_order_does_not_matter() -> None:
    strengths = np.array([0.0, 4.0, -6.0])
    table = table_of(strengths)
    turned = PayoffTable(2, [[2, 0, 1], [1, 2, 0]])
    rng = np.random.default_rng(1)
    for cell in rng.permutation(list(np.ndindex(3, 3))):
        matchup = turned.matchup(cell)
        won = round(200 * table.wins[(0, 1, *table.cell(matchup))])
        rows = rng.permutation([[1, -1]] * won + [[-1, 1]] * (200 - won))
        for number, part in enumerate(np.array_split(rows, 3)):
            turned.update(matchup, f"{number}", part)
    for policy, rating in rate_table(turned).items():
        assert rating == pytest.approx(rate_table(table)[policy], abs=1e-6)


def test_single_episodes_lead_to_the_same_ratings() -> None:
    strengths = np.array([0.0, 6.0, -6.0])
    table, ratings, rng = table_of(strengths), Ratings(), np.random.default_rng(1)
    for _ in range(1500):
        first, second = rng.permutation(3)[:2].tolist()
        won = rng.random() < table.wins[0, 1, first, second]
        ratings.update((first, second), [won, 1 - won])
    for policy, rating in rate_table(table).items():
        assert abs(rating.mean - ratings[policy].mean) < 6 * ratings[policy].deviation
    assert ratings[1].mean - ratings[2].mean > 6
    assert sum(map(ratings.games, range(3))) == 3000


def test_draws_seats_and_teams() -> None:
    drawn = Ratings()
    drawn.update((0, 1), [3.0, 3.0])
    assert drawn[0].mean == pytest.approx(drawn[1].mean) and drawn[0].deviation < drawn[5].deviation
    drawn.update((0, 0), [1.0, 0.0])  # oneself
    assert drawn.games(0) == 1
    three = Ratings()
    three.update((0, 1, 2), [5.0, 9.0, 7.0])
    assert three[1].mean > three[2].mean > three[0].mean
    teams = [(0, 2), (1, 3)]
    pairs, table = Ratings(teams), PayoffTable(4, [[0, 4], [1], [2], [3]])
    for policy, paid in ((0, [1, 0, 1, 0]), (4, [0, 1, 0, 1])):
        pairs.update((policy, 1, 2, 3), paid)
        table.update((policy, 1, 2, 3), "", [paid] * 20)
    assert pairs[0].mean > pairs[1].mean and pairs[0].mean > pairs[4].mean
    ratings = rate_table(table, teams)
    assert ratings[0].mean > ratings[4].mean and ratings[1].mean == pytest.approx(ratings[3].mean)
    for wrong in ([(0, 1)], [(0, 1, 2, 3)], [(0,), (0, 1)], [(), (0, 1, 2, 3)]):
        with pytest.raises(PlanError, match="teams="):
            rate_table(table, wrong)
    with pytest.raises(PlanError, match="finite"):
        three.update((0, 1, 2), [1.0, 2.0])


def test_teams_of_the_same_two_policies_are_compared_by_how_many_there_are() -> None:
    ratings = Ratings([(0, 1, 2), (3, 4, 5)])
    for _ in range(20):
        ratings.update((0, 0, 1, 0, 1, 1), (1, 1, 1, 0, 0, 0))
    assert ratings.games(0) == 20 and ratings[0].mean > 26 > 24 > ratings[1].mean
    ratings.update((0, 1, 1, 1, 0, 1), (1, 1, 1, 0, 0, 0))  # says nothing
    assert ratings.games(0) == 20


def test_a_matchmaker_is_rated_and_what_was_cut_off_is_not() -> None:
    rated = Rated(Fixed([(0, 1)]), Ratings())
    assert rated.assign([0]) == [(0, 1)]
    rated.report(0, (0, 1), None)
    rated.report(0, (0, 1), np.array([1.0, 0.0]))
    assert rated.ratings.games(0) == 1 and rated.ratings[0].mean > 25 > rated.ratings[1].mean


def test_exact_wins_are_what_episodes_come_to() -> None:
    """Kuhn: all leaves enumerated, weighed by hand."""
    oracle = ExactOracle("kuhn_poker")
    table = oracle.table()
    iterations = psro(oracle, table, solvers.uniform, evaluate=oracle.evaluate)
    for _ in range(3):
        mixture = next(iterations).mixture
    np.testing.assert_allclose(table.wins + table.wins.swapaxes(0, 1), 1)
    form, plans = oracle.form, [oracle._plan(seat, ids[1]) for seat, ids in enumerate(table.populations)]
    reach = form._chances * plans[0][form._leaves[0]] * plans[1][form._leaves[1]]
    np.testing.assert_allclose(table.wins[0, 1, 1, 1], reach @ pairwise_wins(form._returns.T)[:, 0, 1])
    rows = standings(table, mixture)
    assert {row.games for row in rows} == {None} and len(rows) == 6
    assert sum(row.payoff * row.weight for row in rows if row.seat == 0) == pytest.approx(
        solvers.expected(table.means, mixture.marginals)[0]
    )
