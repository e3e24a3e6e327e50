"""Tests of the benchmark of the fused learner and of compiled ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import learner, report
from benchmarks.learner_trainings import rate_of_sb3
from cleanrl_demo.ppo import Config

pytestmark = pytest.mark.beside


def test_the_pages_say_what_compiling_costs_and_how_fast_cartpole_is_learnt(tmp_path: Path) -> None:
    pages = [page.read_text() for page in learner.PAGES]
    texts = learner.sections(learner.stored())
    assert [report.fill(page, texts) for page in pages] == pages, "python -m benchmarks.learner --page writes them"
    assert all(any(f"<!-- begin {name} -->" in page for page in pages) for name in texts)
    measured = {"small": {"256": {"first": 12.0, "eager": [0.4, 0.5, 0.6], "compiled": [0.2, 0.25, 0.3]},
                          "64": {"first": 9.0, "eager": [0.1], "compiled": [0.2]}}}  # fmt: skip
    pays, never = learner.sections({"compile": {"measured": measured}})["learner_compile"].splitlines()[2:]
    assert pays == "| MLP, 8 numbers | 256 | 125.00 ms | 2.00 (2.00 – 2.00) | 12 s | 192 minibatches |"
    assert never.endswith("| 0.50 (0.50 – 0.50) | 9 s | never |")
    curves = {"fused": [{"seconds": [0.1, 0.2, 0.3], "returns": [20.0, 480.0, 470.0]},
                        {"seconds": [0.1, 0.4], "returns": [22.0, 475.0]}],
              "SB3": [{"seconds": [1.0, 9.0], "returns": [30.0, 200.0]}]}  # fmt: skip
    text = learner.sections({"curves": {"measured": curves}})["learner_curves"]
    assert text.endswith(": fused 0.20 to 0.40 s, 2 of 2 seeds; SB3 0 of 1 seeds.")
    learner.draw_curves(curves, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_stable_baselines_has_the_learning_rates_of_ppo_at_each_update() -> None:
    config = Config("CartPole-v1", num_envs=32, rollout_length=64, total_steps=70_000, learning_rate=1e-3)
    ends = range(2048, 70_000 + 2048, 2048)  # of its rollouts
    rates = [rate_of_sb3(config, 1 - end / config.total_steps) for end in ends]
    assert rates[0] == 1e-3 and rates == sorted(rates, reverse=True)
    assert abs(rates[-1] - 1e-3 * (1 - 34 * 2048 / 70_000)) < 1e-12 and rates[-1] > 0


def test_speeds_of_the_learner_are_judged_by_bars_and_name_lower_scores() -> None:
    def entries(seconds: float, figure: str, *values: float) -> list[dict[str, float]]:
        return [{"seconds": seconds, "cpu_s": seconds, figure: value} for value in values]

    ours = {"fused": [0.1, 0.1], "two threads": [0.1, 0.1], "two copies": [0.16, 0.2]}
    update = {size: {**ours, "eager": [0.5, 0.6], "compiled": [0.4, 0.4]} for size in ("256", "64")}
    rollout = {"32": {"fused": [0.1], "torch": [0.7]}}
    cartpole = {
        "fused": entries(0.5, "mean_return", 500, 474),
        "ppo": entries(4.0, "mean_return", 480),
        "sb3": entries(5.0, "mean_return", 477.5),
    }
    ocean = {
        "ocean/bandit": {"fused": entries(1, "score", 0.9, 0.9), "torch": entries(3, "score", 1.0, 1.0)},
        "ocean/squared": {"fused": entries(2, "score", 0.99, 1.0), "torch": entries(3, "score", 0.99, 1.0)},
    }
    vectorizers = {
        "CartPole-v1": {"fused": entries(2, "mean_return", 80, 80), "torch": entries(5, "mean_return", 91, 90)},
        "Pendulum-v1": {"fused": entries(2, "mean_return", 9), "torch": entries(3, "mean_return", 8),
                        "sb3": entries(5, "mean_return", 10), "bare": [{"seconds": 1.5, "cpu_s": 1.4}],
                        "workers": entries(1.6, "mean_return", 11)},
    }  # fmt: skip
    parts = {"update": update, "rollout": rollout, "cartpole": cartpole, "ocean": ocean, "vectorizers": vectorizers}
    text = learner.sections({name: {"measured": part} for name, part in parts.items()})["learner_speed"]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    takes = {row[0]: row[1] for row in rows}
    pendulum = "`ppo --learner fused` on Pendulum-v1"
    assert takes[pendulum] == "2.0 s, 2.0 CPU s; the bare environment 1.5 s"
    assert takes[f"{pendulum}, a pool of 2 workers"] == "1.6 s, 1.6 CPU s; the bare environment 1.5 s"
    verdicts = [row[3:] for row in rows]
    shares = ["0.90 (0.80 – 1.00) of their rate", "≥ 0.85", "yes", "–"]
    lower = "lower: bandit 0.900, not 1.000"
    assert verdicts == [
        ["5.50 (5.00 – 6.00) times as fast", "≥ 5", "yes", "–"],
        ["4.00 (4.00 – 4.00) times as fast", "≥ 3.5", "yes", "–"],
        shares,
        ["5.50 (5.00 – 6.00) times as fast", "≥ 12", "**no**", "–"],
        ["4.00 (4.00 – 4.00) times as fast", "≥ 9", "**no**", "–"],
        shares,
        ["7.00 (7.00 – 7.00) times as fast", "≥ 8", "**no**", "–"],
        ["0.50 (0.50 – 0.50) s, 0.50 CPU s", "≤ 1.0 s, all seeds", "**no**",
         "≥ 475 with 1 of 2 seeds, the least mean 474"],
        ["8.00 (8.00 – 8.00) times as fast", "≥ 8", "yes", "≥ 475 with 1 of 1 seeds, the least mean 480"],
        ["10.00 (10.00 – 10.00) times as fast", "–", "–", "≥ 475 with 1 of 1 seeds, the least mean 478"],
        ["2.25 (1.50 – 3.00) times as fast, by environment", "≥ 2", "yes", lower],
        ["0.50 of its sum of seconds", "≤ 0.45", "**no**", lower],
        ["2.50 (2.50 – 2.50) times as fast", "≥ 2", "yes", "80 (80 – 80) next to 90 (84 – 97), lower"],
        ["1.50 (1.50 – 1.50) times as fast", "–", "–", "9 next to 8"],
        ["2.50 (2.50 – 2.50) times as fast", "≥ 3", "**no**", "9 next to 10"],
        ["3.12 (3.12 – 3.12) times as fast", "≥ 3", "yes", "11 next to 10"],
    ]  # fmt: skip
    assert learner.sections({})["learner_speed"] == "Not measured yet."
