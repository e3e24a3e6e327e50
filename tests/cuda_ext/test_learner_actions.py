"""Actions that the compiled learner draws: those of pufferlib.models' Distribution, from the same random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from learner_cases import CASES, Case, compare_actions, fused_of

from pufferlib.errors import ClosedError, SpaceError

pytestmark = pytest.mark.beside


@given(case=CASES)
@settings(max_examples=20, deadline=None)
def test_actions_are_those_of_torch(case: Case) -> None:
    compare_actions(case)


def test_a_batch_infers_what_single_calls_do() -> None:
    case = Case()
    learner, features = fused_of(case), case.rows().features
    batch = learner.inference_batch(len(features))
    batch.features[:] = features
    batch.infer()
    np.testing.assert_array_equal(batch.outputs, learner.policy_outputs(features))
    np.testing.assert_array_equal(batch.values, learner.values(features))


def test_numbers_are_read_as_features_are() -> None:
    case = Case()
    is_scaled = [index % 2 == 0 for index in range(case.num_inputs)]
    learner, rng = fused_of(case, is_scaled=is_scaled), np.random.default_rng(1)
    numbers = rng.normal(0, 100, (7, case.num_inputs)).astype(np.float32)
    batch, of_features = learner.inference_batch(7, reads_numbers=True), learner.inference_batch(7)
    of_features.features[:] = np.where(is_scaled, np.sign(numbers) * np.log1p(np.abs(numbers)), numbers)
    for _ in range(2):  # it converts them in place, once for each call
        batch.features[:] = numbers
        batch.infer()
        of_features.infer()
        np.testing.assert_allclose(batch.outputs, of_features.outputs, atol=1e-5)
        np.testing.assert_allclose(batch.values, of_features.values, atol=1e-5)


def test_it_acts_with_the_newest_weights() -> None:
    case = Case()
    learner, rows = fused_of(case), case.rows()
    batch = learner.inference_batch(len(rows.features))
    batch.features[:] = rows.features
    learner.update(rows, case.minibatches(), 1e-2)
    batch.infer()
    np.testing.assert_array_equal(batch.outputs, learner.policy_outputs(rows.features))


def test_masks_that_do_not_fit_are_refused() -> None:
    batch = fused_of(Case()).inference_batch(4)
    with pytest.raises(
        SpaceError, match=r"allowed are bool \(4, 3\); they have to be a C-contiguous array, bool \(4, 5"
    ):
        batch.draw(np.ones((4, 3), np.bool_))


def test_a_closed_learner_does_not_act() -> None:
    learner = fused_of(Case())
    batch = learner.inference_batch(4)
    learner.close()
    for call in (batch.infer, batch.draw):
        with pytest.raises(ClosedError, match="this learner is closed; make another"):
            call()


def test_each_option_is_drawn_as_often_as_it_is_likely() -> None:
    batch = fused_of(Case(nvec=(3,), num_continuous=0)).inference_batch(20_000)
    batch.outputs[:] = np.log([0.5, 0.2, 0.3], dtype=np.float32) + 7
    torch.from_numpy(batch.exponentials[0]).exponential_(generator=torch.Generator().manual_seed(1))
    batch.draw()
    np.testing.assert_allclose(np.bincount(batch.discrete_actions[:, 0]) / 20_000, [0.5, 0.2, 0.3], atol=0.015)
    np.testing.assert_allclose(
        np.exp(batch.log_probs), np.array([0.5, 0.2, 0.3])[batch.discrete_actions[:, 0]], rtol=1e-5
    )
