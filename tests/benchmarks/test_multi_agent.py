"""`benchmarks.multi_agent`: what it runs and continues, whose agents meet, and what its tables say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from benchmarks import multi_agent, multi_agent_tables
from benchmarks.multi_agent import TASKS, cross_play, joined, measure, missing_pairings, missing_runs, settings_of
from benchmarks.multi_agent_tables import PAGE, sections
from benchmarks.pages import fill
from cleanrl_demo import maddpg, qmix
from pufferlib.layout import observation_layout
from pufferlib.models import Origin
from pufferlib.models.files import SavedPolicy

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("one_thread")]


def runs_of(task: str, algorithm: str, *returns: float) -> list[dict[str, Any]]:
    return [
        {"task": task, "algorithm": algorithm, "seed": seed, "mean_return": value, "settings": None}
        for seed, value in enumerate(returns, 1)
    ]


def test_the_page_says_what_the_results_say() -> None:
    page = PAGE.read_text()
    texts = sections(multi_agent.stored())
    assert fill(page, texts) == page, "python -m benchmarks.multi_agent --page writes it"
    assert all(f"<!-- begin {name} -->" in page for name in texts)


def test_runs_of_one_task_share_a_line_and_so_do_its_pairings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_agent, "RESULT", tmp_path / "multi_agent.json")
    assert multi_agent.stored() == {"runs": [], "pairings": []}
    runs = runs_of("spread", "ddpg", -60, -61) + runs_of("spread", "maddpg", -50, -51) + runs_of("tag", "ddpg", 1, 2)
    sides = [(["ddpg", 1], ["maddpg", 1]), (["ddpg", 2], ["maddpg", 2]), (["maddpg", 1], ["ddpg", 1])]
    pairings = [{"first": list(first), "second": list(second), "task": "tag"} for first, second in sides]
    multi_agent.store({"runs": runs[::-1], "pairings": pairings[::-1]})
    assert multi_agent.stored() == {"runs": runs, "pairings": pairings}  # in the order of the tasks
    assert len(multi_agent.RESULT.read_text().splitlines()) == 7  # 2 of runs, 1 of pairings, 4 of brackets


def test_tables_judge_means_by_bars_and_by_the_others_intervals() -> None:
    runs = runs_of("two-step", "qmix", 16, 16) + runs_of("two-step", "vdn", 14, 14) + runs_of("two-step", "iql", 4)
    runs += runs_of("foraging", "qmix", 0.9, 0.85) + runs_of("foraging", "iql", 0.5, 0.6)
    runs += runs_of("simple", "maddpg", -5.0, -5.2) + runs_of("simple", "ddpg", -6.0, -6.2)
    runs += runs_of("spread-continuous", "maddpg", -52, -54) + runs_of("spread-continuous", "benchmarl", -48, -50)
    runs += runs_of("spread-ppo", "mappo", -80, -82) + runs_of("spread-ppo", "ppo", -48, -49)
    sides = [("maddpg", "ddpg", [8.0, -3.0]), ("ddpg", "maddpg", [2.0, -1.0])]
    pairings = [
        {"task": "tag", "first": [one, seed], "second": [other, seed], "returns": returns}
        for one, other, returns in sides
        for seed in (1, 2)
    ]
    texts = {name: text.splitlines()[2:] for name, text in sections({"runs": runs, "pairings": pairings}).items()}
    assert texts["multi_agent_teams"][0] == "| two-step | QMIX | 8.00 (8.00 – 8.00) | ≥ 8 | 2 | yes |"
    assert texts["multi_agent_teams"][1] == "| two-step | VDN | 7.00 (7.00 – 7.00) | ≤ 7 | 2 | yes |"
    assert texts["multi_agent_teams"][2].endswith("| ≥ 0.9 | 2 | no |")  # 0.875
    assert texts["multi_agent_teams"][3].endswith("| – | 2 | – |") and len(texts["multi_agent_teams"]) == 4
    assert [line.rsplit(" | ", 1)[1] for line in texts["multi_agent_pairs"]] == ["above |", "level |", "below |"]
    assert texts["multi_agent_sides"] == [
        "| tag | adversaries | 8.00 (8.00 – 8.00) | 2.00 (2.00 – 2.00) | 2 | above |",
        "| tag | prey | -1.00 (-1.00 – -1.00) | -3.00 (-3.00 – -3.00) | 2 | above |",
    ]
    compared = {(task, name) for task, (_, bars) in multi_agent_tables.TEAMS.items() for name in bars}
    compared |= {(task, name) for task, *names in multi_agent_tables.PAIRS for name in names}
    compared |= {(task, name) for task in multi_agent_tables.SIDES for name in ("maddpg", "ddpg")}
    assert compared == {(name, algorithm) for name, task in TASKS.items() for algorithm in task.trainers}
    assert set(multi_agent_tables.SIDES) == {name for name, task in TASKS.items() if task.num_opponents}


def test_only_runs_of_other_settings_are_missing(tmp_path: Path) -> None:
    stored = [
        {**run, "settings": json.loads(json.dumps(settings_of("tag", "maddpg")))}
        for run in runs_of("tag", "maddpg", 1.0, 2.0)
    ]
    stored[1]["settings"]["gamma"] = 0.5
    results = {"runs": stored, "pairings": []}
    assert missing_runs(results, ["tag"]) == [
        ("tag", "ddpg", 1),
        ("tag", "maddpg", 2),
        ("tag", "ddpg", 2),
        ("tag", "maddpg", 3),
        ("tag", "ddpg", 3),
    ]
    assert missing_runs(results, ["spread-continuous"], [1])[1] == ("spread-continuous", "benchmarl", 1)
    for name in ("maddpg-1", "ddpg-1", "maddpg-2"):
        (tmp_path / f"tag-{name}.pt").touch()
    results["pairings"] = [{"task": "tag", "first": ["ddpg", 1], "second": ["maddpg", 2]}]
    assert missing_pairings(results, ["tag", "spread"], tmp_path) == [
        ("tag", ["maddpg", 1], ["ddpg", 1]),
        ("tag", ["maddpg", 2], ["ddpg", 1]),
        ("tag", ["ddpg", 1], ["maddpg", 1]),
    ]


def test_the_first_agents_are_those_of_the_first_policy() -> None:
    layout, actions = observation_layout(spaces.Box(-1, 1, (4,), np.float32)), spaces.Discrete(3)
    policies = [maddpg.Policy(layout, actions, 3, (8,)) for _ in range(3)]
    saved = [SavedPolicy("", Origin("maddpg"), policy.state_dict()) for policy in policies[:2]]
    policies[2].load_state_dict(dict(joined(*saved, 1).weights))
    observations = torch.rand(5, 3, 4)
    first, second, both = (policy.outputs(observations) for policy in policies)
    assert torch.equal(both, torch.cat([first[:, :1], second[:, 1:]], 1)) and not torch.equal(first, second)


def test_a_stopped_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resumed, resume, update = [], qmix.resume, qmix.update

    def watched(folder: Path, **kwargs: Any) -> Any:
        resumed.append(folder.name)
        return resume(folder, **kwargs)

    def stop(learner: Any, config: Any) -> Any:
        if list(tmp_path.glob("*/*/newest.pt")):
            raise KeyboardInterrupt
        return update(learner, config)

    monkeypatch.setattr(qmix, "resume", watched)
    with monkeypatch.context() as stopping, pytest.raises(KeyboardInterrupt):
        stopping.setattr(qmix, "update", stop)
        measure("two-step", "vdn", 1, tmp_path, short=True)
    assert not resumed and not (tmp_path / "two-step-vdn-1.pt").exists()
    run = measure("two-step", "vdn", 1, tmp_path, short=True)
    assert resumed == ["newest.pt"] and len(run["agent_returns"]) == 2
    assert run["mean_return"] == pytest.approx(sum(run["agent_returns"]), abs=0.01)
    assert [path.name for path in tmp_path.iterdir()] == ["two-step-vdn-1.pt"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["push", "foraging", "spread-ppo"])
def test_tasks_run_with_few_steps(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    for algorithm in task.trainers:
        run = measure(name, algorithm, 1, tmp_path, short=True)
        assert len(run["agent_returns"]) == task.num_agents
    if task.num_opponents:
        pairing = cross_play(name, ("ddpg", 1), ("maddpg", 1), tmp_path, episodes=2)
        assert np.isfinite(pairing["returns"]).all() and len(pairing["returns"]) == 2


@pytest.mark.long
def test_a_run_of_other_settings_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it left is removed."""
    config = qmix.Config(total_steps=2_000, runs=str(tmp_path / "runs"))
    folder = tmp_path / "runs" / "older"
    folder.mkdir(parents=True)
    (folder / "newest.pt").touch()
    monkeypatch.setattr(qmix, "train", lambda config: "new")
    monkeypatch.setattr(qmix, "resume", lambda folder, trust: (config, "continued"))
    (folder / "config.json").write_text(json.dumps(vars(config)))
    assert multi_agent.trained(qmix, config) == "continued"
    assert multi_agent.trained(qmix, replace(config, seed=2)) == "new" and not folder.exists()
