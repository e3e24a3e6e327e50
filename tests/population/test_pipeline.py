"""Pipeline PSRO: the populations of PSRO, levels that go on at the same time, and the same over a coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from pufferlib.errors import PlanError
from pufferlib.population import (
    Coordinator,
    Evaluator,
    ExactOracle,
    Iteration,
    PayoffTable,
    PolicyPool,
    RemoteOracle,
    pipeline_psro,
    product,
    psro,
    solvers,
)
from pufferlib.population.games import GameEnv

pytestmark = pytest.mark.beside

KUHN = partial(GameEnv, "kuhn_poker", observation="index")
LEVELS = 6  # as far as is looked


def oracle_there(vec: Any, pool: PolicyPool, seed: int, rate: float = 1.0) -> ExactOracle:
    return ExactOracle("kuhn_poker", pool, rate=rate)


def digests(pool: PolicyPool, table: PayoffTable, levels: int) -> list[list[str]]:
    return [[pool[policy].digest for policy in ids[:levels]] for ids in table.populations]


def up_to(steps: Iterator[Iteration], size: int) -> Iteration:
    return next(iteration for iteration in steps if iteration.sizes[0] == size)


def test_a_level_that_answers_at_once_is_psros_and_higher_ones_save_iterations() -> None:
    exact = ExactOracle("kuhn_poker")
    table = exact.table()
    up_to(psro(exact, table, solvers.fictitious_play, evaluate=exact.evaluate), LEVELS)
    wanted, numbers = digests(exact.pool, table, LEVELS), []
    for num_levels in (1, 3):
        exact = ExactOracle("kuhn_poker")
        table = exact.table()
        steps = pipeline_psro(
            exact, table, solvers.fictitious_play, evaluate=exact.evaluate, num_levels=num_levels, min_gain=1e-9
        )
        last = up_to(steps, LEVELS)
        assert digests(exact.pool, table, LEVELS) == wanted
        assert [len(ids) for ids in table.populations] == [LEVELS + num_levels] * 2
        assert all(policy >= 0 for ids in last.mixture.populations for policy in ids)
        assert all(policy < 0 for ids in table.populations for policy in ids[LEVELS:])
        numbers.append(last.number)
    assert numbers[1] < numbers[0]


def test_levels_that_answer_slowly_come_to_an_equilibrium_the_same_over_a_coordinator() -> None:
    """Exact tables over a coordinator are those of the loop alone, so that no level has seen what another became."""
    results, last = [], []
    for distributed in (False, True):
        pool = PolicyPool()
        exact = ExactOracle("kuhn_poker", pool, rate=0.5)
        with Coordinator(pool, KUHN) as coordinator:
            oracle: Any = RemoteOracle(coordinator, partial(oracle_there, rate=0.5)) if distributed else exact
            table = exact.table()
            steps = pipeline_psro(
                oracle, table, solvers.lp_nash, evaluate=exact.evaluate, min_gain=1e-2, measure=exact.nash_conv
            )
            last.append(up_to(steps, 8))
            results.append((digests(pool, table, 11), table.means.tobytes()))
    assert results[0] == results[1]
    assert last[0].nash_conv is not None and last[0].nash_conv < 0.25


def test_psro_and_pipelines_over_a_coordinator_with_payoffs_that_are_played() -> None:
    """The solver reads no payoffs, so that populations are those of the exact loop."""
    exact = ExactOracle("kuhn_poker")
    table = exact.table()
    up_to(psro(exact, table, solvers.uniform, evaluate=exact.evaluate), 2)
    pool = PolicyPool()
    with Coordinator(pool, KUHN, num_envs=48) as coordinator:
        evaluator = Evaluator(coordinator, pool, min_episodes=64, task_episodes=16, seed=1)
        sampled = PayoffTable(2)
        up_to(psro(RemoteOracle(coordinator, oracle_there), sampled, solvers.uniform, evaluate=evaluator), 2)
        assert digests(pool, sampled, 2) == digests(exact.pool, table, 2)
        assert (sampled.counts == 64).all()
        assert np.abs(sampled.means - table.means).max() < 1.5  # six standard errors, of returns within 2
        counted = []

        def evaluate(table: PayoffTable) -> None:
            counted.append(evaluator(table) // 64)

        oracle = RemoteOracle(coordinator, partial(oracle_there, rate=0.5))
        steps = pipeline_psro(oracle, sampled, solvers.uniform, evaluate=evaluate, num_levels=2, min_gain=0.4)
        up_to(steps, 3)
        assert sampled.populations[0][2] >= 0 > sampled.populations[0][3]
        # Only what learners play changes: of four levels the cells of the upper two, and last, where one was frozen,
        # those of the new one.
        assert counted == [12] * (len(counted) - 1) + [9]


class Remembering(ExactOracle):
    """Publishes a state with each new learner, and continues from it."""

    def begin(self, seat: int) -> int:
        learner = super().begin(seat)
        self.pool.publish(learner, state=[seat])
        return learner

    def improve(self, seat: int, learner: int, mixture: Any) -> None:
        super().improve(seat, learner, mixture)
        self.pool.publish(learner, state=[*self.pool.state(learner), "improved"])


def remembering_there(vec: Any, pool: PolicyPool, seed: int) -> ExactOracle:
    return Remembering("kuhn_poker", pool)


def test_learners_begin_with_the_state_that_was_published_for_them_there() -> None:
    pool = PolicyPool()
    with Coordinator(pool, KUHN) as coordinator:
        oracle = RemoteOracle(coordinator, remembering_there)
        mixture = product([[oracle.initial(seat)] for seat in range(2)], [[1.0], [1.0]])
        learners = [oracle.begin(seat) for seat in range(2)]
        assert [pool.state(learner) for learner in learners] == [[0], [1]]
        oracle.improve(1, learners[1], mixture)
        assert [pool.state(learner) for learner in learners] == [[0], [1, "improved"]]


def test_what_cannot_be_is_refused() -> None:
    exact = ExactOracle("kuhn_poker")
    table = exact.table()
    table.add(0, exact.initial(0))
    table.add(1, exact.initial(1))
    table.add(1, exact.begin(1))
    for wrong, says in (({}, "no common levels"), ({"num_levels": 0}, "num_levels=0"), ({"patience": 0}, "patience=0")):
        with pytest.raises(PlanError, match=says):
            next(pipeline_psro(exact, table, solvers.uniform, evaluate=exact.evaluate, **wrong))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="already in the population of seat 1"):
        table.replace(1, table.populations[1][0], table.populations[1][1])
    with pytest.raises(PlanError, match="is not in the population"):
        table.replace(1, 99, 98)
