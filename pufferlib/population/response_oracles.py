"""Policy-space response oracles (PSRO): populations that grow by responses to mixtures of their policies.

``psro`` repeats three steps: evaluate the populations, solve for a mixture, and add an oracle's response to it in each
seat. ``self_play`` and ``fictitious_self_play`` are special cases. ``pipeline_psro`` trains the responses of several
levels at once. An ``Oracle`` makes the responses; ``ExactOracle`` (games/exact_oracle.py) computes the best ones of a
small game.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.population.matchmaking import Mixture, product
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.pool import PolicyPool
from pufferlib.population.solvers import Solver, last, rectified, solver_of, uniform
from pufferlib.util.annotations import Array

__all__ = [
    "Evaluate",
    "ImprovingOracle",
    "Iteration",
    "Oracle",
    "Targets",
    "fictitious_self_play",
    "pipeline_psro",
    "psro",
    "rectified_targets",
    "self_play",
    "targets_of",
]

Evaluate = Callable[[PayoffTable], Any]
Measure = Callable[[Mixture], float]
Targets = Callable[[Array, Mixture, int], Sequence[Mixture]]  # (payoffs, mixture, seat) -> the mixtures to respond to


class Oracle(Protocol):
    """The interface of an oracle, which creates policies and adds them to its pool."""

    def initial(self, seat: int) -> int:
        """Create a seat's first policy and return its id."""

    def respond(self, seat: int, mixture: Mixture) -> int:
        """Create a policy for a seat, and return its id.

        The policy plays as well as possible against the other seats of the mixture.
        """


class ImprovingOracle(Protocol):
    """An oracle that improves policies step by step, as learners of its pool."""

    pool: PolicyPool

    def initial(self, seat: int) -> int:
        """Create a seat's first policy, which is frozen, and return its id."""

    def begin(self, seat: int) -> int:
        """Create a learner for a seat and return its id."""

    def improve(self, seat: int, learner: int, mixture: Mixture) -> None:
        """Improve a learner for a while against the other seats of a mixture, and publish the result."""


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
    start, seats, number = perf_counter(), range(table.num_seats), 0
    _add_initial(oracle, table)
    while True:
        if evaluate is not None:
            evaluate(table)
        mixture = product(table.populations, solver(table.means))
        nash_conv = None if measure is None else measure(mixture)
        yield Iteration(number, mixture, nash_conv, perf_counter() - start)
        targets_by_seat = [[mixture] if targets is None else targets(table.means, mixture, seat) for seat in seats]
        requests = [(seat, target) for seat in seats for target in targets_by_seat[seat]]
        for (seat, _), policy in zip(requests, _respond_all(oracle, requests), strict=True):
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


def pipeline_psro(
    oracle: ImprovingOracle,
    table: PayoffTable,
    solver: str | Solver,
    *,
    evaluate: Evaluate,
    num_levels: int = 3,
    min_gain: float = 0.0,
    patience: int = 1,
    measure: Measure | None = None,
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
    start, seats, number = perf_counter(), range(table.num_seats), 0
    _add_initial(oracle, table)
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
        _improve_all(oracle, requests)
        for seat, learner, _ in requests:
            table.clear(seat, learner)
        number += 1


def _add_initial(oracle: Oracle | ImprovingOracle, table: PayoffTable) -> None:
    """Add an oracle's initial policy to each empty population of a table."""
    for seat, ids in enumerate(table.populations):
        if not ids:
            table.add(seat, oracle.initial(seat))


def _respond_all(oracle: Oracle, requests: Sequence[tuple[int, Mixture]]) -> list[int]:
    """Create a response to each (seat, mixture), and return the responses' ids, in the order of the requests.

    If the oracle has a method ``respond_all``, calls it once, with all requests.
    """
    batch_method = getattr(oracle, "respond_all", None)
    if batch_method is not None:
        return list(batch_method(requests))
    return [oracle.respond(seat, mixture) for seat, mixture in requests]


def _improve_all(oracle: ImprovingOracle, requests: Sequence[tuple[int, int, Mixture]]) -> None:
    """Improve the learner of each (seat, learner, mixture).

    If the oracle has a method ``improve_all``, calls it once, with all requests.
    """
    batch_method = getattr(oracle, "improve_all", None)
    if batch_method is not None:
        batch_method(requests)
        return
    for seat, learner, mixture in requests:
        oracle.improve(seat, learner, mixture)


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
