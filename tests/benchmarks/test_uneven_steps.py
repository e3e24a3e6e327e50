"""Tests of the benchmark of environments whose steps take unequal times."""

from __future__ import annotations

import json

import pytest

from benchmarks import fairness

pytestmark = pytest.mark.beside


def test_what_is_measured_of_fairness_can_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("synchronous", "plain pool", "weights")
    monkeypatch.setattr(fairness, "CONTESTANTS", {name: fairness.CONTESTANTS[name] for name in names})
    part = fairness.measure("environment", 400, 2, 0.002)
    assert json.loads(json.dumps(part)) == part
    rows = [line.split(" | ") for line in fairness.rows_table({"environment": part}).splitlines()[2:]]
    assert [row[1] for row in rows] == list(names)
    figures = part["figures"]
    assert abs(figures["synchronous"]["mean_reward"] - 0.5) < 1e-9  # as many steps of slow environments
    assert figures["plain pool"]["slow_share"] < 0.5 < figures["synchronous"]["slow_share"] + 1e-9
    shares = [figures[name]["effective_share"] for name in names]
    assert shares[0] == shares[1] == 1 and shares[2] < 1


def test_learners_on_uneven_are_judged_by_how_they_collect() -> None:
    names = ("ours, a plain pool", "ours, a pool with weights")
    runs = [{"learner": name, "seed": seed, "score": score} for name in names for seed, score in ((1, 0.1), (2, 0.97))]
    runs.append({"learner": "Tianshou, AsyncCollector", "seed": 1, "score": 0.2, "shares": [0.3, 0.1, 0.1, 0.0] * 4})
    rows = dict(line[2:].split(" | ", 1) for line in fairness.learners_table(runs).splitlines()[2:])
    assert rows[names[0]] == "0.100 – 0.970 | 1 of 2 < 0.2 | – |" and rows[names[1]].endswith("| 1 of 2 ≥ 0.95 | – |")
    assert rows["Tianshou, AsyncCollector"] == "0.200 – 0.200 | 0 of 1 < 0.2 | 3.0 |"
    assert rows["TorchRL, Collector"] == "not measured | ≥ 0.95 expected | – |"
