"""EnvPool's environments as rows: those that EnvPool itself makes, and our trainer learns from them."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import pufferlib

pytest.importorskip("envpool")
import envpool

from cleanrl_demo.ppo import Config, train
from pufferlib.adapters.envpool import copies

pytestmark = [pytest.mark.extras, pytest.mark.beside]


@pytest.mark.parametrize("backend", ["serial", "multiprocessing"])
def test_rows_are_those_that_envpool_makes(backend: str) -> None:
    kwargs = {"num_envs": 5, "max_episode_steps": 30}
    bare = [envpool.make("CartPole-v1", env_type="gymnasium", seed=9 + 5 * index, **kwargs) for index in range(2)]
    make_env = functools.partial(copies, "CartPole-v1", seed=9, **kwargs)
    num_ends = 0
    with pufferlib.make(make_env, backend=backend, num_envs=2) as vec:
        expected = np.concatenate([env.reset()[0] for env in bare])
        assert np.array_equal(vec.reset()[0], expected) and len(np.unique(expected, axis=0)) == 10
        over = np.zeros(10, np.bool_)
        rng = np.random.default_rng(3)
        for _ in range(1000):
            actions = rng.integers(2, size=10)
            observations, *outcome, infos = vec.step(actions)
            theirs = [env.step(part) for env, part in zip(bare, actions.reshape(2, 5), strict=True)]
            assert np.array_equal(observations, np.concatenate([result[0] for result in theirs]))
            for part, *parts in zip(outcome, *(result[1:4] for result in theirs), strict=True):
                assert part.tolist() == np.concatenate(parts).tolist()
            assert vec.batch.masks.tolist() == (~over).tolist()
            elapsed = np.concatenate([result[4]["elapsed_step"] for result in theirs])
            elapsed_of = [info["elapsed_step"] for info in infos if "elapsed_step" in info]
            assert np.array_equal(np.concatenate(elapsed_of), elapsed)
            over = outcome[1] | outcome[2]
            ends = {info["agent_id"]: info["episode"] for info in infos if "episode" in info}
            assert sorted(ends) == np.flatnonzero(over).tolist()
            assert all(end["l"] == end["r"] == elapsed[row] for row, end in ends.items())
            num_ends += len(ends)
    for env in bare:
        env.close()
    assert num_ends > 300


@pytest.mark.slow
def test_our_trainer_learns_from_them() -> None:
    config = Config(backend="serial", num_envs=1, total_steps=50_000, eval_episodes=32, runs=None, learning_rate=2.5e-3)
    result = train(config, functools.partial(copies, "CartPole-v1", num_envs=32, seed=1))
    assert result.mean_return >= 100  # chance has 22
