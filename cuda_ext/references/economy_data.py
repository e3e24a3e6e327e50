"""Make and read the data of economy/covid: parameters, populations, the first day, and what happened.

    pip download --no-deps ai-economist==1.7.1
    python -m cuda_ext.references.economy_data ai_economist-1.7.1-py3-none-any.whl

This writes economy_covid.npz, next to this file, from three files of that wheel, whose sums it checks; no code of the
wheel runs. economy_covid.md names the sources, and has the licence that these data come with.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["FILE", "FIRST_DAY", "NUM_FILTERS", "NUM_STATES", "EconomyData", "load", "made_from", "write"]

FILE = Path(__file__).with_name("economy_covid.npz")
NUM_STATES, NUM_FILTERS = 51, 5
FIRST_DAY = 81  # the row of 2020-03-22, on which episodes start; row 0 is 2020-01-01
DEATHS_DAYS = slice(FIRST_DAY, 487)  # with smoothed deaths
FOLDER = "ai_economist/datasets/covid19_datasets/data_and_fitted_params/"
SUMS = {  # SHA-256
    "real_world_data.npz": "b0ff5df3aebf71115893968911d398240c80dc05a15611cd2b5ea5813653717e",
    "model_constants.json": "8294522fd62f9527a924aaf1583696496ddbcdc366d7975a62402a048218c6e7",
    "fitted_params.json": "dfde2a7bb2d7dca2cecf50778833d21462b9fc90e7859fe78faedf62c410839d",
}
# Our names of the arrays in fitted_params.json with a number for each state, and of those for the planner.
OF_STATES = {
    "transmission_intercept": "BETA_INTERCEPTS",
    "transmission_slope": "BETA_SLOPES",
    "unemployment_bias": "UNEMPLOYMENT_BIAS",
    "health_weight": "INFERRED_WEIGHTAGE_ON_{}_HEALTH_INDEX",
    "least_health": "MIN_MARGINAL_{}_HEALTH_INDEX",
    "most_health": "MAX_MARGINAL_{}_HEALTH_INDEX",
    "least_economy": "MIN_MARGINAL_{}_ECONOMIC_INDEX",
    "most_economy": "MAX_MARGINAL_{}_ECONOMIC_INDEX",
}


class EconomyData(NamedTuple):
    """The arrays of economy_covid.npz. States are in alphabetical order, days count from 2020-01-01.

    "weights" of 52 numbers are those of the 51 states, then that of the whole country.
    """

    state_names: NDArray[np.str_]  # (51,)
    population: NDArray[np.int32]  # (51,) persons
    transmission_intercept: NDArray[np.float32]  # (51,) infections per infected person and day
    transmission_slope: NDArray[np.float32]  # (51,) change of that per level of stringency
    filter_days: NDArray[np.float32]  # (5,) in which the effect of a change of level decays to 1 / e
    filter_weights: NDArray[np.float32]  # (51, 5)
    unemployment_bias: NDArray[np.float32]  # (51,) percent
    health_weight: NDArray[np.float32]  # (52,)
    least_health: NDArray[np.float32]  # (52,), as are the next three
    most_health: NDArray[np.float32]
    least_economy: NDArray[np.float32]
    most_economy: NDArray[np.float32]
    susceptible: NDArray[np.float32]  # (51,) persons on the first day, as in the next three
    infected: NDArray[np.float32]
    recovered: NDArray[np.float32]
    unemployed: NDArray[np.float32]
    levels: NDArray[np.uint8]  # (518, 51) stringency of each day, 1 to 9
    subsidy_days: NDArray[np.int32]  # (3,) on which direct payments were decided
    subsidies: NDArray[np.float64]  # (3,) dollars
    deaths: NDArray[np.float32]  # (406, 51) smoothed and cumulative, from FIRST_DAY on
    unemployment_days: NDArray[np.int32]  # (16,) first days of months
    unemployment: NDArray[np.float32]  # (16, 51) percent of the labour force in these months


@functools.cache
def load() -> EconomyData:
    """Return the data in ``FILE``, whose arrays are read-only. Raises FileNotFoundError if it is missing."""
    with np.load(FILE) as stored:
        data = EconomyData(**{name: stored[name] for name in EconomyData._fields})
    for array in data:
        array.setflags(write=False)
    return data


def made_from(wheel: Path) -> EconomyData:
    """Return the data made from three files of the wheel ai_economist-1.7.1-py3-none-any.whl.

    Raises ValueError if one of the files has another SHA-256 than expected, KeyError if the wheel has no such file.
    """
    files = {}
    with zipfile.ZipFile(wheel) as archive:
        for name, expected in SUMS.items():
            content = archive.read(FOLDER + name)
            actual = hashlib.sha256(content).hexdigest()
            if actual != expected:
                raise ValueError(f"{name} has SHA-256 {actual}, not {expected}; use the wheel of ai-economist 1.7.1")
            files[name] = content
    constants, fitted = (json.loads(files[name]) for name in ("model_constants.json", "fitted_params.json"))
    with np.load(io.BytesIO(files["real_world_data.npz"])) as stored:
        records = {name: stored[name] for name in stored.files}
    names = constants["US_STATE_IDX_TO_STATE_NAME"]
    subsidy_days = records["subsidy"][:, 0].nonzero()[0]
    months = _first_days_of_months(records["unemployment"])
    arrays: dict[str, Any] = {
        "state_names": np.array([names[str(state)] for state in range(NUM_STATES)]),
        "population": np.array(constants["US_STATE_POPULATION"], np.int32),
        "filter_days": np.array(fitted["CONV_LAMBDAS"], np.float32),
        "filter_weights": np.array(fitted["GROUPED_CONVOLUTIONAL_FILTER_WEIGHTS"], np.float32).reshape(NUM_STATES, -1),
        **{name: _fitted(fitted, key) for name, key in OF_STATES.items()},
        **{
            name: records[name][FIRST_DAY].astype(np.float32)
            for name in ("susceptible", "infected", "recovered", "unemployed")
        },
        "levels": records["policy"].astype(np.uint8),
        "subsidy_days": subsidy_days.astype(np.int32),
        "subsidies": records["subsidy"][subsidy_days, 0],
        "deaths": records["smoothed_deaths"][DEATHS_DAYS].astype(np.float32),
        "unemployment_days": months.astype(np.int32),
        "unemployment": records["unemployment"][months].astype(np.float32),
    }
    return EconomyData(**arrays)


def _fitted(fitted: dict[str, Any], key: str) -> NDArray[np.float32]:
    """Return an array with a number for each state and, if the key has a gap for AGENT and PLANNER, for the country."""
    if "{}" not in key:
        return np.array(fitted[key], np.float32)
    return np.array([*fitted[key.format("AGENT")], fitted[key.format("PLANNER")]], np.float32)


def _first_days_of_months(unemployment: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the days on which monthly rates change, (16,), with the first day of all."""
    known = unemployment[np.isfinite(unemployment).all(axis=1)]
    changes = (known[1:] != known[:-1]).any(axis=1)
    return np.concatenate([[0], changes.nonzero()[0] + 1])


def write(data: EconomyData, file: Path = FILE) -> None:
    """Write the data to a compressed .npz file."""
    np.savez_compressed(file, **data._asdict())


if __name__ == "__main__":
    write(made_from(Path(sys.argv[1])))
