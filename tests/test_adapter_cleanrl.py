"""Scripts of CleanRL's kind run as they are, with the infos that they read."""

from __future__ import annotations

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

NUM = 4
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
# Gymnasium's idiom from 1.0 on: a step after an episode's end only resets, and statistics are arrays with a mask.
NEWER_SCRIPT = """
import sys

import gymnasium as gym
import numpy as np

if __name__ == "__main__":
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(sys.argv[1])] * 8)
    envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)
    assert envs.metadata["autoreset_mode"] == gym.vector.AutoresetMode.NEXT_STEP
    rng, preferences, starts = np.random.default_rng(1), np.zeros(envs.single_action_space.n), np.zeros(8, bool)
    envs.reset(seed=1)
    for _ in range(400):
        shares = np.exp(preferences) / np.exp(preferences).sum()
        actions = rng.choice(len(shares), 8, p=shares)
        _, rewards, terminations, truncations, infos = envs.step(actions)
        assert ("final_info" in infos, "_episode" in infos) == (False, not starts.all())
        for action, reward in zip(actions[~starts], rewards[~starts]):
            preferences += 0.1 * reward * (np.eye(len(shares))[action] - shares)
        for gained in infos["episode"]["r"][infos["_episode"]] if "_episode" in infos else ():
            print(f"episodic_return={gained}")
        starts = terminations | truncations
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
        with pytest.raises(gymnasium.error.UnregisteredEnv, match="did you mean ocean/bandit"):
            gymnasium.make("ocean/bandot")


def test_a_script_of_the_newer_idiom_learns_bandit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(NEWER_SCRIPT)
    play(script, ["ocean/bandit"], infos="1.x")
    returns = [float(line.partition("=")[2]) for line in capfd.readouterr().out.splitlines()]
    assert len(returns) == 1600 and np.mean(returns[-400:]) >= 0.9
