"""Leagues whose responses are learnt: they go on where they were as well, and say how good they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_league import outcome, play, workers_do_it_and_go_on

from pufferlib.errors import PlanError
from pufferlib.population import League, Settings
from pufferlib.population.league_settings import Evaluation, Stop, Workers

pytestmark = pytest.mark.beside


@pytest.mark.long
def test_learnt_responses_go_on_where_they_were(tmp_path: Path) -> None:
    settings = Settings(
        game="kuhn_poker",
        oracle="dqn",
        oracle_kwargs={"num_envs": 8, "total_steps": 200, "learning_starts": 64},
        evaluation=Evaluation("exact"),
        stop=Stop(iterations=2),
    )
    play(League.begin(settings, tmp_path / "whole"))
    with League.begin(settings, tmp_path / "parts") as league:
        for _ in zip(range(2), league, strict=False):
            pass
    play(League.resume(tmp_path / "parts"))
    expected = outcome(tmp_path / "whole")
    assert outcome(tmp_path / "parts") == expected
    # Both seats begin alike.
    assert len(set(expected["digests"])) == 5 and np.isfinite([row["nash_conv"] for row in expected["rows"]]).all()


def test_workers_learn_responses_and_go_on(tmp_path: Path) -> None:
    workers_do_it_and_go_on("dqn", tmp_path)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"total_stebs": 1}, "did you mean total_steps"),
        ({"seed": 5, "runs": "here"}, "has runs, seed, which the league sees to itself"),
        ({"num_workers": 99}, "num_workers=99"),
        (
            {"num_envs": 8, "workers": Workers()},
            r"num_envs, but \[workers\] learn in the environments in which they play",
        ),
    ],
)
def test_settings_of_trainers_are_checked(kwargs: dict[str, Any], message: str, tmp_path: Path) -> None:
    workers = kwargs.pop("workers", None)
    settings = Settings(game="kuhn_poker", oracle="dqn", oracle_kwargs=kwargs, stop=Stop(iterations=1), workers=workers)
    with League.begin(settings, tmp_path) as league, pytest.raises(PlanError, match=message):
        next(iter(league))
