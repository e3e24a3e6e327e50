"""Rows drawn by weight: how often each is drawn, and what equal weights draw."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pufferlib.training import by_weight

pytestmark = pytest.mark.extras


def test_each_row_is_drawn_about_as_often_as_its_weight_says() -> None:
    generator, rng = torch.Generator().manual_seed(1), np.random.default_rng(1)
    weights = rng.exponential(size=50).astype(np.float32) + 0.01
    rows, expected = np.arange(100, 150), weights / weights.mean()
    weights = np.concatenate([np.full(100, 7, np.float32), weights])  # of other rows
    total = np.zeros(50)
    for _ in range(2000):
        drawn = by_weight(rows, weights, generator)
        counts = np.bincount(drawn - 100, minlength=50)
        assert len(drawn) == 50 and (np.abs(counts - expected) < 1 + 1e-5).all()
        total += counts
    np.testing.assert_allclose(total / 2000, expected, atol=0.06)


def test_equal_weights_return_the_rows_and_draw_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    rows = np.array([3, 1, 4])
    assert by_weight(rows, np.full(5, 0.7, np.float32), generator) is rows
    assert not len(by_weight(rows[:0], np.ones(0, np.float32), generator))
    assert torch.equal(generator.get_state(), before)
