"""`benchmarks.off_policy`: what it trains and leaves out, how it stores runs, and what its tables say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest

from benchmarks import off_policy
from benchmarks.pages import fill

pytestmark = pytest.mark.beside


def test_the_page_of_trainers_says_what_the_results_off_policy_say() -> None:
    page = off_policy.PAGE.read_text()
    texts = off_policy.sections(off_policy.stored())
    assert fill(page, texts) == page, "python -m benchmarks.off_policy --page writes it"
    assert all(f"<!-- begin {name} -->" in page for name in texts)


def test_runs_of_one_task_share_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(off_policy, "RESULT", tmp_path / "off_policy.json")
    assert off_policy.stored() == {"runs": [], "speed": []}
    tasks = ("pendulum-sac", "pendulum-td3")
    runs = [{"task": task, "side": side, "seed": 1} for task in tasks for side in ("ours", "sb3")]
    results = {"runs": runs, "speed": [{"step_s": 0.0, "ours": [1.0], "sb3": [2.0]}]}
    off_policy.store(results)
    assert off_policy.stored() == results
    assert len(off_policy.RESULT.read_text().splitlines()) == 7  # 2 of runs, 1 of speeds, 4 of brackets


@pytest.mark.parametrize(
    "error", [gymnasium.error.DependencyNotInstalled("Box2D is not installed"), ImportError("No module named imageio")]
)
def test_tasks_are_left_out_that_lack_a_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def make(name: str) -> gymnasium.Env[Any, Any]:
        if name == "Hopper-v5":
            raise error
        return real_make(name)

    def measure(name: str, side: str, seed: int) -> dict[str, Any]:
        trained.append((name, side))
        return {"task": name, "side": side, "seed": seed, "mean_return": 0.0, "seconds": 0.0, "settings": {}}

    real_make, trained = gymnasium.make, list[tuple[str, str]]()
    monkeypatch.setattr(gymnasium, "make", make)
    monkeypatch.setattr(off_policy, "store", lambda results: None)
    monkeypatch.setattr(off_policy, "measure", measure)
    monkeypatch.setattr(off_policy, "TASKS", {name: off_policy.TASKS[name] for name in ("hopper-td3", "pendulum-sac")})
    off_policy.train_missing({"runs": []}, ["hopper-td3", "pendulum-sac"], [1])
    assert trained == [("pendulum-sac", "ours"), ("pendulum-sac", "sb3")]
    assert capsys.readouterr().out.startswith(f"hopper-td3 is left out: {error}\n")


def test_results_are_met_where_the_mean_reaches_the_lower_end_of_the_others_interval() -> None:
    def run(task: str, side: str, *returns: float) -> list[dict[str, Any]]:
        return [
            {"task": task, "side": side, "seed": seed, "mean_return": value, "settings": {"total_steps": 400}}
            for seed, value in enumerate(returns)
        ]

    runs = run("pendulum-sac", "sb3", -150, -160) + run("pendulum-sac", "ours", -215, -220)  # -155 - 12.7 * 5
    runs += run("pendulum-td3", "sb3", -150, -160) + run("pendulum-td3", "ours", -220, -222)
    runs += run("hopper-td3", "sb3", 400, 500) + run("hopper-td3", "ours", 300)  # one seed is no interval
    speed = [{"step_s": step_s, "ours": [12.0, 13.0, 14.0], "sb3": [10.0, 10.0, 10.0]} for step_s in (0.0, 0.01)]
    tables = off_policy.sections({"runs": runs, "speed": speed})
    sac, td3 = tables["off_policy"].splitlines()[2:]
    assert sac == "| Pendulum-v1 | SAC | -217.5 (-249.3 – -185.7) | -155.0 (-218.5 – -91.5) | 400 | 2 | yes |"
    assert td3.startswith("| Pendulum-v1 | TD3 | -221.0 ") and td3.endswith(" | no |")
    assert [line[-14:] for line in tables["off_policy_speed"].splitlines()[2:]] == ["| yes, ≥ 1.1 |", " | no, ≥ 1.5 |"]
