"""Files that the program of commit f19f429 wrote still load; tests/project/f19f429/README.md says how it wrote them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pufferlib
import pufferlib.recording

pytestmark = pytest.mark.beside

FOLDER = Path(__file__).with_name("f19f429")
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def test_a_policy_acts_as_it_did() -> None:
    from pufferlib.models import load_policy

    observations = np.random.default_rng(1).standard_normal((32, 7, 7)).astype(np.float32)
    with load_policy(FOLDER / "run/policy.pt", greedy=True) as player:
        assert [int(player.act(observation)) for observation in observations] == EXPECTED["actions"]


@pytest.mark.slow
def test_a_training_resumes(tmp_path: Path) -> None:
    from cleanrl_demo.ppo import resume
    from pufferlib.models.files import read_checkpoint, read_policy

    shutil.copytree(FOLDER / "run", tmp_path / "run")
    checkpoint = read_checkpoint(tmp_path / "run/checkpoint.pt", "pufferlib checkpoint", "checkpoint.pt")
    weights = read_policy(tmp_path / "run/policy.pt").weights
    learned = checkpoint["learner"]["weights"]
    assert checkpoint["learner"]["num_steps"] == 528  # whole rollouts
    assert learned.keys() == weights.keys() and all(bool((learned[name] == weights[name]).all()) for name in weights)
    config, result = resume(tmp_path / "run", total_steps=592)
    assert 592 <= result.num_steps < 592 + 64 and len(result.episodes) == 2
    settings = json.loads((FOLDER / "run/config.json").read_text(encoding="utf-8"))
    expected = settings | {"total_steps": 592}
    now = json.loads(json.dumps(vars(config)))
    assert {name: now[name] for name in expected} == expected


def test_a_recording_replays() -> None:
    replay = pufferlib.recording.replay(FOLDER / "recording.npz")
    assert replay.identical, replay
    rewards = [float(tape.rewards.sum()) for tape in replay.recording.tapes]
    assert rewards == pytest.approx(EXPECTED["recording"]["rewards"])


def test_a_plan_is_used() -> None:
    plan = pufferlib.load_plan(FOLDER / "plan.toml")
    assert dict(plan) == EXPECTED["plan"]
    with pufferlib.make("ocean/squared", **plan) as vec:
        assert (vec.num_envs, vec.num_workers, vec.batch_size) == (8, 2, 4)


def test_a_league_opens(tmp_path: Path) -> None:
    from pufferlib.population import League

    shutil.copytree(FOLDER / "league", tmp_path / "league")
    with League.resume(tmp_path / "league") as league:
        assert league.table is not None and len(league.rows) == 3
        assert np.allclose(league.table.means, EXPECTED["league"]["payoffs"], rtol=0, atol=1e-12)
        assert len(league.pool) == 6 and league.stopped is not None
