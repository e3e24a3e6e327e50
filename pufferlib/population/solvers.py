"""Meta-solvers: compute, from payoffs, the probabilities with which each seat should play its policies.

A solver takes payoffs, float64 (num_seats, n_0, n_1, …), and returns a list of each seat's probabilities, (n_seat,).
All solvers are deterministic. ``uniform`` and ``last`` ignore the payoffs; ``fictitious_play``,
``projected_replicator`` and ``alpha_rank`` accept any number of seats and any finite payoffs; ``lp_nash`` and
``rectified_nash`` accept two seats whose payoffs sum to a constant, and need SciPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from pufferlib.errors import MissingExtra, PlanError
from pufferlib.population.matchmaking import product
from pufferlib.util.annotations import Array
from pufferlib.util.suggestions import meant

__all__ = [
    "SOLVERS",
    "Solver",
    "alpha_rank",
    "alpha_rank_joint",
    "expected",
    "fictitious_play",
    "last",
    "lp_nash",
    "nash_conv",
    "projected_replicator",
    "rectified",
    "rectified_nash",
    "solver_of",
    "uniform",
]

Solver = Callable[[Array], list[Array]]

SAME = 1e-10  # payoffs that differ by less count as equal


def uniform(payoffs: Array) -> list[Array]:
    """Return the uniform distribution, whatever the payoffs. PSRO with this solver is fictitious self-play."""
    return [np.full(size, 1 / size) for size in np.shape(payoffs)[1:]]


def last(payoffs: Array) -> list[Array]:
    """Return probability 1 for the newest policy, whatever the payoffs. PSRO with this solver is self-play."""
    return [np.eye(size)[-1] for size in np.shape(payoffs)[1:]]


def lp_nash(payoffs: Array) -> list[Array]:
    """Return a Nash equilibrium of a constant-sum game of two seats, computed by linear programs (HiGHS).

    The solution is a vertex, and therefore sparse. Raises PlanError for other games and for payoffs that are not
    finite, MissingExtra if SciPy is not installed.
    """
    matrix = _constant_sum(payoffs)
    return [_maximin(matrix), _maximin(-matrix.T)]


def _maximin(matrix: Array) -> Array:
    """Return the row player's strategy x with the highest guaranteed payoff v: x · matrix ≥ v in each column."""
    try:
        from scipy.optimize import linprog
    except ImportError as error:
        raise MissingExtra('linear programs need SciPy: pip install "pufferlib[games]"') from error
    rows, columns = matrix.shape
    solution = linprog(
        np.append(np.zeros(rows), -1.0),
        A_ub=np.hstack([-matrix.T, np.ones((columns, 1))]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * rows + [(None, None)],
        method="highs",
    )
    assert solution.success, solution.message  # such a program has a solution
    return _normal(solution.x[:-1])


def fictitious_play(payoffs: Array, num_iterations: int = 2000) -> list[Array]:
    """Return each seat's frequencies of its policies in fictitious play, normalized to sum to 1.

    In each iteration, all seats move at once, and each plays a best response to the other seats' average play so far.
    All seats begin with their first policies; ties go to the first of the tied policies. Raises PlanError for payoffs
    that are not finite or have the wrong shape, and for a num_iterations that is not an integer of at least 1.
    Source: Brown, "Iterative solution of games by fictitious play", 1951.
    """
    payoffs = _checked(payoffs)
    _require_count("num_iterations", num_iterations)
    counts = [np.eye(size)[0] for size in payoffs.shape[1:]]
    if payoffs.shape[0] == 2:  # what each response adds to the other's values is a row or a column
        values = [payoffs[0][:, 0].copy(), payoffs[1][0].copy()]
        for _ in range(num_iterations - 1):
            row, column = int(values[0].argmax()), int(values[1].argmax())
            counts[0][row] += 1
            counts[1][column] += 1
            values[0] += payoffs[0][:, column]
            values[1] += payoffs[1][row]
        return [count / count.sum() for count in counts]
    for _ in range(num_iterations - 1):
        mixtures = [count / count.sum() for count in counts]
        best = [int(_values(payoffs, mixtures, seat).argmax()) for seat in range(len(mixtures))]
        for count, index in zip(counts, best, strict=True):
            count[index] += 1
    return [count / count.sum() for count in counts]


def projected_replicator(
    payoffs: Array,
    num_iterations: int = 3000,
    dt: float = 0.1,
    gamma: float = 1e-10,
    start: Sequence[Array] | None = None,
) -> list[Array]:
    """Return the time average of replicator dynamics in which no probability falls below ``gamma``.

    dt: the step size; payoffs are not rescaled. start: each seat's initial probabilities; by default, uniform. Raises
    PlanError for invalid payoffs, num_iterations, dt, gamma or start.
    Source: Lanctot et al., "A unified game-theoretic approach to multiagent reinforcement learning", 2017.
    """
    payoffs = _checked(payoffs)
    _require_count("num_iterations", num_iterations)
    if not 0 < dt < np.inf or not 0 <= gamma * max(payoffs.shape[1:]) <= 1:
        raise PlanError(
            f"dt={dt}, gamma={gamma}: dt must be above 0 and finite, gamma from 0 to 1/{max(payoffs.shape[1:])}, "
            "because it is a lower bound of every policy's probability"
        )
    mixtures = uniform(payoffs) if start is None else _checked_start(start, payoffs.shape[1:])
    sums = [np.zeros_like(marginal) for marginal in mixtures]
    for _ in range(num_iterations):
        values = [_values(payoffs, mixtures, seat) for seat in range(len(mixtures))]
        mixtures = [
            _project(share + dt * share * (value - value @ share), gamma)
            for share, value in zip(mixtures, values, strict=True)
        ]
        for total, share in zip(sums, mixtures, strict=True):
            total += share
    return [total / num_iterations for total in sums]


def _checked_start(start: Sequence[Any], sizes: Sequence[int]) -> list[Array]:
    """Return initial probabilities as arrays, one per seat. sizes: the number of each seat's policies.

    Raises PlanError if they are not the marginals of a ``Mixture`` of populations of these sizes.
    """
    try:
        return list(product([range(size) for size in sizes], start).marginals)
    except (PlanError, TypeError, ValueError) as error:
        raise PlanError(
            f"start={start!r} does not fit {sizes} policies ({error}); pass an array of probabilities for each seat"
        ) from error


def _project(point: Array, minimum: float) -> Array:
    """Return the distribution nearest to a point, among distributions whose probabilities are all at least ``minimum``.

    point: numbers that sum to 1, except for rounding errors.
    Source: Duchi et al., 2008, for the simplex.
    """
    size = len(point)
    if point.min() >= minimum:
        # The dynamics keep the sum, except for rounding errors, which this corrects.
        return np.asarray(point / point.sum())
    room = 1 - size * minimum
    shifted = point - minimum
    ordered = -np.sort(-shifted)
    excess = (ordered.cumsum() - room) / np.arange(1, size + 1)
    return np.asarray(np.maximum(shifted - excess[np.flatnonzero(ordered > excess)[-1]], 0) + minimum)


def alpha_rank(payoffs: Array, alpha: float | None = None, epsilon: float = 1e-4) -> list[Array]:
    """Return the marginals of ``alpha_rank_joint``, which explains the arguments."""
    joint = alpha_rank_joint(payoffs, alpha, epsilon)
    axes = range(joint.ndim)
    return [joint.sum(tuple(other for other in axes if other != axis)) for axis in axes]


def alpha_rank_joint(
    payoffs: Array, alpha: float | None = None, epsilon: float = 1e-4, population_size: int = 50
) -> Array:
    """Return α-Rank's stationary distribution over all combinations of policies, (n_0, n_1, …).

    In each step of an evolving population, a mutant challenges one seat's policy, and takes over with a probability
    that grows with its advantage in payoff. alpha: the intensity of selection; by default infinite, so that better
    mutants take over with probability 1 - ``epsilon``, worse ones with ``epsilon``, and equal ones with 1/2.
    population_size: the number of individuals, used only if alpha is finite. Solves a dense system with one equation
    per combination, which takes 0.1 s for 40 × 40 policies. Raises PlanError for invalid arguments, and for an alpha so
    large that the stationary distribution is not unique, because worse mutants never take over.
    Source: Omidshafiei et al., "α-Rank: Multi-agent evaluation by evolution", 2019; for infinite alpha, Rowland et al.,
    2019.
    """
    payoffs = _checked(payoffs)
    if not _between(epsilon, 0, 1) or not (alpha is None or _between(alpha, 0, np.inf)):
        raise PlanError(f"{alpha=}, {epsilon=}: alpha must be above 0 and finite, or None; epsilon between 0 and 1")
    _require_count("population_size", population_size)
    sizes = payoffs.shape[1:]
    total = prod(sizes)
    num_mutants = sum(size - 1 for size in sizes)
    if not num_mutants:
        return np.ones(sizes)
    flows = np.zeros((total, total))
    index = np.arange(total).reshape(sizes)
    for seat, size in enumerate(sizes):
        # Each line holds the combinations that differ only in this seat.
        lines = np.moveaxis(index, seat, -1).reshape(-1, size)
        seat_payoffs = np.moveaxis(payoffs[seat], seat, -1).reshape(-1, size)
        differences = seat_payoffs[:, None, :] - seat_payoffs[:, :, None]  # (lines, from, to)
        rates = _takeover(differences, alpha, epsilon, population_size) / num_mutants
        flows[lines[:, :, None], lines[:, None, :]] += rates
    flows[np.arange(total), np.arange(total)] = 0
    flows[np.arange(total), np.arange(total)] = 1 - flows.sum(1)
    equations = flows.T - np.eye(total)
    equations[-1] = 1  # one equation is redundant; the sum of probabilities replaces it
    constants = np.zeros(total)
    constants[-1] = 1
    try:
        return _normal(np.linalg.solve(equations, constants)).reshape(sizes)
    except np.linalg.LinAlgError as error:
        raise PlanError(f"{alpha=} is so large that worse mutants never take over; use less, or None") from error


def _takeover(differences: Array, alpha: float | None, epsilon: float, population_size: int) -> Array:
    """Return the probability that a mutant takes over, for each of its payoff differences.

    differences: the mutant's payoffs minus those of the policies that it challenges.
    """
    if alpha is None:
        return np.where(np.abs(differences) < SAME, 0.5, np.where(differences > 0, 1 - epsilon, epsilon))
    exponents = alpha * np.where(np.abs(differences) < SAME, 1.0, differences)
    with np.errstate(over="ignore", invalid="ignore"):
        fixations = np.expm1(-exponents) / np.expm1(-population_size * exponents)
    # Both overflow far below 0, where the mutant has no chance.
    return np.where(np.abs(differences) < SAME, 1 / population_size, np.where(np.isfinite(fixations), fixations, 0.0))


def rectified_nash(payoffs: Array) -> list[Array]:
    """Return the equilibrium of ``lp_nash``.

    With this solver, PSRO trains against the opponents chosen by ``rectified``.
    """
    return lp_nash(payoffs)


SOLVERS: dict[str, Solver] = {
    "alpha_rank": alpha_rank,
    "fictitious_play": fictitious_play,
    "last": last,
    "lp_nash": lp_nash,
    "projected_replicator": projected_replicator,
    "rectified_nash": rectified_nash,
    "uniform": uniform,
}


def solver_of(solver: str | Solver) -> Solver:
    """Return the solver with this name in SOLVERS; return a function unchanged. Raises PlanError for other values."""
    if callable(solver):
        return solver
    if not isinstance(solver, str) or solver not in SOLVERS:
        raise PlanError(f"solver={solver!r} is none; {meant(str(solver), SOLVERS)}")
    return SOLVERS[solver]


def rectified(payoffs: Array, mixtures: Sequence[Array], seat: int) -> dict[int, Array]:
    """Return, for each policy that a seat plays, the probabilities of the opponents that its successor trains against.

    The keys are the policies' indices in the seat's population. Opponents against which the policy gets at least the
    value of the mixtures are weighted as in the mixture, all others by 0. In a symmetric game, the former are the
    opponents that the policy beats or draws with. This amplifies strengths and keeps the population diverse. A policy
    is omitted if all its opponents have weight 0.
    Raises PlanError unless the payoffs are those of two seats, are finite, and sum to a constant.
    Source: Balduzzi et al., "Open-ended learning in symmetric zero-sum games", 2019.
    """
    matrix = _constant_sum(payoffs)
    advantages = (matrix if seat == 0 else -matrix.T) - (1 if seat == 0 else -1) * _value(matrix, mixtures)
    weights_by_policy = {}
    for policy in np.flatnonzero(mixtures[seat] > SAME).tolist():
        weights = np.where(advantages[policy] >= -SAME, mixtures[1 - seat], 0.0)
        if weights.sum() > 0:
            weights_by_policy[policy] = weights / weights.sum()
    return weights_by_policy


def _value(matrix: Array, mixtures: Sequence[Array]) -> float:
    return float(mixtures[0] @ matrix @ mixtures[1])


# ---------------------------------------------------------------------------------------------------------- measures


def expected(payoffs: Array, mixtures: Sequence[Array]) -> Array:
    """Return each seat's expected payoff, (num_seats,), if all seats draw from these mixtures."""
    seats = range(len(mixtures))
    return np.array([_values(payoffs, mixtures, seat) @ mixtures[seat] for seat in seats])


def nash_conv(payoffs: Array, mixtures: Sequence[Array]) -> float:
    """Return the sum, over all seats, of what a seat would gain if it alone switched to its best policy."""
    payoffs = _checked(payoffs)
    best = sum(_values(payoffs, mixtures, seat).max() for seat in range(len(mixtures)))
    return float(best - expected(payoffs, mixtures).sum())


def _values(payoffs: Array, mixtures: Sequence[Array], seat: int) -> Array:
    """Return the payoffs of a seat's policies against the other seats' mixtures, (n_seat,)."""
    if len(mixtures) == 2:  # the usual case, which dynamics compute thousands of times
        return np.asarray(payoffs[0] @ mixtures[1] if seat == 0 else mixtures[0] @ payoffs[1])
    values = np.moveaxis(payoffs[seat], seat, 0)
    for mixture in reversed([marginal for other, marginal in enumerate(mixtures) if other != seat]):
        values = values @ mixture
    return np.asarray(values)


def _checked(payoffs: Array) -> Array:
    payoffs = np.asarray(payoffs, np.float64)
    if payoffs.ndim < 2 or len(payoffs) != payoffs.ndim - 1 or 0 in payoffs.shape:
        raise PlanError(f"payoffs of shape {payoffs.shape} are not (num_seats, n_0, n_1, …) with n_i at least 1")
    if not np.isfinite(payoffs).all():
        raise PlanError("some payoffs are not known yet, or not finite; PayoffTable.missing() names empty cells")
    return payoffs


def _between(value: Any, low: float, high: float) -> bool:
    """Return whether a value is a number between two others."""
    return isinstance(value, (int, float, np.number)) and bool(low < value < high)


def _require_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise PlanError(f"{name}={value!r} must be a whole number of at least 1")


def _constant_sum(payoffs: Array) -> Array:
    """Return the first seat's payoffs. Raises PlanError unless there are two seats, whose payoffs sum to a constant."""
    payoffs = _checked(payoffs)
    if len(payoffs) != 2:
        raise PlanError(f"this solver is for two seats, not {len(payoffs)}; use alpha_rank or projected_replicator")
    sums = payoffs.sum(0)
    if np.ptp(sums) > 1e-6 * max(1.0, np.abs(payoffs).max()):
        raise PlanError(
            f"the seats' payoffs sum to {sums.min():.4g} in one cell, to {sums.max():.4g} in another, but this solver "
            "is for constant sums; use alpha_rank or projected_replicator or, if the payoffs are samples of a game "
            "whose sum is 0, pass np.stack([payoffs[0], -payoffs[0]])"
        )
    return np.asarray(payoffs[0])


def _normal(values: Array) -> Array:
    """Return values as probabilities: set negative values, which are rounding errors, to 0; normalize the sum to 1."""
    values = np.maximum(values, 0)
    return np.asarray(values / values.sum())
