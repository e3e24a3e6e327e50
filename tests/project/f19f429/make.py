# mypy: ignore-errors
"""Write the files of this folder. Run it with the program of commit f19f429 (README.md)."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np

import pufferlib
from cleanrl_demo.ppo import Config, train
from pufferlib.models import load_policy
from pufferlib.plans import Row, TunedPlan
from pufferlib.population import League, Settings
from pufferlib.population.league_settings import Evaluation, Stop
from pufferlib.recording import record, replay


def main(folder: Path) -> None:
    """Train, record, write a plan and let a league grow, all of it tiny. No file names the folder or the machine."""
    expected = {}
    folder = folder.resolve()
    os.chdir(folder)
    train(Config(
        env="ocean/squared", backend="serial", num_envs=4, total_steps=512, rollout_length=16, eval_episodes=2,
        policy="mlp", policy_kwargs={"hidden_size": 8}, runs="runs", checkpoint_every=256,
    ))  # fmt: skip
    (run,) = (folder / "runs").iterdir()
    (folder / "run").mkdir()
    for path in run.iterdir():
        if path.is_file() and path.suffix in (".pt", ".json"):
            shutil.copy(path, folder / "run" / path.name)
    shutil.rmtree(folder / "runs")
    facts = json.loads((folder / "run/run.json").read_text())
    (folder / "run/run.json").write_text(json.dumps(facts | dict.fromkeys(("command", "cwd", "machine"), "")) + "\n")

    with pufferlib.make("ocean/squared", num_envs=1, backend="serial") as vec:
        shape = vec.single_observation_space.shape
    observations = np.random.default_rng(1).standard_normal((32, *shape)).astype(np.float32)
    with load_policy(folder / "run/policy.pt", greedy=True) as player:
        expected["actions"] = [int(player.act(row)) for row in observations]

    recording = record("ocean/squared", folder / "recording.npz", num_steps=40, num_envs=2, seed=3)
    assert replay(folder / "recording.npz").identical
    expected["recording"] = {"rewards": [float(tape.rewards.sum()) for tape in recording.tapes]}

    plan = {"backend": "pool", "num_envs": 8, "num_workers": 2, "batch_size": 4}
    TunedPlan(plan, [Row(plan, 1000.0, 0)], "it was the only one").save(folder / "plan.toml")
    expected["plan"] = plan

    settings = Settings(game="kuhn_poker", stop=Stop(iterations=2), evaluation=Evaluation(payoffs="exact"))
    with League.begin(settings, folder / "league") as league:
        for _ in league:
            pass
        assert league.table is not None
        expected["league"] = {"payoffs": league.table.means.tolist()}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
