"""The data of economy/covid: what the file holds, and how it is made from the publisher's files."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_ext.references import economy_data
from cuda_ext.references.economy_data import FIRST_DAY, FOLDER, NUM_STATES, OF_STATES, load, made_from, write

pytestmark = pytest.mark.beside


def test_the_file_is_small_and_has_the_first_day_of_the_country() -> None:
    data = load()
    assert economy_data.FILE.stat().st_size < 150_000
    assert data.state_names[[8, 25]].tolist() == ["District of Columbia", "Missouri"]
    assert data.population.sum() == 328_737_916
    columns = (data.susceptible, data.infected, data.recovered, data.unemployed)
    expected = (328_194_939.5, 372_476.29, 170_500.66, 13_590_654.6)
    assert [column.sum(dtype=np.float64) for column in columns] == pytest.approx(expected, rel=1e-7)
    assert data.levels[FIRST_DAY].mean() == pytest.approx(5.254902)
    assert data.levels[FIRST_DAY, [4, 9, 32, 43, 50]].tolist() == [8, 6, 8, 5, 5]
    assert (data.levels.min(), data.levels.max(), data.levels.shape) == (1, 9, (518, NUM_STATES))
    payments = dict(zip(data.subsidy_days.tolist(), data.subsidies.tolist(), strict=True))
    assert payments == {105: 274e9, 361: 142e9, 435: 386e9}
    with pytest.raises(ValueError, match="read-only"):
        data.population[0] = 1


def test_history_is_of_all_days_and_months() -> None:
    data = load()
    deaths, days = data.deaths.sum(axis=1, dtype=np.float64), np.array([30, 100, 284, 404])
    np.testing.assert_allclose(deaths[days], [46_940, 127_992, 351_197, 573_572], atol=0.5)
    assert data.unemployment_days.tolist()[:4] == [0, 31, 60, 91]
    national = data.unemployment @ (data.population / data.population.sum())
    month = np.searchsorted(data.unemployment_days, days + FIRST_DAY, side="right") - 1
    np.testing.assert_allclose(national[month], [14.593, 11.160, 6.695, 6.014], atol=5e-4)


def publishers_files() -> dict[str, bytes]:
    """Return files with the publisher's names and shapes, and numbers that state where they came from."""
    states, days = np.arange(NUM_STATES), np.arange(518)[:, np.newaxis]
    fitted: dict[str, object] = {
        "CONV_LAMBDAS": [27.7, 62.9, 129.2, 264.4, 542.1],
        "GROUPED_CONVOLUTIONAL_FILTER_WEIGHTS": (np.arange(255) / 7).reshape(255, 1, 1).tolist(),
    }
    for number, key in enumerate(OF_STATES.values()):
        fitted[key.format("AGENT")] = (states + 100.5 * number).tolist()
        if "{}" in key:
            fitted[key.format("PLANNER")] = -number - 0.5
    constants = {
        "US_STATE_IDX_TO_STATE_NAME": {str(state): f"State {state}" for state in states},
        "US_STATE_POPULATION": (states + 1000).tolist(),
    }
    daily = days + states / 64
    records: dict[str, Any] = {
        name: daily + number for number, name in enumerate(("susceptible", "infected", "recovered", "unemployed"))
    }
    subsidy = np.zeros((518, 1))
    subsidy[[7, 9]] = [[2e9], [3e9]]
    monthly = np.where(days < 486, days // 30 + states / 64, np.nan)
    buffer = io.BytesIO()
    records |= {
        "policy": 1 + (days + states) % 9,
        "subsidy": subsidy,
        "smoothed_deaths": daily,
        "unemployment": monthly,
    }
    np.savez(buffer, **records)
    return {
        "real_world_data.npz": buffer.getvalue(),
        "model_constants.json": json.dumps(constants).encode(),
        "fitted_params.json": json.dumps(fitted).encode(),
    }


def wheel_of(files: dict[str, bytes], folder: Path) -> Path:
    wheel = folder / "ai_economist-1.7.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(FOLDER + name, content)
    return wheel


def test_the_file_is_made_from_the_publishers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = publishers_files()
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(economy_data, "SUMS", sums)
    monkeypatch.setattr(economy_data, "FILE", tmp_path / "data.npz")
    write(made_from(wheel_of(files, tmp_path)), economy_data.FILE)
    data = load.__wrapped__()
    assert data.health_weight[[0, 50]].tolist() == [100.5 * 3, 50 + 100.5 * 3] and data.health_weight[51] == -3.5
    assert data.transmission_slope.tolist() == (np.arange(NUM_STATES) + 100.5).tolist()
    assert (
        data.filter_weights[2].tolist() == (np.arange(10, 15) / 7).astype(np.float32).tolist()
    )  # a state's are adjacent
    assert data.unemployed[2] == FIRST_DAY + 2 / 64 + 3
    assert (data.subsidy_days.tolist(), data.subsidies.tolist()) == ([7, 9], [2e9, 3e9])
    assert data.unemployment_days.tolist() == [30 * month for month in range(17)]
    assert data.deaths[5, 3] == FIRST_DAY + 5 + 3 / 64
    assert data.levels[100, 3] == 1 + 103 % 9


def test_other_files_than_the_publishers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"real_world_data.npz has SHA-256 .*use the wheel of ai-economist 1\.7\.1"):
        made_from(wheel_of(publishers_files(), tmp_path))


def test_the_page_beside_the_file_states_the_sums_and_the_licence() -> None:
    page = economy_data.FILE.with_suffix(".md").read_text()
    assert all(name in page and digest in page for name, digest in economy_data.SUMS.items())
    assert "Salesforce.com, Inc. All rights reserved" in page and "Redistribution and use in source" in page
