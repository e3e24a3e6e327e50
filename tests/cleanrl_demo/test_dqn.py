"""DQN: its targets against slow references, and that it learns."""

from __future__ import annotations

import copy
import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import pufferlib
from cleanrl_demo import dqn
from cleanrl_demo.dqn import Config, Greedy, allowed, targets, train
from pufferlib.errors import PlanError, SpaceError
from pufferlib.layout import observation_layout
from pufferlib.models import Origin, load_policy, make_policy

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("one_thread")]


PLAIN = observation_layout(spaces.Box(-np.inf, np.inf, (2,), np.float64))


# --------------------------------------------------------------------------------------------------------- targets


def test_targets_are_those_of_the_definition():
    online = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 0.0], [0.0, 0.0, 9.0], [1.0, 2.0, 3.0]])
    target = torch.tensor([[10.0, 20.0, 90.0], [30.0, 90.0, 90.0], [9.0, 9.0, 40.0], [7.0, 8.0, 9.0]])
    rewards = torch.tensor([1.0, 2.0, 3.0, 4.0])
    over = torch.tensor([False, False, True, False])
    target_values = targets(rewards, over, online, target, None, 0.5)
    assert target_values.tolist() == [1 + 0.5 * 20, 2 + 0.5 * 30, 3, 4 + 0.5 * 9]
    mask = torch.tensor([[True, False, True], [False, True, True], [True, True, False], [False, False, False]])
    target_values = targets(rewards, over, online, target, mask, 0.5)
    assert target_values.tolist() == [
        1 + 0.5 * 90,
        2 + 0.5 * 90,
        3,
        4 + 0.5 * 9,
    ]  # where nothing is allowed, anything is


def test_a_termination_is_worth_nothing_even_beside_what_is_no_number():
    nothing, ones = torch.full((1, 2), math.inf), torch.ones(1)
    assert targets(ones, torch.tensor([True]), nothing, nothing, None, 0.9).tolist() == [1.0]


def test_what_a_mask_forbids_is_never_the_best():
    scores, mask = torch.tensor([[5.0, 1.0, 2.0]] * 3), torch.tensor([[0, 1, 1], [0, 1, 0], [0, 0, 0]]).bool()
    assert allowed(scores, mask).argmax(1).tolist() == [2, 1, 0]
    assert allowed(scores, None) is scores


class Endless(gymnasium.Env):
    """Nothing to see, 1 a step for action 1; cut off, or over, after two steps."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, over):
        self.over = over

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.time += 1
        last = self.time == 2
        return np.ones(1, np.float32), float(action), last and self.over, last and not self.over, {}


QUICK = dict(
    env="ocean/squared", backend="serial", num_envs=4, learning_starts=100, steps_per_update=4, target_period=25,
    learning_rate=5e-3, exploration_fraction=0.5, policy_kwargs={"hidden_size": 32}, runs=None,
)  # fmt: skip


@pytest.mark.parametrize("over", [False, True])
def test_what_comes_after_a_truncation_counts_and_after_a_termination_does_not(over):
    policy = train(Config(**QUICK, total_steps=2_000, gamma=0.5, eval_episodes=4), lambda: Endless(over)).policy
    values = policy.network(torch.ones(1, 1), None, None)[0][0].tolist()
    best = 1 + (0.5 / (1 - 0.5) if not over else 0.5 * 4 / 3 * 0.5)  # every second step is the last
    assert values == pytest.approx([best - 1, best], abs=0.12)


class Costly(gymnasium.Env):
    """Two steps. The first pays 5 for action 2; the second costs 5, and refuses action 2, which seems so good."""

    observation_space = spaces.Dict(time=spaces.Box(-1, 1, (1,), np.float32), action_mask=spaces.MultiBinary(3))
    action_space = spaces.Discrete(3)

    def observed(self):
        return {"time": np.full(1, self.time, np.float32), "action_mask": np.array([1, 1, 1 - self.time], np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observed(), {}

    def step(self, action):
        assert not (self.time and action == 2)
        reward, over = -5.0 if self.time else 5.0 * (action == 2), bool(self.time)
        self.time = 1
        return self.observed(), reward, over, False, {}


def test_what_a_mask_forbids_counts_for_nothing_in_what_comes_after():
    policy = train(Config(**QUICK, total_steps=2_000, gamma=1.0, eval_episodes=4), Costly).policy
    layout = observation_layout(Costly.observation_space)
    first = {"time": np.zeros(1, np.float32), "action_mask": np.ones(3, np.int8)}
    seen = torch.from_numpy(layout.flatten(first))[None]
    assert policy.network(seen, None, None)[0][0].tolist() == pytest.approx([-5, -5, 0], abs=0.3)


# -------------------------------------------------------------------------------------------------------- learning


class Answer(gymnasium.Env):
    """One step: pays for the action that the observation names; of five, numbered from 3."""

    observation_space = spaces.Discrete(5, start=-2)
    action_space = spaces.Discrete(5, start=3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.asked = int(self.np_random.integers(5))
        return self.asked - 2, {}

    def step(self, action):
        assert action in self.action_space
        score = float(action - 3 == self.asked)
        return self.asked - 2, score, True, False, {"score": score}


class Picky(Answer):
    """Sees nothing of use, but allows that one action only, and refuses the others."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {"action_mask": (np.arange(5) == self.asked).astype(np.int8)}

    def step(self, action):
        assert action - 3 == self.asked
        return 0, 1.0, True, False, {"score": 1.0, "action_mask": np.zeros(5, np.int8)}


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


@pytest.mark.parametrize(
    ("env", "backend", "draws"),
    [
        (Answer, "serial", {"priority_exponent": 0.6}),
        pytest.param(Picky, "serial", {"n_step": 3}, marks=pytest.mark.long),
        (Bits, "pool", {}),
        pytest.param(Answer, "pool", {}, marks=pytest.mark.long),
        pytest.param(Picky, "pool", {}, marks=pytest.mark.long),
        pytest.param(Bits, "serial", {}, marks=pytest.mark.long),
    ],
)
def test_solves_what_is_trivial(env, backend, draws):
    """Actions that are numbered from elsewhere, that are forbidden, of agents that die."""
    wrap_kwargs = {"action_mask": True} if env is Picky else {}
    config = Config(
        **{**QUICK, **draws, "backend": backend}, num_workers=2, total_steps=2_000, eval_episodes=100,
        wrap_kwargs=wrap_kwargs,
    )  # fmt: skip
    result = train(config, env)
    assert result.score >= 0.99
    assert 2_000 <= result.num_steps < 2_000 + 4 * 3  # absent agents do not count


@pytest.mark.slow
@pytest.mark.long
def test_solves_a_small_square():
    plan = {**QUICK, "backend": "pool", "num_workers": 2, "env_kwargs": {"distance": 2}, "gamma": 0.7}
    result = train(Config(**plan, total_steps=10_000, eval_episodes=200))
    assert result.score >= 0.9
    assert len(result.episodes) == 200


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)  # for machines with much else to do; alone it takes half a minute
def test_solves_squared():
    """Not all of it: what is asked of 40,000 steps is in docs/training.md."""
    plan = dict(env="ocean/squared", backend="pool")
    config = Config(**plan, total_steps=30_000, gamma=0.7, eval_episodes=500, runs=None)
    result = train(config)
    assert result.score >= 0.9
    assert len(result.episodes) == 500


def test_errors_of_sampled_transitions_are_weighted_and_become_their_priorities():
    with pufferlib.make(Answer, num_envs=4, seed=1) as vec:
        config = Config(**QUICK, total_steps=2_000, priority_exponent=1.0, minibatch_size=8, max_grad_norm=1e-9)
        learner = dqn.Learner(vec, Origin(*config.made_as()), config)
        rng = np.random.default_rng(1)
        vec.async_reset()
        for _ in range(6):
            batch = vec.recv()
            actions = rng.integers(0, 5, 4)
            vec.send(actions + 3)
            learner.replay.add(batch, batch.observations, actions, batch.rewards, batch.terminations)
        learner.replay.update_priorities(np.arange(8), torch.linspace(1, 9, 8))
        generator = torch.Generator()
        generator.set_state(learner.generator.get_state())
        drawn = learner.replay.sample(8, generator, config.importance_exponent)
        q_values = learner.policy.network(drawn.transitions.observations)[0].detach()
        errors = q_values.gather(1, drawn.transitions.actions[:, None]).squeeze(1) - drawn.transitions.rewards
        loss, _ = dqn.update(learner, config)
    assert float(loss) == pytest.approx(float((drawn.weights * errors.square()).mean()), rel=1e-5)
    assert drawn.weights.min() < 0.9 and drawn.transitions.terminations.all()
    priorities = learner.replay.priorities[drawn.serials % learner.replay.capacity]
    assert priorities == pytest.approx(np.abs(errors.numpy()) + 1e-6, rel=1e-4)


@pytest.mark.parametrize(
    ("num_envs", "batch_size", "steps_per_update", "expected"),
    [
        pytest.param(1, 1, 2, 200, marks=pytest.mark.long),
        pytest.param(4, 4, 2, 200, marks=pytest.mark.long),
        (5, 2, 2, 200),
        pytest.param(4, 4, 0.5, 800, marks=pytest.mark.long),
        (7, 3, 50, 8),
    ],
)
def test_updates_follow_steps_whatever_the_batches(monkeypatch, num_envs, batch_size, steps_per_update, expected):
    calls, update = [], dqn.update
    monkeypatch.setattr(dqn, "update", lambda *args: calls.append(0) or update(*args))
    config = Config(
        **{**QUICK, "num_envs": num_envs, "steps_per_update": steps_per_update}, batch_size=batch_size,
        total_steps=500, eval_episodes=1,
    )  # fmt: skip
    result = train(config, Answer)
    assert len(calls) == math.ceil((result.num_steps - 100) / steps_per_update)
    assert expected <= len(calls) <= expected + math.ceil(num_envs / steps_per_update)


def test_the_target_is_copied_every_so_many_updates(monkeypatch):
    copied, update = [], dqn.update

    def watched(learner, config):
        before = copy.deepcopy(learner.target.state_dict())
        losses = update(learner, config)
        copied.append(all(torch.equal(value, before[name]) for name, value in learner.target.state_dict().items()))
        return losses

    monkeypatch.setattr(dqn, "update", watched)
    train(Config(**{**QUICK, "target_period": 3}, total_steps=200, eval_episodes=1), Answer)
    assert copied[1:7] == [True, True, False, True, True, False]  # at first it is the same network


def test_epsilon_is_the_share_of_random_actions():
    policy = Greedy(PLAIN, spaces.Discrete(4))
    rows, generator = torch.zeros((20_000, 2), dtype=torch.float64), torch.Generator().manual_seed(1)
    best = int(policy.choose(rows[:1], None, 0.0, generator)[0])
    for epsilon in (0.0, 0.2, 1.0):
        shares = np.bincount(policy.choose(rows, None, epsilon, generator), minlength=4) / len(rows)
        expected = np.full(4, epsilon / 4)
        expected[best] += 1 - epsilon
        assert shares == pytest.approx(expected, abs=0.015)


def test_epsilon_falls_in_a_line(monkeypatch):
    asked, choose = [], Greedy.choose
    monkeypatch.setattr(Greedy, "choose", lambda self, rows, *how: asked.append(how[1]) or choose(self, rows, *how))
    config = Config(**{**QUICK, "num_envs": 1}, total_steps=1_000, start_epsilon=0.9, end_epsilon=0.1, eval_episodes=1)
    train(config, lambda: Endless(True))
    steps = sorted(set(asked), reverse=True)  # a reset row is no step
    assert asked == sorted(asked, reverse=True)
    assert steps == pytest.approx(np.linspace(0.9, 0.1, 501))


def test_a_seed_repeats_a_run():
    config = Config(**QUICK, total_steps=1_000, eval_episodes=20)
    first, again, other = train(config), train(config), train(Config(**{**vars(config), "seed": 2}))
    assert first.episodes == again.episodes
    for one, two in zip(first.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(one, two)
    assert first.episodes != other.episodes


def test_training_leaves_torch_as_it_was():
    before = torch.random.get_rng_state()
    torch.set_num_threads(2)
    train(Config(**QUICK, total_steps=300, eval_episodes=1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == 2


# ------------------------------------------------------------------------------------------------------- policies


class Table(nn.Module):
    """A network of one's own: a number for each pair of what is seen and done."""

    def __init__(self, observation_layout, action_space, fill=0.0):
        super().__init__()
        self.numbers = nn.Parameter(torch.full((5, int(action_space.n)), fill))

    def forward(self, observations, state, action_mask):
        q_values = self.numbers[observations.reshape(-1).long() + 2]
        return q_values, q_values.amax(1), state


@pytest.mark.parametrize("network", ["default", pytest.param("mlp", marks=pytest.mark.long), f"{__name__}:Table"])
def test_what_was_trained_plays_its_best_actions_drawn_or_not(tmp_path, network):
    kwargs = {"fill": 0.5} if "Table" in network else {"hidden_size": 32}
    config = Config(
        **{**QUICK, "runs": str(tmp_path), "learning_rate": 1e-2, "policy_kwargs": kwargs}, total_steps=2_000,
        eval_episodes=20, policy=network,
    )  # fmt: skip
    result = train(config, Answer)
    assert result.score == 1
    env = Answer()
    for greedy in (True, False):
        with load_policy(result.run_folder / "policy.pt", env, greedy=greedy) as player:
            for seed in range(50):
                observation, _ = env.reset(seed=seed)
                assert player.act(observation) == observation + 2 + 3


def test_a_greedy_policy_has_finite_numbers_under_any_mask():
    policy = Greedy(PLAIN, spaces.Discrete(3))
    seen = torch.zeros((3, 2), dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [0, 0, 1], [0, 0, 0]]).bool()
    logits, values, state = policy(seen, None, mask)
    q_values = policy.network(seen)[0]
    assert logits.isfinite().all() and state is None
    assert (logits == 0).sum(1).tolist() == [1, 1, 1]
    assert values.tolist() == [q_values[0].max(), q_values[1, 2], q_values[2].max()]


def test_images_go_through_convolutions():
    image = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    policy = Greedy(observation_layout(image), spaces.Discrete(3))
    assert any(isinstance(part, nn.Conv2d) for part in policy.modules())
    assert policy(torch.zeros((2, 36, 36, 3), dtype=torch.uint8))[0].shape == (2, 3)


def test_a_network_that_is_copied_for_targets_stays_apart():
    network = make_policy(dqn.NETWORK, PLAIN, spaces.Discrete(2))
    other = copy.deepcopy(network)
    rows = torch.ones((2, 2), dtype=torch.float64)
    assert torch.equal(network(rows)[0], other(rows)[0])
    with torch.no_grad():
        next(network.parameters()).add_(1)
    assert not torch.equal(network(rows)[0], other(rows)[0])


# --------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "space", [spaces.MultiDiscrete([2, 2]), spaces.Box(-1, 1, (1,), np.float32), spaces.MultiBinary(2)], ids=str
)
def test_other_actions_than_discrete_ones_are_refused(space):
    with pytest.raises(SpaceError, match=r"DQN plays Discrete actions, and not .*; cleanrl_demo\.ppo plays others too"):
        Greedy(PLAIN, space)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gamma": 1.5}, r"gamma=1\.5 is out of bounds; use 0 to 1"),
        ({"gamma": math.nan}, "gamma=nan is out of bounds; use 0 to 1"),
        ({"start_epsilon": -0.1}, r"start_epsilon=-0\.1 is out of bounds; use 0 to 1"),
        ({"end_epsilon": 2}, "end_epsilon=2 is out of bounds; use 0 to 1"),
        ({"exploration_fraction": 0}, "exploration_fraction=0 is out of bounds; use more than 0, to 1"),
        ({"steps_per_update": 0}, "steps_per_update=0 is out of bounds; use more than 0"),
        ({"learning_starts": -1}, "learning_starts=-1 is out of bounds; use 0 or more"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm=0\.0 is out of bounds; use more than 0"),
        ({"minibatch_size": 0}, "minibatch_size=0 is out of bounds; use 1 or more"),
        ({"target_period": 0}, "target_period=0 is out of bounds; use 1 or more"),
        ({"n_step": 0}, "n_step=0 is out of bounds; use 1 or more"),
        ({"priority_exponent": -1}, "priority_exponent=-1 is out of bounds; use 0 to 1"),
        ({"importance_exponent": 2}, "importance_exponent=2 is out of bounds; use 0 to 1"),
        ({"learning_starts": 500, "total_steps": 500}, "learning_starts=500 is not less than total_steps=500"),
    ],
    ids=str,
)
def test_settings_out_of_bounds_are_refused(wrong, message):
    with pytest.raises(PlanError, match=message):
        Config(**wrong)


def test_a_network_with_a_memory_is_refused():
    with pytest.raises(PlanError, match="network='lstm' has a memory"):
        train(Config(**QUICK, policy="lstm", total_steps=200), Answer)


# -------------------------------------------------------------------------------------------------- what one sees


def test_a_run_is_written_down(tmp_path, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = Config(**{**QUICK, "runs": str(tmp_path)}, total_steps=2_000, eval_episodes=20)
    result = train(config)
    assert result.run_folder.name.startswith("ocean-squared__dqn__1__")
    events = EventAccumulator(str(result.run_folder))
    events.Reload()
    charts = ("episodic_return", "episodic_length", "score", "SPS", "seconds", "learning_rate", "epsilon")
    charts += ("share_environments", "share_inference", "share_learning")
    names = {f"charts/{name}" for name in charts} | {"losses/td_loss", "losses/q_values"}
    assert set(events.Tags()["scalars"]) == names
    assert "100%" in capsys.readouterr().out
