"""The publisher's own numbers of economy/covid: the ranges of its indices, and 52 weights fitted to real policies.

They were computed by the original program from three runs of 284 days, without subsidies and vaccines: all states open,
all closed, and the recorded policies. The reference's runs must give the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuda_ext.references.economy_covid import recorded_actions
from cuda_ext.references.economy_data import load
from cuda_ext.references.economy_model import Indices, Model

pytestmark = pytest.mark.beside

OPEN, CLOSED, RECORDED = range(3)
NUM_DAYS = 284
MISSOURI, COUNTRY = 25, 51
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def means() -> Indices:
    """The indices' means over the days, (3, 52)."""
    model = Model(load(), enforce_masks=False)
    recorded, _ = recorded_actions(model)
    state = model.starts(3)
    sums = np.zeros((2, 3, 52))
    for day in range(NUM_DAYS):
        governors = np.stack([np.full(51, 1), np.full(51, 10), recorded[day]])
        after = model.step(state, governors, np.zeros(3, int))
        sums += model.indices(state, after)
        state = after
    return Indices(*(sums / NUM_DAYS))


@pytest.mark.parametrize(
    ("index", "run", "name"),
    [("economy", OPEN, "most_economy"), ("economy", CLOSED, "least_economy"),
     ("health", OPEN, "least_health"), ("health", CLOSED, "most_health")],
)  # fmt: skip
def test_the_ranges_of_the_indices_are_the_publishers(means: Indices, index: str, run: int, name: str) -> None:
    """The publisher's numbers of Missouri, and so of the country, are of a population without one city's second row."""
    errors = np.abs(getattr(means, index)[run] / getattr(load(), name) - 1)
    most, of_missouri, of_country = (6e-7, 9e-4, 8.5e-5) if index == "economy" else (2e-5, 7.4e-2, 1.5e-3)
    assert errors[MISSOURI] <= of_missouri
    assert errors[COUNTRY] <= of_country
    assert np.delete(errors, [MISSOURI, COUNTRY]).max() <= most


@pytest.mark.extras  # scipy
def test_all_52_fitted_weights_are_the_publishers(means: Indices) -> None:
    health, economy = (
        (values[RECORDED] - values[least]) / (values[most] - values[least])
        for values, least, most in ((means.health, OPEN, CLOSED), (means.economy, CLOSED, OPEN))
    )
    weights = np.array([fitted_weight(*point) for point in zip(health, economy, strict=True)])
    np.testing.assert_array_equal(weights.astype(np.float32), load().health_weight)


def fitted_weight(health: float, economy: float) -> float:
    """Return the weight of health, 0.000 to 1.000, with which a point is the best of a frontier near to it.

    The frontier is health**p + economy**p = 1, with the p of at least 1.001 that fits best. Where the publisher's
    search for p stopped decides the third decimal of two states; L-BFGS-B from 2 stops there too.
    """
    from scipy.optimize import minimize

    def error(p: Array) -> float:
        return float(((1 - health ** p[0]) ** (1 / p[0]) - economy) ** 2)

    p = minimize(error, [2.0], bounds=[(1.001, None)], method="L-BFGS-B").x[0]
    x = np.linspace(0, 1, 1001)
    frontier_health, frontier_economy = x ** (1 / p), (1 - x) ** (1 / p)
    # The frontier is concave: the best point lies before the first step that costs more than it brings.
    costs = -np.diff(frontier_economy) / np.diff(frontier_health)
    odds = np.arange(1000) / (1000 - np.arange(1000))
    best = np.searchsorted(costs, np.append(odds, np.inf))
    distances = np.hypot(frontier_health[best] - health, frontier_economy[best] - economy)
    return round(float(distances.argmin()) / 1000, 3)
