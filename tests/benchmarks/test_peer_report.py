"""Tests of the figures that are compared, of targets, and of the report that says what came of them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import peers, report
from benchmarks.ratios import MedianRange, ahead, counterpart, judge, median_interval, rates, ratios, sign_test
from benchmarks.workloads import WORKLOADS, Target

pytestmark = pytest.mark.beside


def entry(name: str, figures: list[float], **more: Any) -> dict[str, Any]:
    turn_results = [{"steps": figure, "seconds": 1.0} for figure in figures]
    return {"name": name, "status": "ran", "turns": turn_results, "versions": {"gymnasium": "1.4.0"}, **more}


def test_ratios_are_taken_within_a_repeat() -> None:
    assert ratios([10, 20, 90], [5, 5, 30]) == [2, 4, 3]
    assert MedianRange.of([2, 4, 3]) == (3, 2, 4)
    assert rates({"status": "ran", "turns": [{"steps": 30, "seconds": 2.0}]}) == [15]
    assert rates({"status": "failed", "turns": [{"steps": 30, "seconds": 2.0}]}) == []


@pytest.mark.parametrize(
    ("values", "probability", "is_ahead"),
    [
        ([1.1] * 7, 1 / 128, True),
        ([1.1] * 6 + [0.9], 8 / 128, False),
        ([1.1] * 10 + [0.9], 12 / 2048, True),
        ([1.1] * 4 + [1.0] * 3, 1 / 16, False),
        ([1.0] * 7, 1.0, False),
        ([0.9] * 7, 1.0, False),
    ],
)
def test_sign_test(values: list[float], probability: float, is_ahead: bool) -> None:
    assert sign_test(values) == pytest.approx(probability)
    assert ahead(values) is is_ahead


@pytest.mark.parametrize(("count", "rank"), [(6, 1), (7, 1), (30, 10), (61, 23)])  # of any table of the sign test
def test_the_medians_interval_is_that_of_order_statistics(count: int, rank: int) -> None:
    values = [float(number) for number in range(1, count + 1)]
    assert median_interval(values[::-1]) == (rank, count + 1 - rank)


def test_the_medians_interval_holds_the_median_as_often_as_it_says() -> None:
    samples = np.random.default_rng(0).exponential(size=(2000, 31))
    held = [low <= np.log(2) <= high for low, high in map(median_interval, samples.tolist())]
    assert 0.95 <= np.mean(held) < 0.98


def test_targets_of_many_pairs_state_the_interval() -> None:
    entries = [entry("ours serial", [float(n) for n in range(1, 32)]), entry("sb3 dummy", [10.0] * 31)]
    verdict = judge(Target("", "ours serial", ("sb3 dummy",), at_least=1), entries)
    assert verdict.note == "median within 1.000 – 2.200 (95 %, 31 pairs)"


ENTRIES = [
    entry("ours pool@w2b8", [80, 90, 100]),
    entry("ours pool@w4b8", [160, 180, 200]),
    entry("sb3 subproc", [20, 20, 20]),
    entry("tianshou shmem", [40, 40, 40]),
    {"name": "torchrl pool@b8", "status": "not installed", "reason": "no wheel", "turns": []},
    entry("ours processes@w2", [1, 1, 1]),
]
ENTRIES[5]["turns"] = [{"wait_us": figure} for figure in (25, 40, 28)]
ENTRIES[1]["turns"] = [{**sample, "cpu_s": 0.5} for sample in ENTRIES[1]["turns"]]
ENTRIES[0]["turns"] = [{**sample, "cpu_s": 0.25} for sample in ENTRIES[0]["turns"]]
BOTH, PEERS = ("ours pool@w2b8", "ours pool@w4b8"), ("sb3 subproc", "tianshou shmem")


@pytest.mark.parametrize(
    ("target", "reached", "met", "note"),
    [
        (Target("", BOTH[1], PEERS[:1], at_least=9), (9, 8, 10), True, ""),
        (Target("", BOTH[1], PEERS[:1], at_least=9.1), (9, 8, 10), False, ""),
        (Target("", BOTH, PEERS, at_least=4), (4.5, 4, 5), True, "ours pool@w4b8 against tianshou shmem"),
        (Target("", BOTH[0], PEERS), (2.25, 2, 2.5), False, "against tianshou shmem"),  # 3 of 3 show nothing yet
        (Target("", BOTH[0], rate=100, at_least=0.9), (0.9, 0.8, 1), True, "over 270 steps"),
        (Target("", BOTH[0], rate=100, at_least=0.92), (0.9, 0.8, 1), False, "over 270 steps"),
        (Target("", "ours processes@w2", figure="wait_us", at_most=30), (28, 25, 40), True, ""),
        (Target("", "ours processes@w2", figure="wait_us", at_most=20), (28, 25, 40), False, ""),
        (Target("", "sb3 subproc", figure="step_us", at_most=5e4), (5e4, 5e4, 5e4), True, ""),
        (Target("", BOTH[0], BOTH[1:], figure="step_us", at_most=2), (2, 2, 2), True, ""),
        (Target("", BOTH[0], BOTH[1:], figure="cpu_us", at_most=0.9), (1, 1, 1), False, ""),
        (Target("", BOTH[0], PEERS[:1], figure="cpu_us", at_most=9), None, None, "did not run"),
        (Target("", BOTH[0], ("torchrl pool@b8",), figure="step_us", at_most=9), None, None, "did not run"),
        (Target("", BOTH[0], figure="overhead", at_most=9), None, None, "did not run"),
        (Target("", BOTH[0], ("torchrl pool@b8",), at_least=1), None, None, "did not run: torchrl pool@b8"),
        (
            *(Target("", BOTH[0], (PEERS[0], "torchrl pool@b8"), at_least=4), (4.5, 4, 5), True),
            "against sb3 subproc (did not run: torchrl pool@b8)",
        ),
        (Target("", "ours serial", PEERS, at_least=1), None, None, "not part of this run"),
    ],
)
def test_targets_are_judged(target: Target, reached: Any, met: bool | None, note: str) -> None:
    verdict = judge(target, ENTRIES)
    assert verdict.reached == (None if reached is None else pytest.approx(reached))
    assert (verdict.met, verdict.note, verdict.floor) == (met, note, None)


def test_a_target_has_the_floor_beside_it() -> None:
    floor = {**entry("bare processes@w2", []), "turns": [{"wait_us": figure} for figure in (8, 9, 7)]}
    target = Target("", "ours processes@w2", figure="wait_us", at_most=30, floor=floor["name"])
    assert judge(target, [*ENTRIES, floor]).floor == (8, 7, 9)
    assert judge(target, [*ENTRIES, {**floor, "status": "failed"}]).floor is None
    assert judge(target, ENTRIES).floor is None


def test_who_steps_older_games_is_compared_with_us_on_the_same() -> None:
    ours, faster = entry("ours serial", [10.0]), entry("ours processes@w2", [20.0])
    ours_old, bare = entry("ours-old serial", [30.0]), entry("bare loop", [20.0])
    old, new = entry("pufferlib-3.0 serial", [40.0]), entry("gymnasium sync", [5.0])
    everybody = [ours, faster, ours_old, old, new, bare, entry("ours-portable serial", [99.0])]
    assert [counterpart(item, everybody) for item in (old, new, bare, ours)] == [ours_old, faster, faster, faster]
    failed = {"name": "ours-old serial", "status": "failed", "turns": []}
    assert counterpart(old, [ours, failed, old]) is None, "rather nobody than ours on other games"
    assert counterpart(old, [ours, old]) is ours


def result(name: str, *entries: dict[str, Any]) -> dict[str, Any]:
    workload = {**dataclasses.asdict(WORKLOADS[name]), "targets": None}
    about = {"machine": "a machine", "version": "abc", "command": "a command", "date": "2026-11-21T00:00:00"}
    return {"workload": workload, "repeats": 7, "window_s": 0.3, "load": [0.1, 0.2], "participants": entries, **about}


RESULTS = {
    "trivial-sync": result(
        "trivial-sync",
        entry("ours processes@w2", [900.0, 1000, 1100, 1000, 1000, 1000, 1000], path="compiled"),
        entry("gymnasium async", [10.0] * 7),
        entry("bare loop", [2000.0] * 7),
        {"name": "torchrl parallel", "status": "failed", "reason": "it | broke\nin two", "turns": []},
    ),
    "think-1ms": result(
        "think-1ms",
        {**entry("ours processes@w2", []), "turns": [{"wait_us": 50.0, "wait_p99_us": 90.0, "send_us": 3.0}] * 7},
    ),
    "cartpole": result(
        "cartpole",
        entry("ours serial", [100.0] * 7),
        entry("ours-old serial", [150.0] * 7, versions={"gymnasium": "0.29.1"}, path="compiled"),
        entry("ours-old processes@w2", [120.0] * 7, versions={"gymnasium": "0.29.1"}),
        entry("ours-portable processes@w2", [110.0] * 7),
        entry("gymnasium sync", [80.0] * 7),
        entry("pufferlib-3.0 serial", [120.0] * 7, versions={"gymnasium": "0.29.1"}),
        entry("pufferlib-0.7 serial", [300.0] * 7, versions={"gymnasium": "0.29.1"}),
        {"name": "sb3 dummy", "status": "failed", "reason": "it broke", "turns": []},
    ),
    "grid-none-n4": result("grid-none-n4", entry("ours serial", [30.0] * 7), entry("gymnasium sync", [20.0] * 7)),
}


def test_report_says_what_was_needed_reached_and_met() -> None:
    texts = report.sections(RESULTS)
    rows = texts["targets"].splitlines()
    name = "trivial env, 32/2/32, synchronous"
    assert f"| {name} | 80× Gymnasium AsyncVectorEnv | 100.00 (90.00 – 110.00) | yes |  |" in rows
    assert f"| {name} | 1.2× the bare loop | 0.50 (0.45 – 0.55) | **no** |  |" in rows
    assert any("8× PufferLib 0.7" in row and "not measured" in row for row in rows)
    assert any("≤ 60 µs | 50 (50 – 50) µs | yes" in row for row in rows)
    assert "| bare loop | 2,000 (2,000 – 2,000) | 0.50 (0.45 – 0.55) |" in texts["workloads"]
    assert "| ours processes@w2 (compiled) | 1,000 (900 – 1,100) |  |" in texts["workloads"]
    assert "| trivial env, 32/2/32, synchronous | bare loop | ours processes@w2 | 0.50" in texts["losses"]
    assert "| no time | 1.50 (1.50 – 1.50), gymnasium sync |" in texts["grid"]
    assert "| torchrl parallel | failed: it \\| broke in two | trivial-sync |" in texts["missing"]
    assert (
        "| gymnasium async | not in these runs |" in texts["missing"]
        and "| all | not measured yet |" in texts["missing"]
    )
    assert "Gymnasium 1.4.0" in texts["machine"] and "a machine" in texts["machine"]


def test_only_a_whole_field_is_said_to_have_run() -> None:
    results = {
        name: result(name, *(entry(item, [1.0]) for item in workload.participants))
        for name, workload in report.WORKLOADS.items()
    }
    assert report.missing_table(results) == "Every participant of every workload ran."
    name = next(iter(results))
    assert "| all | not measured yet | " + name in report.missing_table(
        {item: results[item] for item in results if item != name}
    )


def test_report_marks_who_steps_native_environments() -> None:
    cartpole = result("cartpole", entry("ours serial", [1.0]), entry("envpool threads@w2", [2.0]))
    name = "envpool threads@w2 (its own native environments)"
    assert f"| {name} | 2 (2 – 2) | 0.50 (0.50 – 0.50) |" in report.workload_text(cartpole).splitlines()
    assert f"| CartPole, 32 envs | {name} | ours serial |" in report.losses_table({"cartpole": cartpole})
    for name in ("cartpole", "atari", "atari-native"):
        assert "envpool threads@w2" in peers.form_of(WORKLOADS[name], short=True)[0]


def test_report_compares_each_with_us_on_the_same_games() -> None:
    texts = report.sections({"cartpole": RESULTS["cartpole"]})
    rows = texts["workloads"].splitlines()
    assert "|  | Gymnasium | steps/s (min – max) | ours is … times |" in rows
    assert "| ours-old serial (compiled) | 0.29.1 | 150 (150 – 150) |  |" in rows
    assert "| ours-old processes@w2 | 0.29.1 | 120 (120 – 120) | 1.25 (1.25 – 1.25) |" in rows
    assert "| pufferlib-3.0 serial | 0.29.1 | 120 (120 – 120) | 1.25 (1.25 – 1.25) |" in rows
    assert "| gymnasium sync | 1.4.0 | 80 (80 – 80) | 1.25 (1.25 – 1.25) |" in rows
    assert "| sb3 dummy |  | failed: it broke |  |" in rows
    assert texts["losses"].splitlines()[2:] == [
        "| CartPole, 32 envs | pufferlib-0.7 serial | ours-old serial | 0.50 (0.50 – 0.50) |"
    ]
    assert "this project (ours-old) with Gymnasium 0.29.1" in texts["machine"]


def test_pages_have_a_place_for_everything_that_the_report_says() -> None:
    marks = set()
    for page in report.PAGES:
        marks |= set(re.findall(r"<!-- begin (\w+) -->", page.read_text()))
        assert report.fill(page.read_text(), report.sections(report.load(report.RESULTS))) == page.read_text()
    others = {"native", "install", "ray", "against", "limits", "ocean_suite", "leaks"}
    sections = {name for name in marks if not name.startswith("revision_")} - others
    assert sections == set(report.sections(RESULTS)) == set(report.sections({}))


def test_report_draws_what_there_are_results_for(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = report.draw(RESULTS, tmp_path)
    assert [path.name for path in drawn] == ["overhead.png", "real.png", "grid.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
