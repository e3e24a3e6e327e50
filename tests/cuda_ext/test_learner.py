"""The compiled learner: torch's autograd is the reference for its losses, gradients and weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from learner_cases import CASES, Case, compare, compare_advantages, compare_calls, compare_tanh, fused_of, near

from cuda_ext.learner.fused import FusedLearner

pytestmark = pytest.mark.beside


ONCE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@given(case=CASES)
@example(case=Case(19, (1,), "relu", (1, 3, 6), 3, 4, 2, False, True, seed=408474))  # a minibatch without valid rows
@settings(max_examples=60, deadline=None, suppress_health_check=ONCE)
def test_one_update_is_torchs(case: Case) -> None:
    compare(case, avoid_kinks=True)


@pytest.mark.long
@given(case=CASES)
@settings(max_examples=8, deadline=None, suppress_health_check=ONCE, phases=[Phase.reuse, Phase.generate])
def test_weights_after_a_hundred_updates_are_torchs(case: Case) -> None:
    # With ReLU, a unit that float32 and float64 place on two sides of 0 may be anywhere after a hundred updates.
    compare(replace(case, num_minibatches=2, activation="tanh"), num_epochs=50)


@pytest.mark.parametrize("objective", ["ppo", "a2c"])
def test_weights_after_a_hundred_updates_with_relu_are_torchs(objective: str) -> None:
    compare(Case(activation="relu", hidden=(15, 20), num_rows=60, objective=objective), num_epochs=50)


def test_one_call_does_what_a_call_for_each_minibatch_does() -> None:
    compare_calls(Case(num_minibatches=3))


def test_units_are_tanh_of_their_inputs() -> None:
    compare_tanh()


def test_what_ignored_rows_hold_changes_nothing() -> None:
    case = Case(num_continuous=1)
    rows = case.rows()
    assert rows.masks is not None
    ignored, changed = ~rows.masks, {}
    for name, value in (("features", np.nan), ("continuous_actions", np.inf), ("log_probs", np.nan),
                        ("advantages", np.nan), ("returns", np.inf), ("discrete_actions", -1)):  # fmt: skip
        changed[name] = getattr(rows, name).copy()
        changed[name][ignored] = value
    for kind in ("tanh", "relu"):
        one, other = (fused_of(replace(case, activation=kind)) for _ in range(2))
        terms = one.update(rows, case.minibatches(), 1e-2)
        np.testing.assert_array_equal(other.update(replace(rows, **changed), case.minibatches(), 1e-2), terms)
        np.testing.assert_array_equal(one.weights, other.weights)
        assert np.isfinite(one.weights).all()


@given(case=CASES, seed=st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_outputs_are_torchs(case: Case, seed: int) -> None:
    learner, (actor, critic, _) = fused_of(case), case.networks()
    features = np.random.default_rng(seed).normal(size=(case.num_rows, case.num_inputs)).astype(np.float32)
    with torch.no_grad():
        near(learner.policy_outputs(features), actor(torch.from_numpy(features)), 1e-5)
        near(learner.values(features), critic(torch.from_numpy(features))[:, 0], 1e-5)


def test_advantages_follow_their_definition() -> None:
    compare_advantages(fused_of(Case()))


def test_learnt_weights_are_copied_to_the_torch_networks() -> None:
    case = Case()
    actor, critic, log_std = case.networks()
    learner = FusedLearner(actor, critic, log_std, case.nvec, case.settings())
    learner.update(case.rows(), case.minibatches(), 1e-2)
    learner.save()
    weights = [part.detach().numpy() for part in (*actor.parameters(), *critic.parameters(), log_std)]
    for actual, expected in zip(weights, learner.by_parameter(learner.weights), strict=True):
        np.testing.assert_array_equal(actual, expected)
    before = learner.weights.copy()
    learner.load()
    np.testing.assert_array_equal(learner.weights, before)
