"""CleanRL's scripts run as they are: with the infos that they read, and its DQN learns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics
from mock_envs import HashEnv

import pufferlib
from pufferlib.adapters import cleanrl, gymnasium_vector
from pufferlib.adapters.cleanrl import AsyncVectorEnv, SyncVectorEnv, play, replaced

pytestmark = [pytest.mark.extras, pytest.mark.beside]

ROOT = Path(__file__).parent.parent
NUM = 4
SCRIPTS = find_spec("cleanrl")  # of the package registry, whose requirements are of 2022: `make test-adapters` has it
SCRIPT = """
import sys

import gymnasium as gym
import numpy as np

if __name__ == "__main__":
    envs = gym.vector.SyncVectorEnv([lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(sys.argv[1]))] * 3)
    envs.reset(seed=1)
    infos = envs.step(np.zeros(envs.action_space.shape, envs.action_space.dtype))[4]
    assert envs.single_action_space.n == 4 and gym.make("CartPole-v1").spec.id == "CartPole-v1"
    print(type(envs).__name__, [float(info["episode"]["r"]) for info in infos["final_info"]])
    envs.close()
"""


def make_env(index: int) -> Any:
    return RecordEpisodeStatistics(HashEnv(index))


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_infos_are_as_gymnasium_029_has_them(kind: Any) -> None:
    envs = kind([lambda index=index: make_env(index) for index in range(NUM)])
    singles = [make_env(index) for index in range(NUM)]
    envs.reset(seed=5)
    for index, env in enumerate(singles):
        env.reset(seed=5 + index)
    rng, num_ends = np.random.default_rng(2), 0
    for _ in range(40):
        actions = rng.integers(1000, size=NUM)
        observations, _, terminations, truncations, infos = envs.step(actions)
        expected: dict[str, Any] = {}
        for index, env in enumerate(singles):
            seen, _, terminated, truncated, info = env.step(actions[index])
            if terminated or truncated:
                info["episode"].pop("t")
                first, _info = env.reset()
                expected |= {f"final_observation {index}": seen.tolist(), f"final_info {index}": info}
                info, seen = _info, first
                num_ends += 1
            expected |= {f"{key} {index}": part for key, part in info.items()}
            assert observations[index].tolist() == seen.tolist()
        found: dict[str, Any] = {}
        for key, parts in infos.items():
            if not key.startswith("_"):
                for index in np.flatnonzero(infos[f"_{key}"]):
                    found[f"{key} {index}"] = parts[index].tolist() if key == "final_observation" else parts[index]
        for index in np.flatnonzero(terminations | truncations):
            infos["final_info"][index]["episode"].pop("t")
        assert found == expected
        if "final_info" in infos:
            assert infos["final_info"].dtype == infos["final_observation"].dtype == object
            over = terminations | truncations
            assert [info is not None for info in infos["final_info"]] == over.tolist()
    assert num_ends > 20
    envs.close()


def test_a_script_runs_as_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    theirs = gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv, gymnasium.make
    cleanrl.main([str(script), "ocean/bandit"])
    play(script, ["ocean/bandit"], num_workers=2)
    sync, processes = capfd.readouterr().out.splitlines()
    assert sync.startswith("SyncVectorEnv [") and processes == sync.replace("Sync", "Async")
    assert (gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv, gymnasium.make) == theirs
    with replaced("1.x"):
        assert gymnasium.vector.SyncVectorEnv is gymnasium_vector.SyncVectorEnv
        with pytest.raises(pufferlib.SpaceError, match="several agents"):
            gymnasium.make("ocean/multiagent")
        with pytest.raises(gymnasium.error.UnregisteredEnv):
            gymnasium.make("Nothing-v0")


def run(name: str, tmp_path: Path, *arguments: str, options: tuple[str, ...] = ()) -> list[float]:
    """Run a script of the package, and return the episodes' returns that it prints."""
    assert SCRIPTS is not None and SCRIPTS.submodule_search_locations
    script = Path(SCRIPTS.submodule_search_locations[0]) / name
    command = [sys.executable, "-W", "ignore", "-m", "pufferlib.adapters.cleanrl", *options, script, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    return [float(found) for found in re.findall(r"episodic_return=\[?(-?[\d.]+)", done.stdout)]


@pytest.mark.slow
@pytest.mark.skipif(SCRIPTS is None, reason="cleanrl is not installed")
def test_their_dqn_learns_bandit(tmp_path: Path) -> None:
    returns = run(
        "dqn.py", tmp_path, "--env-id", "ocean/bandit", "--total-timesteps", "2000", "--learning-starts", "200",
        "--end-e", "0.02", "--exploration-fraction", "0.4", "--target-network-frequency", "100",
        "--learning-rate", "1e-3",
    )  # fmt: skip
    assert len(returns) == 2000 and np.mean(returns[-500:]) >= 0.9


@pytest.mark.slow
@pytest.mark.skipif(SCRIPTS is None, reason="cleanrl is not installed")
def test_their_ddpg_plays_in_a_process(tmp_path: Path) -> None:
    arguments = "--env-id ocean/continuous --total-timesteps 300 --learning-starts 300".split()
    assert len(run("ddpg_continuous_action.py", tmp_path, *arguments, options=("--num-workers", "1"))) > 1
