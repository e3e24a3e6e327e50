"""The recurrent trainer: states are stored by agent and reset with the episode, in the rollout and in learning."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from script_diffs import changed_lines
from torch import nn

import pufferlib
from cleanrl_demo import ppo, ppo_lstm
from cleanrl_demo.ppo_lstm import Config, Rollout, train
from pufferlib.layout import observation_layout
from pufferlib.models import Actor, Memory

pytestmark = pytest.mark.beside

FLAT = observation_layout(spaces.Box(-9, 9, (5,), np.float32))
MASKED = observation_layout(
    spaces.Dict({"observation": spaces.Box(-1, 1, (3,), np.float32), "action_mask": spaces.MultiBinary(5)})
)
MULTI_DISCRETE = spaces.MultiDiscrete([3, 2])
MIXED = spaces.Tuple([MULTI_DISCRETE, spaces.Box(-1, 1, (2,), np.float32)])


def test_the_diff_to_ppo_is_the_recurrent_part():
    """Readers compare the two files; what has no reason to differ must not. The compiled learner takes no memories."""
    changed, missing = changed_lines(ppo_lstm)
    assert len(changed) < 75
    assert not missing


class Averaging(nn.Module):
    """A memory of another kind, without ``unroll``: the sum of what was seen, and how often."""

    def __init__(self, observation_layout, action_space):
        super().__init__()
        num = int(action_space.nvec.sum())
        self.weights = nn.Linear(int(np.prod(observation_layout.shape)), num)
        self.layout = observation_layout

    def initial_state(self, num_rows):
        return torch.zeros(num_rows, self.weights.out_features), torch.ones(num_rows)  # not all of it is zero

    def forward(self, observations, state, action_mask):
        seen, count = state
        seen = seen + self.weights(observations.float())
        return seen / count[:, None], seen.sum(1), (seen, count + 1)


@pytest.mark.parametrize(
    ("policy", "layout", "space"),
    [
        ("lstm", FLAT, MULTI_DISCRETE),
        ("lstm", MASKED, MIXED),
        (Averaging, FLAT, MULTI_DISCRETE),
        (Averaging, MASKED, MULTI_DISCRETE),
    ],
)
def test_unrolling_equals_one_step_after_another(policy, layout, space):
    torch.manual_seed(1)
    actor = Actor(policy, layout, space)
    generator = np.random.default_rng(1)
    rows = [layout.flatten(layout.space.sample()) for _ in range(7 * 4)]
    observations = torch.from_numpy(np.stack(rows)).unflatten(0, (7, 4))
    starts = torch.from_numpy(generator.random((7, 4)) < 0.3)
    state = before = tuple(torch.rand_like(part) for part in actor.initial_state(4))
    distribution, values = actor.unroll(observations, before, starts)
    memory, ids = Memory(actor.initial_state(4)), torch.arange(4)
    memory.keep(ids, state)
    for step in range(7):
        one, its_values, state = actor(observations[step], memory.of(ids, ~starts[step]))
        memory.keep(ids, state)
        now = slice(4 * step, 4 * step + 4)
        torch.testing.assert_close(values[now], its_values)
        torch.testing.assert_close(distribution.mean[now], one.mean)
        for part, its_part in zip(distribution.log_probs, one.log_probs, strict=True):
            torch.testing.assert_close(part[now], its_part)


class Bits(pufferlib.PufferEnv):
    """Three agents that die and come back at random, in episodes of unequal length; each sees noise."""

    num_agents = 3
    single_observation_space = spaces.Box(-1, 1, (5,), np.float32)
    single_action_space = spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.length = 0, int(self.np_random.integers(2, 12))
        self.observations[:] = self.np_random.uniform(-1, 1, (3, 5))

    def step(self, actions):
        self.time += 1
        self.observations[:] = self.np_random.uniform(-1, 1, (3, 5))
        self.terminations[:] = self.alive & (self.np_random.random(3) < 0.1)
        if self.time == self.length:
            self.truncations[:] = self.alive & ~self.terminations
        return []


@pytest.mark.parametrize(
    ("backend", "num_envs", "batch_size"),
    [("serial", 4, 4), ("serial", 5, 2), ("pool", 6, 2), ("multiprocessing", 4, 2)],
)
def test_what_is_learnt_from_is_what_was_played(backend, num_envs, batch_size):
    """Values and log-probabilities of all rows, unrolled over three rollouts, and by each life alone."""
    torch.manual_seed(1)
    with pufferlib.make(
        Bits, backend=backend, num_envs=num_envs, batch_size=batch_size, num_workers=2, as_torch=True, seed=3
    ) as vec:
        num_agents = 3 * num_envs
        actor = Actor("lstm", vec.observation_layout, vec.single_action_space, hidden_size=8)
        rollout = Rollout(vec, actor, lambda batch: (batch.rewards, batch.terminations), 9)
        memory = Memory(actor.initial_state(num_agents))
        states = {}  # each agent's, kept here once more: by the definition, not by tables
        vec.async_reset()
        checked = 0
        for _ in range(3):
            rollout.start()
            for rows in rollout.batches[1:]:
                batch = vec.recv()
                rollout.receive(batch, vec.host_batch, rows)
                with torch.no_grad():
                    state = rollout.store_state(memory.of(batch.agent_ids, batch.masks), rows)
                    distribution, rollout.values[rows], state = actor(rollout.observations[rows], state)
                    memory.keep(batch.agent_ids, state)
                    discrete_actions, continuous_actions = distribution.sample()
                    rollout.log_probs[rows], rollout.discrete_actions[rows] = (
                        distribution.log_prob(discrete_actions, continuous_actions),
                        discrete_actions,
                    )
                    for row, (agent_id, lives) in enumerate(
                        zip(batch.agent_ids.tolist(), batch.masks.tolist(), strict=True)
                    ):
                        before = states[agent_id] if lives else None
                        _, value, states[agent_id] = actor(batch.observations[row : row + 1], before)
                        torch.testing.assert_close(rollout.values[rows][row], value[0])
                vec.send(actor.decisions.actions(discrete_actions, continuous_actions))
            lines = rollout.lines()
            steps, starts = torch.from_numpy(lines), torch.from_numpy(rollout.starts)
            state = tuple(part[steps[0]] for part in rollout.states)
            distribution, values = actor.unroll(rollout.observations[steps], state, starts[steps])
            flat = steps.flatten()
            has_row = flat != rollout.dummy_row
            torch.testing.assert_close(values[has_row], rollout.values[flat][has_row])
            log_probs = distribution.log_prob(rollout.discrete_actions[flat], rollout.continuous_actions[flat])
            torch.testing.assert_close(log_probs[has_row], rollout.log_probs[flat][has_row])
            masked_rows = rollout.masks.nonzero()[0]
            assert set(masked_rows) <= set(flat.tolist())  # all that counts is in a line
            assert len(set(flat[has_row].tolist())) == int(has_row.sum())  # and none in two
            checked += len(masked_rows)
        assert checked > 20 * batch_size


class Recall(gymnasium.Env):
    """Shows a sign for one step, then nothing, and asks for it three steps later."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.sign = 0, int(self.np_random.integers(2))
        return np.array([2 * self.sign - 1, 0], np.float32), {}

    def step(self, action):
        self.time += 1
        asked = self.time == 4
        right = float(asked and action == self.sign)
        return np.array([0, self.time == 3], np.float32), right, asked, False, {"score": right} if asked else {}


RECALLED = dict(
    num_workers=2, num_envs=16, total_steps=10_000, learning_rate=1e-2, policy_kwargs={"hidden_size": 32},
    eval_episodes=200, runs=None,
)  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_remembers_what_the_plain_trainer_cannot_know(backend):
    assert train(Config(backend=backend, **RECALLED), Recall).score >= 0.95


@pytest.mark.long
def test_the_plain_trainer_does_not_know():
    assert 0.35 < ppo.train(ppo.Config(backend="serial", **RECALLED), Recall).score < 0.65


def test_a_policy_without_a_memory_is_sent_to_the_other_trainer_and_back():
    settings = dict(backend="serial", num_envs=2, total_steps=10, runs=None)
    with pytest.raises(pufferlib.PlanError, match="'mlp' has no memory .*ppo trains it faster"):
        train(Config(policy="mlp", **settings))
    with pytest.raises(pufferlib.PlanError, match=r"'lstm' has a memory, which this trainer does not keep"):
        ppo.train(ppo.Config(policy="lstm", **settings))
