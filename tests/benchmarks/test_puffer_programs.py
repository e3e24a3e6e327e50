"""`benchmarks.puffer_programs`: which runs it repeats, and what its tables say of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import puffer_programs
from benchmarks.pages import mark
from benchmarks.puffer_programs import (
    PAGE,
    RESULTS,
    SEEDS,
    SIDES,
    SPEEDS,
    STEPS,
    half_width,
    read_results,
    returns_table,
    speeds_table,
)

pytestmark = pytest.mark.beside


def entry(side: str, task: str, seed: int, mean_return: float) -> dict[str, Any]:
    return {"side": side, "task": task, "seed": seed, "mean_return": mean_return}


def test_ours_is_compared_with_the_lower_end_of_their_interval() -> None:
    assert half_width([1, 2, 3, 4, 5]) == pytest.approx(2.78 * 1.5811 / 5**0.5, rel=1e-3)
    theirs = [entry("PufferLib 3.0.0", task, seed, 10 * seed) for task in STEPS for seed in SEEDS]  # 30 ± 19.7
    ours = [entry("ours", "cartpole", 1, 12.0), entry("ours", "team", 1, 9.0)]
    failed = {"side": "ours", "task": "recall", "seed": 1, "failed": "ValueError"}
    rows = returns_table([*theirs, *ours, failed]).splitlines()[2:]
    assert [row.split(" | ")[-1].strip(" |") for row in rows] == ["yes", "no", "–"]
    assert "| 12.00 (1) | 30.00 ± 19.66 (5) |" in rows[0]


def test_speeds_are_compared_turn_by_turn() -> None:
    workload = SPEEDS[0]
    steps_of = {name: [{"steps": factor * steps, "seconds": 1.0} for steps in (100, 300, 200)] for name, factor in
             zip(workload.participants, (4, 1, 8), strict=True)}  # fmt: skip
    entries = [{"name": name, "status": "ran", "turns": items} for name, items in steps_of.items()]
    text = speeds_table({workload.name: entries})
    assert text.splitlines()[2].endswith("| 4.00 (4.00 – 4.00) |")
    entries[1] = {"name": workload.participants[1], "status": "failed", "turns": [], "reason": "no wheel"}
    assert "no wheel" in speeds_table({workload.name: entries})


def test_what_has_a_result_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = []

    def train(side: str, task: str, seed: int, steps: int) -> dict[str, Any]:
        trained.append((side, task, seed))
        if len(trained) == 7:
            raise KeyboardInterrupt
        return entry(side, task, seed, 1.0)

    page = tmp_path / "page.md"
    page.write_text(f"before\n{mark('puffer_returns', 'old')}\n{mark('puffer_speeds', 'kept')}\n")
    monkeypatch.setattr(puffer_programs, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(puffer_programs, "PAGE", page)
    monkeypatch.setattr(puffer_programs, "train", train)
    monkeypatch.setattr(sys, "argv", ["puffer_programs", "returns"])
    with pytest.raises(KeyboardInterrupt):
        puffer_programs.main()
    assert len(json.loads((tmp_path / "results.json").read_text())["returns"]) == 6
    puffer_programs.main()
    assert len(trained) == 1 + len(SEEDS) * len(STEPS) * len(SIDES)
    row = "| cartpole | 1.00 ± 0.00 (5) | 1.00 ± 0.00 (5) | yes |"
    assert row in capsys.readouterr().out
    text = page.read_text()
    assert row in text and "old" not in text and text.startswith("before") and mark("puffer_speeds", "kept") in text


def test_the_page_has_the_tables_of_the_results() -> None:
    stored = read_results(RESULTS)
    texts = {"puffer_returns": returns_table(stored["returns"]), "puffer_speeds": speeds_table(stored["speeds"])}
    page = PAGE.read_text()
    for name, text in texts.items():
        assert mark(name, text) in page, (name, "python -m benchmarks.puffer_programs writes it")
