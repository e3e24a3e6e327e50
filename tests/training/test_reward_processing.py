"""Reward processing: rewards scaled and bounded, lost lives as endings."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import pufferlib
from pufferlib.training.reward_processing import EPSILON, RewardProcessing

pytestmark = pytest.mark.beside


def batch_of(agent_ids, rewards, masks=None, ends=None, infos=(), agents_per_env=1):
    num = len(agent_ids)
    return pufferlib.Batch(
        observations=np.zeros((num, 1), np.float32),
        rewards=np.array(rewards, np.float32),
        terminations=np.zeros(num, np.bool_) if ends is None else np.array(ends),
        truncations=np.zeros(num, np.bool_),
        infos=list(infos),
        env_ids=np.unique(np.array(agent_ids) // agents_per_env),
        agent_ids=np.array(agent_ids),
        masks=np.ones(num, np.bool_) if masks is None else np.array(masks),
    )


def vec_of(num_envs, agents_per_env=1):
    return SimpleNamespace(num_envs=num_envs, agents_per_env=agents_per_env)


def test_a_reward_that_is_not_finite_ends_the_training_and_is_named():
    processing = RewardProcessing(vec_of(3, 2), 0.9, False, None, False)
    with pytest.raises(pufferlib.SpaceError, match="environment 2 gave agent 1 the reward nan, .* puffer check"):
        processing(batch_of([2, 5, 1], [1.0, np.nan, -np.inf], agents_per_env=2))


def test_rewards_are_unchanged_by_default():
    batch = batch_of([0, 1, 2], [5.0, -300.0, 0.25], ends=[True, False, False])
    rewards, terminations = RewardProcessing(vec_of(3), 0.9, False, None, False)(batch)
    assert rewards.tolist() == [5.0, -300.0, 0.25]
    assert terminations.tolist() == [True, False, False]
    rewards, _ = RewardProcessing(vec_of(3), 0.9, False, 1.0, False)(batch)
    assert rewards.tolist() == [1.0, -1.0, 0.25]


@pytest.mark.parametrize("seed", range(3))
def test_rewards_are_divided_by_the_deviation_of_discounted_returns(seed):
    """Against a list of all returns so far: random agents in each batch, masks, ends."""
    rng = np.random.default_rng(seed)
    gamma, num_agents = 0.9, 6
    processing = RewardProcessing(vec_of(3, 2), gamma, True, None, False)
    running, returns = dict.fromkeys(range(num_agents), 0.0), []
    for _ in range(50):
        ids = rng.permutation(num_agents)[:4]
        batch = batch_of(ids, rng.normal(2, 3, 4), rng.random(4) < 0.8, rng.random(4) < 0.2, agents_per_env=2)
        rewards, _ = processing(batch)
        for agent, reward, mask, ended in zip(ids, batch.rewards, batch.masks, batch.terminations, strict=True):
            running[agent] = gamma * running[agent] + float(reward) if mask else 0.0
            if mask:
                returns.append(running[agent])
            if ended:
                running[agent] = 0.0
        np.testing.assert_allclose(rewards, batch.rewards / np.sqrt(np.var(returns) + EPSILON), rtol=1e-4)
    again = RewardProcessing(vec_of(3, 2), gamma, True, None, False)
    again.restore(processing.state())
    processing.forget()
    batch = batch_of([0, 1], [1.0, 2.0], agents_per_env=2)
    assert again(batch)[0].tolist() == processing(batch)[0].tolist() != [1.0, 2.0]


def test_a_life_lost_is_an_end_and_a_new_game_is_not():
    processing = RewardProcessing(vec_of(2), 0.9, False, None, True)

    def ends(lives, masks):
        infos = [{"env_id": env_id, "lives": left} for env_id, left in enumerate(lives) if left is not None]
        return processing(batch_of([0, 1], [0.0, 0.0], masks, infos=infos))[1].tolist()

    assert ends([3, 2], [False, False]) == [False, False]
    assert ends([3, 1], [True, True]) == [False, True]
    assert ends([None, 1], [True, True]) == [False, False]  # nothing said: nothing changed
    assert ends([2, 0], [True, True]) == [True, True]
    assert ends([2, 3], [True, False]) == [False, False]
    assert ends([0, 2], [False, True]) == [False, True]  # fewer, but another game
    assert ends([None, 5], [False, True]) == [False, False]
    assert ends([1, 4], [True, True]) == [False, True]  # another game, which did not say how many there were
    processing.forget()
    assert ends([0, 0], [True, True]) == [False, False]


def test_lives_of_the_copies_of_a_vector_environment_come_in_one_array():
    processing = RewardProcessing(vec_of(1, 3), 0.9, False, None, True)
    for lives, expected in ((np.array([3, 3, 3]), [False] * 3), (np.array([3, 2, 3]), [False, True, False])):
        batch = batch_of([0, 1, 2], [0.0] * 3, infos=[{"env_id": 0, "lives": lives}], agents_per_env=3)
        assert processing(batch)[1].tolist() == expected


class Lives(gymnasium.Env):
    """Three lives of two steps each; info tells how many are left."""

    observation_space = spaces.Box(0, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {"lives": 3}

    def step(self, action):
        self.time += 1
        return np.full(1, self.time, np.float32), 1.0, self.time == 6, False, {"lives": 3 - self.time // 2}


@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
def test_lives_of_an_environment_end_where_they_are_lost(backend):
    with pufferlib.make(Lives, backend=backend, num_envs=3, num_workers=2, batch_size=2) as vec:
        processing = RewardProcessing(vec, 0.9, False, None, True)
        vec.async_reset()
        seen = set()
        for _ in range(30):
            batch = vec.recv()
            _, terminations = processing(batch)
            seen |= {
                (float(observation[0]), bool(mask), bool(end))
                for observation, mask, end in zip(batch.observations, batch.masks, terminations, strict=True)
            }
            vec.send(np.zeros(2, np.int64))
    assert seen == {(0.0, False, False), *((float(t), True, t % 2 == 0) for t in range(1, 7))}
