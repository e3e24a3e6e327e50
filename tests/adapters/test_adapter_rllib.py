"""The faces for RLlib: rows as Gymnasium's, agents as PettingZoo's, and its PPO learns over both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers.vector import DictInfoToList
from mock_envs import FaultyEnv, HashEnv, HashPopulation
from tensor_batches import over_tensors

import pufferlib

pytest.importorskip("ray.rllib.env.multi_agent_env")
from pettingzoo.test.example_envs import generated_agents_parallel_v0
from ray.rllib.algorithms.ppo import PPOConfig

from pufferlib.adapters.rllib import Agents, RLlibVecEnv, environment, make

pytestmark = [pytest.mark.extras, pytest.mark.beside]

HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_plays_as_gymnasium_has_it(backend: str) -> None:
    theirs = DictInfoToList(gymnasium.vector.SyncVectorEnv([lambda index=index: HashEnv(index) for index in range(4)]))
    ours = DictInfoToList(make(HashEnv, num_envs=4, backend=backend, num_workers=2))
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.action_space == theirs.action_space
    seeds = [3, 1, 4, 1]
    expected, their_infos = theirs.reset(seed=seeds)
    observations, infos = ours.reset(seed=seeds)
    np.testing.assert_array_equal(observations, expected)
    assert infos == their_infos
    rng, num_ends = np.random.default_rng(1), 0
    for _ in range(60):
        actions = rng.integers(1000, size=4)
        (*parts, infos), (*their_parts, their_infos) = ours.step(list(actions)), theirs.step(actions)
        for part, other in zip(parts, their_parts, strict=True):
            np.testing.assert_array_equal(part, np.asarray(other, part.dtype))
        for info, ended in zip(infos, parts[2] | parts[3], strict=True):
            assert ("episode" in info) == ended
            info.pop("episode", None)
            info.pop("env", None)
            num_ends += ended
        assert infos == their_infos
    assert num_ends > 20
    ours.close()


@over_tensors
def test_plays_over_tensors_as_over_arrays(kwargs: dict[str, Any]) -> None:
    envs, expected = (make("classic/cartpole", num_envs=3, seed=1, **more) for more in (kwargs, {}))
    np.testing.assert_array_equal(envs.reset()[0], expected.reset()[0])
    rng, num_ends = np.random.default_rng(1), 0
    for _ in range(120):
        actions = rng.integers(2, size=3)
        (*parts, infos), (*others, other_infos) = envs.step(actions), expected.step(actions)
        for part, other in zip(parts, others, strict=True):
            assert type(part) is np.ndarray
            np.testing.assert_array_equal(part, other)
        assert infos.keys() == other_infos.keys()
        num_ends += "episode" in infos
    assert num_ends > 5
    envs.close()
    expected.close()


@pytest.mark.slow
@pytest.mark.parametrize("kwargs", [{"backend": "cuda", "device": "host"}, {"as_torch": True}], ids=str)
def test_their_env_runner_plays_over_tensors(kwargs: dict[str, Any]) -> None:
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    config = environment(PPOConfig(), "classic/cartpole", num_envs=4, **kwargs)
    runner = SingleAgentEnvRunner(config=config.env_runners(rollout_fragment_length=50))
    episodes = runner.sample(num_timesteps=400, random_actions=True)
    assert sum(map(len, episodes)) >= 400 and any(episode.is_done for episode in episodes)
    runner.stop()


def test_a_crash_is_not_bootstrapped_from() -> None:
    envs = make(FaultyEnv, num_envs=2, on_error="restart")
    envs.reset()
    _, _, terminations, truncations, infos = envs.step(np.array([991, 0]))
    assert terminations[0] and not truncations[0] and infos["_restarted"].tolist() == [True, False]
    envs.close()
    with (
        pufferlib.make(HashEnv, autoreset_mode="same_step") as vec,
        pytest.raises(pufferlib.PlanError, match="next_step"),
    ):
        RLlibVecEnv(vec)


def test_agents_are_the_environments() -> None:
    ours, theirs = Agents("ocean/multiagent"), pufferlib.make("ocean/multiagent")
    observations, _ = ours.reset(seed=7)
    assert list(observations) == ours.agents == ours.possible_agents
    assert all(ours.get_observation_space(agent).contains(seen) for agent, seen in observations.items())
    rows, _ = theirs.reset(seed=[7])
    np.testing.assert_array_equal(np.stack(list(observations.values())), rows)
    actions = np.array([1, 0])
    _, rewards, terminations, truncations, _ = ours.step(dict(zip(ours.possible_agents, actions, strict=True)))
    _, expected, *_ = theirs.step(actions)
    assert list(rewards.values()) == expected.tolist()
    assert terminations["__all__"] and not truncations["__all__"]
    theirs.close()
    for env in (HashEnv, HashPopulation, generated_agents_parallel_v0.parallel_env):
        with pytest.raises(pufferlib.SpaceError, match="possible_agents"):
            Agents(env)
    with pytest.raises(pufferlib.PlanError, match="leave that out"):
        environment(PPOConfig().multi_agent(policies={"one"}), "ocean/multiagent", backend="pool")


@pytest.mark.slow
@pytest.mark.timeout(400)  # a busy machine starts Ray slowly
@pytest.mark.parametrize(("kind", "bar"), [("single", 0.9), ("multi", 2 * 0.95)])
def test_their_ppo_learns(kind: str, bar: float, tmp_path: Path) -> None:
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(HELPERS.parents[1]), "HOME": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", HELPERS / "rllib_learner.py", kind, str(bar)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert float(done.stdout.splitlines()[-1]) >= bar
