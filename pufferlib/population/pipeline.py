"""Pipeline PSRO: several levels of responses train at once, each against the levels below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.population.loops import Iteration
from pufferlib.population.matchup import Mixture, product
from pufferlib.population.oracle import ImprovingOracle, improve_all
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.solvers import Solver, solver_of

__all__ = ["pipeline_psro"]


def pipeline_psro(
    oracle: ImprovingOracle,
    table: PayoffTable,
    solver: str | Solver,
    *,
    evaluate: Callable[[PayoffTable], Any],
    num_levels: int = 3,
    min_gain: float = 0.0,
    patience: int = 1,
    measure: Callable[[Mixture], float] | None = None,
) -> Iterator[Iteration]:
    """Yield iterations endlessly; after each, improve all learning levels for a while and evaluate them.

    A level has one policy per seat. Above the frozen levels, ``num_levels`` levels learn at the same time, each against
    the solver's mixture of all levels below it, including those that still learn. The lowest learning level trains
    against a fixed mixture. If for ``patience`` iterations none of this level's learners has raised its payoff against
    that mixture by more than ``min_gain``, the level is frozen and a new level starts at the top. An iteration's
    mixture covers only the frozen levels.

    oracle: the oracle that trains the learners; a ``RemoteOracle`` trains all levels in parallel, with the same
    results. table, solver, evaluate, measure: as for ``psro``, but evaluate is required, and a solver's name does not
    select targets. The table's populations must have the same size, and their policies must be frozen. If payoffs are
    sampled, min_gain should exceed their sampling noise.

    Raises PlanError for populations of different sizes, counts below 1, a negative min_gain, or an unknown solver name.
    Source: McAleer, Lanier, Fox & Baldi, "Pipeline PSRO: a scalable approach for finding approximate Nash equilibria in
    large games", 2020.
    """
    if num_levels < 1 or patience < 1 or min_gain < 0:
        raise PlanError(f"{num_levels=}, {patience=}: at least 1; {min_gain=}: at least 0")
    solve = solver_of(solver)
    start, number = perf_counter(), 0
    seats = range(table.num_seats)
    for seat in seats:
        if not table.populations[seat]:
            table.add(seat, oracle.initial(seat))
    frozen = len(table.populations[0])
    if any(len(ids) != frozen for ids in table.populations):
        raise PlanError(f"populations of {[len(ids) for ids in table.populations]} policies have no common levels")
    best, num_stalled = np.full(len(seats), -np.inf), 0
    while True:
        while len(table.populations[0]) < frozen + num_levels:
            for seat in seats:
                table.add(seat, oracle.begin(seat))
        evaluate(table)
        mixture = _mixture_below(table, solve, frozen)
        values = np.array([_value(table, mixture, seat, frozen) for seat in seats])
        num_stalled = 0 if (values > best + min_gain).any() else num_stalled + 1
        best = np.maximum(best, values)
        if num_stalled == patience:
            for seat in seats:
                learner = table.populations[seat][frozen]
                table.replace(seat, learner, oracle.pool.freeze(learner))
                oracle.pool.drop(learner)
            frozen, best, num_stalled = frozen + 1, np.full(len(seats), -np.inf), 0
            continue
        nash_conv = None if measure is None else measure(mixture)
        yield Iteration(number, mixture, nash_conv, perf_counter() - start)
        # From the top, so that no level trains against policies that this iteration has already improved.
        requests = [
            (seat, table.populations[seat][level], target)
            for level in reversed(range(frozen, frozen + num_levels))
            for target in [_mixture_below(table, solve, level)]
            for seat in seats
        ]
        improve_all(oracle, requests)
        for seat, learner, _ in requests:
            table.clear(seat, learner)
        number += 1


def _mixture_below(table: PayoffTable, solver: Solver, level: int) -> Mixture:
    """Return the solver's mixture over all levels below the given one."""
    cells = (slice(None), *[slice(level)] * table.num_seats)
    return product([ids[:level] for ids in table.populations], solver(table.means[cells]))


def _value(table: PayoffTable, mixture: Mixture, seat: int, level: int) -> float:
    """Return the payoff of a seat's policy at a level against a mixture of the levels below it."""
    payoffs = np.take(table.means[seat], level, axis=seat)
    for other, marginal in enumerate(mixture.marginals):
        if other != seat:
            payoffs = np.tensordot(marginal, payoffs[: len(marginal)], (0, 0))
    return float(payoffs)
