"""Tests of the model of Ray that forecasts many machines."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from benchmarks import ray_model, ray_scale, report

pytestmark = pytest.mark.beside


def test_the_model_of_ray_fits_what_follows_it_and_adds_calls_up() -> None:
    costs = ray_model.Costs(ray_model.Cost(2e-4, 0.0, 3e-7, 1e-10), ray_model.Cost(4e-4, 3e-5, 0.0, 5e-10))
    calls = [ray_model.Call(*sizes) for sizes in itertools.product((4, 8, 128), (1, 4), (32, 28224))]
    for cost in costs:
        assert ray_model.fitted([(call, cost.of(*call)) for call in calls]) == pytest.approx(cost, abs=1e-12)
    one_worker = [call for call in calls if call.num_workers == 1]  # which do not tell a worker from a call
    assert ray_model.fitted([(call, costs.rest.of(*call)) for call in one_worker]).of(8, 1, 32) == pytest.approx(
        costs.rest.of(8, 1, 32)
    )
    model = ray_model.Model(costs, ray_model.Costs(*(cost._replace(call_s=1e-2) for cost in costs)))
    own_s, rest_s = (cost.of(8, 1, 32) for cost in costs)
    alone = ray_model.Arrangement(1, 8, 32, step_s=1e-3, learner_s=1e-5)
    round_s = own_s + rest_s + 8e-3 + 8e-5
    forecast = ray_model.simulate(model, alone)
    assert forecast.steps_per_s == pytest.approx(8 / round_s)
    assert forecast.busy == pytest.approx((own_s + 8e-5) / round_s)
    four = ray_model.simulate(model, alone._replace(num_workers=4))
    assert four.steps_per_s == pytest.approx(8 / (round_s - 6e-3 + 3 * 3e-5))
    large = ray_model.simulate(model, alone._replace(obs_nbytes=28224))
    way_s = 2e-2 + sum(cost.of(8, 1, 28224) - cost.call_s for cost in costs)
    assert large.steps_per_s == pytest.approx(8 / (way_s + 8e-3 + 8e-5))  # through Ray
    # Of a thousand actors the driver's thread hears one after another, and half of them play meanwhile.
    many = ray_model.simulate(model, alone._replace(num_actors=1000, batch_envs=4000))
    assert many.busy == pytest.approx(1)
    # The first row waits only a millisecond, so an answer with the others follows, and then a call with actions.
    assert 8 / (3 * own_s + 8e-5) < many.steps_per_s < 8 / (own_s + 8e-5)
    # Two actors that never sleep, on one core: nothing goes on side by side.
    crowded = alone._replace(num_actors=2, step_s=0.0, cores=1)
    assert ray_model.simulate(model, crowded).steps_per_s == pytest.approx(8 / (own_s + rest_s + 8e-5), rel=0.01)


def test_the_model_of_ray_answers_by_the_rules_of_a_pool() -> None:
    """One worker's rows come a millisecond apart, and the first of an answer waits a millisecond for others."""
    free = ray_model.Costs(ray_model.Cost(1e-9, 0.0, 0.0, 0.0), ray_model.Cost(1e-9, 0.0, 0.0, 0.0))
    pool = ray_model.Arrangement(2, 8, 32, step_s=1e-3, batch_envs=8)
    assert ray_model.simulate(ray_model.Model(free, free), pool).steps_per_s == pytest.approx(2000, rel=1e-3)
    costly = free._replace(driver=free.driver._replace(call_s=1e-4))
    busy = ray_model.simulate(ray_model.Model(costly, free), pool).busy
    assert 2000 / 2 * 1e-4 < busy < 2000 * 1e-4  # an answer holds two rows, or one if the next call cuts it short
    all_at_once = ray_model.simulate(ray_model.Model(costly, free), pool._replace(batch_envs=None))
    assert all_at_once.busy == pytest.approx(2000 / 8 * 1e-4, rel=0.05)  # an answer holds all eight


@pytest.mark.long
def test_what_ray_scale_measured_is_reported_and_drawn(tmp_path: Path) -> None:
    stored = json.loads(ray_scale.STORED.read_text())
    texts = ray_scale.texts(stored)
    page = ray_scale.PAGE.read_text()
    assert report.fill(page, texts) == page, "python -m benchmarks.ray_scale --plot writes it"
    assert texts["scale_nodes"].count("\n") == 3 + len(stored["nodes"])
    ray_scale.plot(stored, tmp_path / "scale.png")
    assert (tmp_path / "scale.png").stat().st_size > 5000
