"""Loops that grow populations: self-play, fictitious self-play, and policy-space response oracles (PSRO)."""

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
Targets = Callable[[Array, Mixture, int], Sequence[Mixture]]  # (payoffs, mixture, seat) -> the mixtures to respond to


class Iteration(NamedTuple):
    """The state of a loop before its next responses are computed.

    number: how many iterations have been completed, 0 at first. mixture: the mixture over the current populations.
    nash_conv: the mixture's NashConv, as returned by ``measure``; None if there is no ``measure``. seconds: the time
    since the loop started.
    """

    number: int
    mixture: Mixture
    nash_conv: float | None
    seconds: float

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of policies of each seat."""
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
    """Return an endless iterator over PSRO's iterations: evaluate, solve for a mixture, respond to it in each seat.

    oracle: the oracle that computes the responses. table: the payoff table of the populations; a seat without policies
        starts with the oracle's initial policy.
    solver: the function that computes the mixture, or its name in ``solvers.SOLVERS``, such as "lp_nash".
    evaluate: a function that fills the table's missing cells, such as an ``Evaluator`` or ``ExactOracle.evaluate``; may
        be omitted if the solver reads no payoffs. measure: a function that returns a mixture's NashConv, such as
        ``ExactOracle.nash_conv``.
    targets: a function of (payoffs, mixture, seat) that returns the mixtures to which the seat's new policies respond,
        one policy per mixture. By default, ``rectified_targets`` for the solver name "rectified_nash", else only the
        solver's mixture.

    Raises PlanError for an unknown solver name.
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
    """Return an endless iterator over iterations in which each seat responds to the others' newest policies.

    oracle, table, measure: see ``psro``.
    """
    return psro(oracle, table, last, measure=measure)


def fictitious_self_play(oracle: Oracle, table: PayoffTable, *, measure: Measure | None = None) -> Iterator[Iteration]:
    """Return an endless iterator over iterations in which each seat responds to uniform mixtures of others' policies.

    oracle, table, measure: see ``psro``.
    Source: Heinrich, Lanctot & Silver, "Fictitious self-play in extensive-form games", 2015.
    """
    return psro(oracle, table, uniform, measure=measure)


def rectified_targets(payoffs: Array, mixture: Mixture, seat: int) -> list[Mixture]:
    """Return a seat's targets in PSRO with rectified Nash: one mixture for each policy in the result of ``rectified``.

    In the mixture for a policy, the other seat's policies have the probabilities that ``rectified`` returns for that
    policy. payoffs: (2, n_0, n_1). Raises PlanError unless the payoffs are finite and sum to a constant.
    """
    weights_by_policy = rectified(payoffs, mixture.marginals, seat)
    other = 1 - seat
    return [
        product(mixture.populations, [weights if index == other else mixture.marginals[index] for index in range(2)])
        for weights in weights_by_policy.values()
    ]


def targets_of(solver: str | Solver) -> Targets | None:
    """Return the default ``targets`` of ``psro`` for a solver or its name; None if its mixture is the only target."""
    return rectified_targets if solver == "rectified_nash" else None
