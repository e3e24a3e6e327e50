"""Meta-solvers, held to games whose solutions are known, and to what nashpy and OpenSpiel find in random ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from population_reference import FILE, SHAPES, payoffs_of

from pufferlib.errors import PlanError
from pufferlib.population import solvers

pytestmark = pytest.mark.beside

REFERENCE = json.loads(FILE.read_text())
SOLVERS = {
    "lp_nash": solvers.lp_nash,
    "fictitious_play": solvers.fictitious_play,
    "projected_replicator": solvers.projected_replicator,
    "alpha_rank": solvers.alpha_rank,
}


def zero_sum(matrix: Any) -> Any:
    return np.stack([np.asarray(matrix, float), -np.asarray(matrix, float)])


ROCK_PAPER_SCISSORS = zero_sum([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])


def blotto() -> Any:
    """Five soldiers on three fields; who has more of a field wins it, and who wins more fields the battle."""
    ways = [(a, b, 5 - a - b) for a in range(6) for b in range(6 - a)]
    return zero_sum([[np.sign(np.sign(np.subtract(one, two)).sum()) for two in ways] for one in ways])


@pytest.mark.parametrize("name", SOLVERS)
def test_rock_paper_scissors_is_played_evenly(name: str) -> None:
    for mixture in SOLVERS[name](ROCK_PAPER_SCISSORS):
        np.testing.assert_allclose(mixture, 1 / 3, atol=0.02 if name == "fictitious_play" else 1e-9)


@pytest.mark.parametrize(
    ("name", "most"), [("lp_nash", 1e-9), ("fictitious_play", 0.05), ("projected_replicator", 0.05)]
)
def test_blotto_is_solved(name: str, most: float) -> None:
    payoffs = blotto()
    mixtures = SOLVERS[name](payoffs)
    assert solvers.nash_conv(payoffs, mixtures) < most
    np.testing.assert_allclose(solvers.expected(payoffs, mixtures), 0, atol=most)


def test_a_dominant_policy_is_played_alone() -> None:
    payoffs = np.zeros((3, 2, 2, 2))
    for seat in range(3):
        payoffs[seat] = np.moveaxis(np.broadcast_to([0.0, 1.0], (2, 2, 2)), -1, seat)  # the second pays more, always
    for name in ("fictitious_play", "projected_replicator", "alpha_rank"):
        for mixture in SOLVERS[name](payoffs):
            assert mixture[1] > 0.97, name
    assert [mixture.tolist() for mixture in solvers.last(payoffs)] == [[0.0, 1.0]] * 3
    assert [mixture.tolist() for mixture in solvers.uniform(payoffs)] == [[0.5, 0.5]] * 3


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if len(shape) == 2])
def test_equilibria_are_those_of_nashpy(name: str) -> None:
    mixtures = solvers.lp_nash(payoffs_of(name, zero_sum=True))
    for mixture, wanted in zip(mixtures, REFERENCE[f"nash {name}"], strict=True):
        np.testing.assert_allclose(mixture, wanted, atol=1e-8)


@pytest.mark.parametrize("key", [key for key in REFERENCE if not key.startswith("nash")])
def test_dynamics_are_those_of_openspiel(key: str) -> None:
    kind, parameter, name, is_zero_sum = key.split()
    payoffs = payoffs_of(name, is_zero_sum == "True")
    if kind == "alpha_rank":
        alpha = None if parameter == "None" else float(parameter)
        mixtures = solvers.alpha_rank_joint(payoffs, alpha, epsilon=1e-3)
        np.testing.assert_allclose(mixtures.reshape(-1), REFERENCE[key], atol=1e-8)
    else:
        mixtures = solvers.projected_replicator(payoffs, int(parameter), dt=0.05, gamma=1e-3)
        for mixture, wanted in zip(mixtures, REFERENCE[key], strict=True):
            np.testing.assert_allclose(mixture, wanted, atol=1e-8)


@settings(max_examples=8)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 6))
def test_solvers_find_equilibria_of_random_games(seed: int, rows: int, columns: int) -> None:
    payoffs = zero_sum(np.random.default_rng(seed).uniform(-1, 1, (rows, columns)))
    best = solvers.expected(payoffs, solvers.lp_nash(payoffs))
    for name, most in (("lp_nash", 1e-7), ("fictitious_play", 0.2), ("projected_replicator", 0.2)):
        mixtures = SOLVERS[name](payoffs)
        assert 0 <= solvers.nash_conv(payoffs, mixtures) + 1e-9 < most, name
        np.testing.assert_allclose(solvers.expected(payoffs, mixtures), best, atol=most)
        assert all(mixture.min() >= 0 and abs(mixture.sum() - 1) < 1e-9 for mixture in mixtures)


def test_rectified_nash_trains_against_whom_one_beats() -> None:
    """In rock, paper, scissors each amplifies its strength; who plays evenly trains against all."""
    mixtures = solvers.rectified_nash(ROCK_PAPER_SCISSORS)
    for seat in (0, 1):
        targets = solvers.rectified(ROCK_PAPER_SCISSORS, mixtures, seat)
        for policy, weights in targets.items():
            beaten, itself = (policy + 2) % 3, policy
            wanted = np.zeros(3)
            wanted[[beaten, itself]] = 0.5
            np.testing.assert_allclose(weights, wanted, atol=1e-9)
        assert list(targets) == [0, 1, 2]


@pytest.mark.parametrize(
    ("solver", "payoffs", "message"),
    [
        (solvers.lp_nash, np.ones((3, 2, 2, 2)), "two seats, not 3"),
        (solvers.lp_nash, np.stack([np.eye(2), np.eye(2)]), "sum to 0 in one cell, to 2 in another"),
        (solvers.alpha_rank, np.full((2, 2, 2), np.nan), "missing"),
        (solvers.fictitious_play, np.ones((2, 2)), r"\(num_seats, n_0, n_1, …\)"),
    ],
)
def test_payoffs_that_a_solver_is_not_for_are_refused(solver: Any, payoffs: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        solver(payoffs)
