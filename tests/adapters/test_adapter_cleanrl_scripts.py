"""CleanRL's own scripts run as they are, and its DQN learns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.extras, pytest.mark.beside, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def run(name: str, tmp_path: Path, *arguments: str, options: tuple[str, ...] = ()) -> list[float]:
    """Run a script of the package, and return the episodes' returns that it prints."""
    scripts = find_spec("cleanrl")
    assert scripts is not None and scripts.submodule_search_locations
    script = Path(scripts.submodule_search_locations[0]) / name
    command = [sys.executable, "-W", "ignore", "-m", "pufferlib.adapters.cleanrl", *options, script, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    return [float(value) for value in re.findall(r"episodic_return=\[?(-?[\d.]+)", done.stdout)]


def test_their_dqn_learns_bandit(tmp_path: Path) -> None:
    returns = run(
        "dqn.py", tmp_path, "--env-id", "ocean/bandit", "--total-timesteps", "2000", "--learning-starts", "200",
        "--end-e", "0.02", "--exploration-fraction", "0.4", "--target-network-frequency", "100",
        "--learning-rate", "1e-3",
    )  # fmt: skip
    assert len(returns) == 2000 and np.mean(returns[-500:]) >= 0.9


def test_their_ddpg_plays_in_a_process(tmp_path: Path) -> None:
    arguments = "--env-id ocean/continuous --total-timesteps 300 --learning-starts 300".split()
    assert len(run("ddpg_continuous_action.py", tmp_path, *arguments, options=("--num-workers", "1"))) > 1


def test_their_ppo_for_continuous_actions_plays(tmp_path: Path) -> None:
    arguments = "--env-id Pendulum-v1 --total-timesteps 400 --num-envs 2 --num-steps 200 --cuda False".split()
    returns = run("ppo_continuous_action.py", tmp_path, *arguments, options=("--num-workers", "2"))
    assert len(returns) == 2 and returns == run("ppo_continuous_action.py", tmp_path, *arguments)


@pytest.mark.skipif(find_spec("ale_py") is None, reason="needs ale-py")
def test_their_dqn_for_atari_plays(tmp_path: Path) -> None:
    arguments = "--env-id BreakoutNoFrameskip-v4 --total-timesteps 800 --learning-starts 790 --buffer-size 1000".split()
    returns = run("dqn_atari.py", tmp_path, *arguments, options=("--num-workers", "1"))
    assert len(returns) > 1 and min(returns) >= 0
