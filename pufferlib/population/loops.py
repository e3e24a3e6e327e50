"""Loops that make populations grow: self-play, fictitious self-play, and policy-space response oracles (PSRO)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from pufferlib.population.matchup import Mixture, product
from pufferlib.population.oracle import Oracle, respond_all
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.solvers import Solver, last, rectified, solver_of, uniform

__all__ = ["Iteration", "Targets", "fictitious_self_play", "psro", "rectified_targets", "self_play"]

Array = np.ndarray[Any, Any]
Evaluate = Callable[[PayoffTable], Any]
Measure = Callable[[Mixture], float]
Targets = Callable[[Array, Mixture, int], Sequence[Mixture]]  # of payoffs, mixture and seat: whom to respond to


class Iteration(NamedTuple):
    """The state of a loop before its next responses are made.

    number: of iterations done, 0 at first. mixture: over the populations as they are. nash_conv: of it, as ``measure``
    says; None without one. seconds: since the loop began.
    """

    number: int
    mixture: Mixture
    nash_conv: float | None
    seconds: float

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many policies each seat has."""
        return tuple(map(len, self.mixture.populations))


def psro(
    oracle: Oracle,
    table: PayoffTable,
    solver: str | Solver,
    *,
    evaluate: Evaluate | None = None,
    measure: Measure | None = None,
    targets: Targets | None = None,
) -> Iterator[Iteration]:
    """Return iterations, one after another, without end: solve for a mixture, respond to it in each seat, evaluate.

    table: of the populations; an empty one begins with the oracle's initial policies, any other goes on. solver: whose
    mixture is responded to, a function or its word in a league's file, such as "lp_nash"; "rectified_nash" brings its
    targets, as it does there. evaluate: fills the table's missing cells, an ``Evaluator`` or ``ExactOracle.evaluate``;
    None where the solver reads no payoffs. measure: such as ``ExactOracle.nash_conv``. targets: whom new policies of a
    seat respond to, one policy each; None: to the mixture. Raises PlanError for a word that is no solver.
    Source: Lanctot et al., "A unified game-theoretic approach to multiagent reinforcement learning", 2017.
    """
    solve = solver_of(solver)
    targets = targets_of(solver) if targets is None else targets
    return _psro(oracle, table, solve, evaluate, measure, targets)


def _psro(
    oracle: Oracle,
    table: PayoffTable,
    solver: Solver,
    evaluate: Evaluate | None,
    measure: Measure | None,
    targets: Targets | None,
) -> Iterator[Iteration]:
    start, number = perf_counter(), 0
    seats = range(table.num_seats)
    for seat in seats:
        if not table.populations[seat]:
            table.add(seat, oracle.initial(seat))
    while True:
        if evaluate is not None:
            evaluate(table)
        mixture = product(table.populations, solver(table.means))
        nash_conv = None if measure is None else measure(mixture)
        yield Iteration(number, mixture, nash_conv, perf_counter() - start)
        targets_by_seat = [[mixture] if targets is None else targets(table.means, mixture, seat) for seat in seats]
        requests = [(seat, target) for seat in seats for target in targets_by_seat[seat]]
        for (seat, _), policy in zip(requests, respond_all(oracle, requests), strict=True):
            table.add(seat, policy)
        number += 1


def self_play(oracle: Oracle, table: PayoffTable, *, measure: Measure | None = None) -> Iterator[Iteration]:
    """Yield iterations in which each seat responds to the others' newest policies.

    oracle, table, measure: as ``psro``.
    """
    return psro(oracle, table, last, measure=measure)


def fictitious_self_play(oracle: Oracle, table: PayoffTable, *, measure: Measure | None = None) -> Iterator[Iteration]:
    """Yield iterations in which each seat responds to the average of all policies that the others have.

    oracle, table, measure: as ``psro`` has them.
    Source: Heinrich, Lanctot & Silver, "Fictitious self-play in extensive-form games", 2015.
    """
    return psro(oracle, table, uniform, measure=measure)


def rectified_targets(payoffs: Array, mixture: Mixture, seat: int) -> list[Mixture]:
    """Return whom PSRO with rectified Nash responds to: for each policy in use, those of the others that it beats."""
    weights_by_policy = rectified(payoffs, mixture.marginals, seat)
    other = 1 - seat
    return [
        product(mixture.populations, [weights if index == other else mixture.marginals[index] for index in range(2)])
        for weights in weights_by_policy.values()
    ]


def targets_of(solver: str | Solver) -> Targets | None:
    """Return whom new policies respond to by a solver's word, where that is not its mixture."""
    return rectified_targets if solver == "rectified_nash" else None
