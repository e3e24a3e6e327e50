"""Scripts of CleanRL's kind run as they are, with the infos that they read."""

from __future__ import annotations

import os
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
from pufferlib.adapters import cleanrl, cleanrl_wrappers, gymnasium_vector
from pufferlib.adapters.cleanrl import AsyncVectorEnv, SyncVectorEnv, play, replaced
from pufferlib.errors import PlanError

pytestmark = [pytest.mark.extras, pytest.mark.beside]

NUM = 4
ROOT = Path(__file__).parents[2]
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
        actual: dict[str, Any] = {}
        for key, parts in infos.items():
            if not key.startswith("_"):
                for index in np.flatnonzero(infos[f"_{key}"]):
                    actual[f"{key} {index}"] = parts[index].tolist() if key == "final_observation" else parts[index]
        for index in np.flatnonzero(terminations | truncations):
            infos["final_info"][index]["episode"].pop("t")
        assert actual == expected
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


# The wrappers of CleanRL's scripts for Atari, and those for continuous actions, as Gymnasium 0.29 calls them.
ATARI_SCRIPT = """
import sys
import threading

import gymnasium as gym
import numpy as np


class Screen(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (210, 160, 3), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.seen(), {}

    def step(self, action):
        self.count += 1
        return self.seen(), 1.0, self.count == 6, False, {}

    def seen(self):
        picture = np.zeros((210, 160, 3), np.uint8)
        picture[:, :, self.count % 3] = 200
        return picture


def make_env(env_id):
    def thunk():
        env = Screen() if env_id == "Screen" else gym.make(env_id)
        env = gym.wrappers.RecordEpisodeStatistics(env, deque_size=10)
        env = gym.wrappers.ResizeObservation(env, (84, 84))
        env = gym.wrappers.GrayScaleObservation(env)
        return gym.wrappers.FrameStack(env, 4)

    return thunk


if __name__ == "__main__":
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()  # as SummaryWriter does
    env_id, num_envs = sys.argv[1], int(sys.argv[2])
    envs = gym.vector.SyncVectorEnv([make_env(env_id) for _ in range(num_envs)])
    assert isinstance(envs.single_action_space, gym.spaces.Discrete)
    observations, _ = envs.reset(seed=1)
    for _ in range(5):
        observations, rewards, terminations, truncations, infos = envs.step(np.zeros(num_envs, int))
    print(type(envs).__name__, observations.shape, observations.dtype, np.unique(observations).tolist()[:3])
    infos = envs.step(np.zeros(num_envs, int))[4]
    for info in infos.get("final_info", ()):
        print(f"episodic_return={info['episode']['r']}")
    try:
        print(type(envs.envs[0]).__name__)
    except AttributeError as error:
        print(error)
    envs.close()
    over.set()
    thread.join()
"""
CONTINUOUS_SCRIPT = """
import sys

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import NormalizeReward


def make_env(env_id, gamma):
    def thunk():
        env = gym.make(env_id)
        env = gym.wrappers.FlattenObservation(env)
        env = gym.wrappers.RecordEpisodeStatistics(env)
        env = gym.wrappers.ClipAction(env)
        env = gym.wrappers.NormalizeObservation(env)
        env = gym.wrappers.TransformObservation(env, lambda obs: np.clip(obs, -10, 10))
        env = NormalizeReward(env, gamma=gamma)
        return gym.wrappers.TransformReward(env, lambda reward: np.clip(reward, -10, 10))

    return thunk


if __name__ == "__main__":
    envs = gym.vector.SyncVectorEnv([make_env("Pendulum-v1", 0.99) for _ in range(2)])
    assert envs.single_action_space.high.tolist() == [2.0]
    envs.reset(seed=1)
    for _ in range(200):
        observations, rewards, _, truncations, infos = envs.step(np.full((2, 1), 5.0, np.float32))
        assert np.abs(observations).max() <= 10 and np.abs(rewards).max() <= 10
    print(truncations.tolist(), [info["episode"]["l"] for info in infos["final_info"]])
    envs.close()
    try:
        gym.wrappers.VectorListInfo
    except AttributeError as error:
        print(error)
"""


def script_of(folder: Path, text: str) -> Path:
    script = folder / "script.py"
    script.write_text(text)
    return script


@pytest.mark.slow
@pytest.mark.skipif(cleanrl_wrappers.OLD, reason="Gymnasium 0.29 has its own")
def test_wrappers_of_029_are_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    theirs = dict(vars(gymnasium.wrappers))
    script = script_of(tmp_path, ATARI_SCRIPT)
    for num_workers in (0, 2):
        play(script, ["Screen", "2"], num_workers=num_workers)
        shape, *returns, of_envs = capfd.readouterr().out.splitlines()
        # Red, green and blue in gray, by OpenCV's weights: 0.299, 0.587, 0.114.
        assert shape.endswith("(2, 4, 84, 84) uint8 [23, 60, 117]"), shape
        assert returns == ["episodic_return=6.0"] * 2
        if num_workers:
            assert "the environments of this AsyncVectorEnv are in other processes" in of_envs
            assert "get_attr(name)[0]" in of_envs
        else:
            assert of_envs == "FrameStack"
    play(script_of(tmp_path, CONTINUOUS_SCRIPT))
    plain, refused = capfd.readouterr().out.splitlines()
    assert plain.startswith("[True, True]") and plain.count("200") == 2
    assert "has no wrappers.VectorListInfo" in refused and "pip install gymnasium==0.29.1" in refused
    assert vars(gymnasium.wrappers) == theirs
    with replaced("1.x"), pytest.raises(AttributeError, match="renamed"):
        gymnasium.wrappers.FrameStack  # noqa: B018


@pytest.mark.skipif(cleanrl_wrappers.OLD, reason="Gymnasium 0.29 has its own")
def test_wrappers_of_029_go_around_vector_environments() -> None:
    with replaced():
        envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
        envs = gymnasium.wrappers.RecordEpisodeStatistics(envs, 10)
        envs = gymnasium.wrappers.TransformReward(envs, lambda reward: 2 * reward)
        envs.reset(seed=1)
        for _ in range(30):
            _, rewards, terminations, _, infos = envs.step(np.ones(3, int))
            assert rewards.tolist() == [2.0] * 3
            if terminations.any():
                assert (infos["episode"]["l"] > 5).tolist() == infos["_episode"].tolist() == terminations.tolist()
                break
        assert terminations.any()
        with pytest.raises(PlanError, match="pip install gymnasium==0.29.1"):
            gymnasium.wrappers.NormalizeObservation(envs)
        envs.close()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(find_spec("ale_py") is None, reason="needs ale-py")
@pytest.mark.skipif(cleanrl_wrappers.OLD, reason="Gymnasium 0.29 has its own")
def test_atari_is_known_without_its_import(tmp_path: Path) -> None:
    script, out = script_of(tmp_path, ATARI_SCRIPT), []
    for env_id in ("BreakoutNoFrameskip-v4", "ALE/Pong-v5"):
        command = [sys.executable, "-m", "pufferlib.adapters.cleanrl", "--num-workers", "1", script, env_id, "2"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr[-3000:]
        out += done.stdout.splitlines()[:1]
    assert [line.partition(")")[0] for line in out] == ["AsyncVectorEnv (2, 4, 84, 84"] * 2


def test_an_unknown_game_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanrl, "find_spec", lambda name: None)
    with replaced(), pytest.raises(gymnasium.error.UnregisteredEnv, match="pip install ale-py"):
        gymnasium.make("NoSuchGameNoFrameskip-v4")
