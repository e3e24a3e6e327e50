"""The demo trainer: its experience and advantages against slow references, its policy, and that it learns."""

from __future__ import annotations

import math
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import pufferlib
from cleanrl_demo.ppo import Config, Rollout, train
from pufferlib.layout import observation_layout
from pufferlib.models import MLP, Actor, BatchPlayer, Decisions
from pufferlib.training.evaluation import evaluate
from pufferlib.training.results import Episode, EpisodeCollector
from pufferlib.training.weights import ALIGNMENT, as_one
from pufferlib.vectorization.core.messages import CrashCause

pytestmark = pytest.mark.beside

GAMMA, LAMBDA = 0.9, 0.8


def new_rollout(vec, num_batches):
    actor = SimpleNamespace(
        layout=vec.observation_layout,
        seen_layout=vec.observation_layout,
        frame_stack=1,
        decisions=SimpleNamespace(nvec=[2], num_aims=0),
    )
    return Rollout(vec, actor, lambda batch: (batch.rewards, batch.terminations), num_batches)


# ------------------------------------------------------------------------------------ experience and advantages


def value_of(agent_id, t):
    return math.sin(7 * agent_id + 3 * t)


class Life:
    """One agent's rows so far, in plain lists: the value of each, and what came with it."""

    def __init__(self):
        self.values, self.rewards, self.terminations, self.truncations, self.masks = [], [], [], [], []

    def advantage(self, t):
        """Follow the definition from row t to the end of the episode, or to the newest row. None: no transition."""
        if t + 1 == len(self.values) or not self.masks[t + 1]:
            return None
        next_value = 0.0 if self.terminations[t + 1] else self.values[t + 1]
        delta = self.rewards[t + 1] + GAMMA * next_value - self.values[t]
        if self.terminations[t + 1] or self.truncations[t + 1]:
            return delta
        return delta + GAMMA * LAMBDA * (self.advantage(t + 1) or 0.0)


@pytest.mark.parametrize(
    ("num_envs", "agents_per_env", "batch_size"), [(1, 1, 1), (3, 1, 3), (5, 1, 2), (4, 3, 4), (5, 2, 3), (7, 2, 1)]
)
@pytest.mark.parametrize("seed", range(5))
def test_advantages_equal_their_definition_whatever_the_order(num_envs, agents_per_env, batch_size, seed):
    """Random masks, endings and finish orders over several rollouts; every transition must be used just once."""
    rng = np.random.default_rng(seed)
    num_rows = batch_size * agents_per_env
    vec = SimpleNamespace(
        num_envs=num_envs,
        agents_per_env=agents_per_env,
        agents_per_batch=num_rows,
        observation_layout=observation_layout(spaces.Box(-np.inf, np.inf, (2,), np.float64)),
    )
    rollout = new_rollout(vec, 6)
    lives = [Life() for _ in range(num_envs * agents_per_env)]
    used = set()
    for _ in range(4):
        rollout.start()
        for rows in rollout.batches[1:]:
            env_ids = rng.permutation(num_envs)[:batch_size]
            agent_ids = (env_ids[:, None] * agents_per_env + np.arange(agents_per_env)).reshape(-1)
            whom = [(agent_id, len(lives[agent_id].values)) for agent_id in agent_ids]
            batch = pufferlib.Batch(
                observations=np.array(whom, np.float64),
                rewards=rng.normal(size=num_rows).astype(np.float32),
                terminations=rng.random(num_rows) < 0.2,
                truncations=rng.random(num_rows) < 0.2,
                infos=[],
                env_ids=env_ids,
                agent_ids=agent_ids,
                masks=np.array([t > 0 for _, t in whom]) & (rng.random(num_rows) < 0.8),
            )
            tensors = [torch.from_numpy(part) if isinstance(part, np.ndarray) else part for part in batch]
            rollout.receive(pufferlib.Batch(*tensors), batch, rows)
            rollout.values[rows] = torch.tensor([value_of(*who) for who in whom])
            rollout.log_probs[rows], rollout.discrete_actions[rows, 0] = -rollout.values[rows], torch.tensor(whom)[:, 1]
            for row, (agent_id, t) in enumerate(whom):
                life = lives[agent_id]
                life.values.append(value_of(agent_id, t))
                life.rewards.append(float(batch.rewards[row]))
                life.terminations.append(bool(batch.terminations[row]))
                life.truncations.append(bool(batch.truncations[row]))
                life.masks.append(bool(batch.masks[row]))
        advantages = rollout.advantages(rollout.values.numpy(), GAMMA, LAMBDA)
        for row in rollout.masks.nonzero()[0]:
            agent_id, t = (int(number) for number in rollout.observations[row])
            assert (agent_id, t) not in used
            used.add((agent_id, t))
            assert advantages[row] == pytest.approx(lives[agent_id].advantage(t), abs=1e-5)
            assert rollout.log_probs[row] == -rollout.values[row] and rollout.discrete_actions[row, 0] == t
        assert not advantages[~rollout.masks].any()
    due = {(agent_id, t) for agent_id, life in enumerate(lives) for t in range(len(life.values))}
    assert used == {(agent_id, t) for agent_id, t in due if lives[agent_id].advantage(t) is not None}


class Countdown(gymnasium.Env):
    """Observes the steps taken, pays 1 a step, and ends after three: odd episodes terminated, even ones truncated."""

    observation_space = spaces.Box(0, 10, (1,), np.float32)
    action_space = spaces.Discrete(2)
    num_episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.num_episodes += 1
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        over, odd = self.time == 3, self.num_episodes % 2 == 1
        return np.full(1, self.time, np.float32), 1.0, over and odd, over and not odd, {}


@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
def test_a_truncation_is_worth_its_final_observation_and_a_termination_nothing(backend):
    with pufferlib.make(
        Countdown, backend=backend, num_envs=3, num_workers=2, batch_size=2, seed=1, as_torch=True
    ) as vec:
        rollout = new_rollout(vec, 40)
        rollout.start()
        vec.async_reset()
        for rows in rollout.batches[1:]:
            rollout.receive(vec.recv(), vec.host_batch, rows)
            vec.send(np.zeros(2, np.int64))
    advantages = rollout.advantages(10 + rollout.observations[:, 0].numpy(), GAMMA, 0.0)
    seen = {
        (float(rollout.observations[row, 0]), *flags, round(float(advantages[row]), 3))
        for row, *flags in zip(
            rollout.masks.nonzero()[0],
            rollout.terminations[rollout.masks].tolist(),
            rollout.truncations[rollout.masks].tolist(),
            strict=True,
        )
    }
    assert seen == {
        (0.0, False, False, round(1 + GAMMA * 11 - 10, 3)),
        (1.0, False, False, round(1 + GAMMA * 12 - 11, 3)),
        (2.0, True, False, 1 - 12.0),
        (2.0, False, True, round(1 + GAMMA * 13 - 12, 3)),
    }  # and nothing from 3, the final observation: its next row is a reset


class Fragile(Countdown):
    """Never comes to its end."""

    def step(self, action):
        if self.time == 2:
            raise ValueError("no further")
        return super().step(action)


@pytest.mark.filterwarnings("ignore:environment . .* raised in:RuntimeWarning")  # as close tells
@pytest.mark.parametrize("backend", ["serial", "multiprocessing", "pool"])
def test_crash_rows_are_neither_trained_on_nor_worth_anything(backend):
    with pufferlib.make(Fragile, backend=backend, num_envs=3, num_workers=2, batch_size=2, seed=1, on_error="restart",
                        max_restarts=None, as_torch=True) as vec:  # fmt: skip
        rollout = new_rollout(vec, 40)
        rollout.start()
        vec.async_reset()
        for rows in rollout.batches[1:]:
            rollout.receive(vec.recv(), vec.host_batch, rows)
            vec.send(np.zeros(2, np.int64))
        assert sum(vec.restarts) > 10
    advantages = rollout.advantages(10 + rollout.observations[:, 0].numpy(), GAMMA, 1.0)
    seen = {
        (float(rollout.observations[row, 0]), round(float(advantages[row]), 3)) for row in rollout.masks.nonzero()[0]
    }
    last = 1 + GAMMA * 12 - 11
    assert {(1.0, round(last, 3)), (0.0, round(1 + GAMMA * 11 - 10 + GAMMA * last, 3))} <= seen
    assert {time for time, _ in seen} == {0.0, 1.0}


# ------------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("alignment", [1, ALIGNMENT])
def test_weights_as_one_vector_learn_as_they_would_apart(alignment: int):
    torch.manual_seed(1)
    space = spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)])
    layout, rows = observation_layout(spaces.Box(-9, 9, (5,), np.float32)), torch.randn(6, 5)
    decisions, separate, together = Decisions(space), MLP(layout, space, 8), MLP(layout, space, 8)
    together.load_state_dict(separate.state_dict())
    vector = as_one(together, alignment)
    for policy, weights in ((separate, list(separate.parameters())), (together, [vector])):
        optimizer = torch.optim.Adam(weights, 0.1, fused=True)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            outputs, values, _ = policy(rows, None, None)
            distribution = decisions.distribution(outputs)
            discrete_actions, continuous_actions = torch.zeros((6, 1), dtype=torch.int64), torch.ones((6, 2))
            (values.square().mean() - distribution.log_prob(discrete_actions, continuous_actions).mean()).backward()
            optimizer.step()
    for one, other in zip(separate.parameters(), together.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert not torch.equal(separate.log_std, torch.zeros(2))
    places = [(part.data_ptr() - vector.data_ptr()) // 4 for part in together.parameters()]
    assert places == sorted(places) and not any(offset % alignment for offset in places)
    assert vector.count_nonzero() == sum(part.count_nonzero() for part in together.parameters())


class Echo(gymnasium.Env):
    """One step: pays how much of the action is what the observation, between -1 and 1, asks for."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.asked = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.asked, {}

    def step(self, action):
        if isinstance(self.action_space, spaces.Dict):
            score = np.mean([self.judge(action[key], space) for key, space in self.action_space.spaces.items()])
        else:
            score = self.judge(action, self.action_space)
        return self.asked, float(score), True, False, {"score": score}

    def judge(self, action, space):
        if isinstance(space, spaces.Box):
            return 1 - min(1.0, float(np.abs(action / space.high - self.asked).mean()))
        chosen = np.atleast_1d(action) - getattr(space, "start", 0)
        return np.mean(chosen == (self.asked > 0)[: len(chosen)])


KINDS = {
    "Discrete": spaces.Discrete(2, start=3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 2]),
    "MultiBinary": spaces.MultiBinary(2),
    "Box": spaces.Box(-4, 4, (2,), np.float32),
}


# With all kinds in one action, each part that is not learned costs more than what is left above the bar.
@pytest.mark.parametrize(
    ("action_space", "bar"),
    [
        pytest.param(spaces.Dict(KINDS), 0.89, id="all"),
        *(
            pytest.param(space, 0.7 if name == "Box" else 0.95, id=name, marks=pytest.mark.long)
            for name, space in KINDS.items()
        ),
        pytest.param(
            spaces.Dict({"choice": spaces.Discrete(2), "aim": spaces.Box(-1, 1, (2,), np.float32)}),
            0.8,
            id="Dict",
            marks=pytest.mark.long,
        ),
    ],
)
def test_learns_every_kind_of_action(action_space, bar):
    config = Config(
        backend="serial", total_steps=15_000, learning_rate=2.5e-3, eval_episodes=300, eval_greedy=True, runs=None
    )
    result = train(config, lambda: Echo(action_space))
    assert result.score >= bar


class Picky(Echo):
    """Of two switches and an aim, allows one position of each switch, another one each time; refuses the others."""

    def __init__(self):
        super().__init__(
            spaces.Dict({"switch": spaces.MultiDiscrete([3, 3]), "aim": spaces.Box(-1, 1, (2,), np.float32)})
        )

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        self.allowed = self.np_random.integers(0, 3, 2)
        masks = tuple((np.arange(3) == option).astype(np.int8) for option in self.allowed)
        return observation, {"action_mask": {"switch": masks, "aim": None}}

    def step(self, action):
        assert action["switch"].tolist() == self.allowed.tolist()
        score = self.judge(action["aim"], self.action_space["aim"])
        return self.asked, float(score), True, False, {"score": score}


@pytest.mark.parametrize("backend", [pytest.param("serial", marks=pytest.mark.long), "pool"])
def test_plays_what_a_mask_allows_and_nothing_else(backend):
    config = Config(
        backend=backend, num_workers=2, total_steps=10_000, learning_rate=2.5e-3, eval_episodes=200, eval_greedy=True,
        runs=None, wrap_kwargs={"action_mask": True},
    )  # fmt: skip
    assert train(config, Picky).score >= 0.65


class Bits(pufferlib.PufferEnv):
    """Three agents of unequal lives; each sees a bit, and is paid for answering it while it lives."""

    num_agents = 3
    single_observation_space = spaces.Box(-1, 1, (2,), np.float32)
    single_action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.draw()

    def draw(self):
        self.bits = self.np_random.integers(0, 2, 3)
        self.observations[:, 0] = 2 * self.bits - 1
        self.observations[:, 1] = [-1, 0, 1]

    def step(self, actions):
        self.rewards[:] = actions == self.bits
        living = self.alive.copy()
        self.terminations[:] = living & (self.np_random.random(3) < 0.3)
        self.draw()
        return [{"score": float(right)} if lives else {} for right, lives in zip(self.rewards, living, strict=True)]


@pytest.mark.parametrize("backend", ["serial", pytest.param("pool", marks=pytest.mark.long)])
def test_learns_from_agents_that_die(backend):
    config = Config(backend=backend, total_steps=20_000, learning_rate=2.5e-3, eval_episodes=100, runs=None)
    result = train(config, Bits)
    assert result.score >= 0.95
    assert config.total_steps <= result.num_steps < config.total_steps + 32 * 32 * 3  # absent agents do not count


def test_evaluates_continuous_actions_by_sampling():
    config = Config(backend="serial", num_envs=4, total_steps=200, eval_episodes=5, runs=None)
    result = train(config, lambda: Echo(spaces.Box(-4, 4, (2,), np.float32)))
    assert len(result.episodes) == 5


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.flaky(reruns=1)  # on a pool: which workers are first decides what is learnt
@pytest.mark.parametrize(
    ("backend", "num_steps", "learning_rate"),
    [("pool", 36_000, 5e-3), ("serial", 60_000, 2.5e-3), ("multiprocessing", 60_000, 2.5e-3)],
)
def test_solves_squared(backend, num_steps, learning_rate):
    config = Config(
        backend=backend, total_steps=num_steps, learning_rate=learning_rate, eval_episodes=500, runs=None
    )  # fmt: skip
    result = train(config)
    assert result.score >= 0.95
    assert len(result.episodes) == 500
    assert num_steps <= result.num_steps < num_steps + 1_100


@pytest.mark.slow
@pytest.mark.long
def test_learns_minigrid():
    config = Config(
        env="MiniGrid-Empty-8x8-v0", backend="multiprocessing", num_workers=2, eval_episodes=100, runs=None
    )  # fmt: skip
    assert train(config).mean_return >= 0.9


def test_a_seed_repeats_a_run():
    config = Config(backend="serial", num_envs=4, total_steps=500, eval_episodes=20, runs=None)
    first, again, other = train(config), train(config), train(Config(**{**vars(config), "seed": 2}))
    assert first.episodes == again.episodes
    for one, two in zip(first.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(one, two)
    assert first.episodes != other.episodes


def test_the_smallest_rollout_trains():
    """Its first batch has no outcome yet, and all others one."""
    smallest = {"num_envs": 2, "rollout_length": 1, "num_minibatches": 1}  # two rows
    result = train(Config(backend="serial", total_steps=10, eval_episodes=1, runs=None, **smallest))
    assert result.num_steps == 10
    assert all(weights.isfinite().all() for weights in result.policy.parameters())


def test_training_leaves_torch_as_it_was():
    before, num_threads = torch.random.get_rng_state(), torch.get_num_threads()
    train(Config(backend="serial", num_envs=2, total_steps=100, eval_episodes=1, runs=None))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == num_threads


class Lengths(gymnasium.Env):
    """Episodes as long as the environment's number, plus one."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, env_index):
        self.length = env_index + 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return 0, {}

    def step(self, action):
        self.time += 1
        return 0, 1.0, self.time == self.length, False, {}


@pytest.mark.parametrize("batch_size", [2, 5])
def test_evaluation_does_not_favour_short_episodes(batch_size):
    with pufferlib.make(Lengths, backend="serial", num_envs=5, batch_size=batch_size) as vec:
        actor = Actor("default", vec.observation_layout, vec.single_action_space)
        episodes = evaluate(vec, BatchPlayer(actor, 5, seed=1), 12, seed=1)
    assert sorted(episode.length for episode in episodes) == [1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5]
    assert all(episode.length == episode.env_id + 1 for episode in episodes)


def test_scores_of_agents_are_averaged_over_their_environments_episode():
    episodes = EpisodeCollector()
    assert episodes.in_batch([{"env_id": 1, "agent_id": 2, "score": 0.0}, {"env_id": 0, "score": 9}]) == []
    end = {"env_id": 1, "env": True, "episode": {"r": 3.0, "l": 7, "t": 0.1}}
    assert episodes.in_batch([end, {"env_id": 1, "agent_id": 3, "score": 1.0}]) == [Episode(1, 3.0, 7, 0.5)]
    assert episodes.in_batch([end]) == [Episode(1, 3.0, 7, None)]
    assert episodes.in_batch([{"env_id": 1, "score": 5.0}]) == []
    assert episodes.in_batch([{"env_id": 1, "restarted": CrashCause("it raised")}]) == []
    assert episodes.in_batch([end]) == [Episode(1, 3.0, 7, None)]  # what was scored before the crash is forgotten
