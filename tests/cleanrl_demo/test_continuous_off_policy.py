"""SAC, TD3 and DDPG: targets against definitions, what an update changes, and that they learn."""

from __future__ import annotations

import copy
import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import pufferlib
from cleanrl_demo import sac, td3
from pufferlib.errors import PlanError, SpaceError
from pufferlib.layout import observation_layout
from pufferlib.models import MLP, Origin, load_policy
from pufferlib.models.critics import Critics, ReLUNetwork
from pufferlib.training.replay_buffer import Transitions

pytestmark = [pytest.mark.beside, pytest.mark.extras, pytest.mark.usefixtures("one_thread")]

PLAIN = observation_layout(spaces.Box(-1, 1, (2,), np.float32))
PUSH = spaces.Box(-1, 1, (2,), np.float32)
QUICK = dict(
    backend="serial", num_envs=4, learning_starts=100, steps_per_update=2, minibatch_size=32, learning_rate=1e-2,
    eval_episodes=20, runs=None, policy_kwargs={"hidden_sizes": (24,)},
)  # fmt: skip
DDPG = dict(num_critics=1, policy_noise=0.0, policy_frequency=1)
BOTH = pytest.mark.parametrize("trainer", [sac, td3], ids=lambda module: module.Config.algorithm)


class Answer(gymnasium.Env):
    """One step: the reward is minus the squared distance of the action from twice the observed number, at most 0."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(-4, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.asked = self.np_random.uniform(-0.8, 0.8, 1).astype(np.float32)
        return self.asked, {}

    def step(self, action):
        assert action in self.action_space
        return self.asked, -float((action - 2 * self.asked)[0] ** 2), True, False, {}


class Endless(gymnasium.Env):
    """Nothing to see, reward 1 in each step; cut off, or over, after two steps."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, over):
        self.over = over

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.time += 1
        last = self.time == 2
        return np.ones(1, np.float32), 1.0, last and self.over, last and not self.over, {}


# ---------------------------------------------------------------------------------------------------- losses by hand


def test_log_probabilities_are_those_of_a_squashed_normal_distribution():
    policy = sac.Policy(PLAIN, PUSH)
    observations, noise = torch.rand(64, 2) * 2 - 1, 2 * torch.randn(64, 2)
    actions, log_prob = policy.sample(observations, noise)
    normal = torch.distributions.Normal(*(part.double() for part in policy.normal(observations)))
    squashed = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform(cache_size=0))
    unbounded = normal.mean + normal.stddev * noise.double()
    assert torch.allclose(actions.double(), unbounded.tanh(), atol=1e-6)
    assert torch.allclose(log_prob.double(), squashed.log_prob(unbounded.tanh()).sum(1), atol=1e-3)
    far = policy.sample(observations, noise * 1e4)[1]
    assert far.isfinite().all()  # where tanh rounds to one


def constant(value, num_outputs=1):
    """A network of constant output."""
    network = ReLUNetwork(PLAIN, num_outputs, 2 if num_outputs == 1 else 0, (4,))
    with torch.no_grad():
        for weights in network.parameters():
            weights.zero_()
        network.layers[-1].bias.copy_(torch.as_tensor(value))
    return network


@BOTH
def test_targets_are_those_of_the_definition(trainer):
    """Nothing follows a termination, even what is no number; else the smallest target value, discounted per row."""
    policy = trainer.Policy(PLAIN, PUSH)
    policy.critics = Critics(PLAIN, 2)
    policy.critics[0], policy.critics[1] = constant(1.0), constant(2.0)
    target = copy.deepcopy(policy)
    target.critics[0], target.critics[1] = constant(5.0), constant(3.0)
    zeros = torch.zeros(3, 2)
    ends, rewards, discounts = torch.tensor([True, False, False]), torch.tensor([4.0, 5.0, 6.0]), torch.tensor(0.5)
    sampled = Transitions(zeros, zeros, rewards, ends, zeros, torch.stack([discounts, discounts, discounts**2]))
    if trainer is sac:
        policy.actor = constant([0.0, 0.0, 0.0, 0.0], 4)  # the standard normal distribution before the tanh
        entropy = math.log(2 * math.pi)  # minus the log-probability of zeros
        loss, mean = sac.critic_loss(policy, target.critics, sampled, zeros, torch.tensor([0.5]))
        after = 3 + 0.5 * entropy
    else:
        loss, mean = td3.critic_loss(policy, target, sampled, zeros, 0.2, 0.5)
        after = 3.0
    targets = np.array([4, 5 + 0.5 * after, 6 + 0.25 * after])
    assert float(loss.detach()) == pytest.approx(((1 - targets) ** 2).mean() + ((2 - targets) ** 2).mean(), rel=1e-5)
    assert float(mean) == 1.5
    target.critics[0] = constant(math.nan)
    only = Transitions(*(column[:1] for column in sampled))
    arguments = (torch.tensor([0.5]),) if trainer is sac else (0.2, 0.5)
    loss, _ = trainer.critic_loss(policy, target.critics if trainer is sac else target, only, zeros[:1], *arguments)
    assert float(loss.detach()) == 3**2 + 2**2


def test_target_actions_have_clipped_noise_and_stay_within_bounds():
    policy = td3.Policy(PLAIN, PUSH, num_critics=1)
    policy.actor = constant([0.0, 20.0], 2)
    seen = []
    policy.critics[0].register_forward_hook(lambda module, arguments, output: seen.append(arguments[1]))
    noise = torch.tensor([[1.0, 1.0], [9.0, -9.0], [-9.0, -1.0]])
    zeros = torch.zeros(3, 2)
    sampled = Transitions(zeros, zeros, zeros[:, 0], zeros[:, 0] > 0, zeros, zeros[:, 0])
    td3.critic_loss(policy, policy, sampled, noise, 0.2, 0.5)
    assert torch.allclose(seen[0], torch.tensor([[0.2, 1.0], [0.5, 0.5], [-0.5, 0.8]]))


@pytest.mark.parametrize(("log_prob", "rises"), [(4.0, True), (-4.0, False)])
def test_the_temperature_rises_where_the_entropy_is_too_small(log_prob, rises):
    log_alpha = torch.zeros(1, requires_grad=True)
    sac.alpha_loss(log_alpha, torch.full((5,), log_prob), -2.0).backward()
    assert (float(log_alpha.grad) < 0) == rises


# ------------------------------------------------------------------------------------------------- what an update does


def learner_of(trainer, **settings):
    """A learner whose buffer has transitions of random play, and its settings."""
    config = trainer.Config(**{**QUICK, **settings}, total_steps=1_000)
    with pufferlib.make(Answer, num_envs=4, seed=1) as vec:
        torch.manual_seed(1)
        learner = trainer.Learner(vec, Origin(*config.made_as()), config)
        vec.async_reset()
        for _ in range(8):
            batch = vec.recv()
            actions = learner.noise(4, "cpu").tanh()
            vec.send(learner.actor.decisions.actions(actions[:, :0], actions))
            learner.replay.add(batch, batch.observations, actions.numpy(), batch.rewards, batch.terminations)
    return learner, config


def copied(*modules):
    return [torch.cat([weights.detach().reshape(-1) for weights in module.parameters()]) for module in modules]


def test_an_update_of_sac_moves_all_parts():
    learner, config = learner_of(sac, tau=0.25)
    actor, critics, targets = copied(learner.policy.actor, learner.policy.critics, learner.target)
    assert torch.equal(critics, targets)
    sac.update(learner, config)
    new_actor, new_critics, new_targets = copied(learner.policy.actor, learner.policy.critics, learner.target)
    assert not torch.equal(new_actor, actor) and not torch.equal(new_critics, critics)
    assert torch.allclose(new_targets, 0.75 * targets + 0.25 * new_critics, atol=1e-6)
    assert float(learner.log_alpha) != 0
    learner, config = learner_of(sac, alpha=0.5)
    assert float(sac.update(learner, config)[sac.METRICS.index("alpha")]) == pytest.approx(0.5)
    assert float(learner.log_alpha.exp()) == pytest.approx(0.5)


def test_td3_moves_its_actor_and_its_targets_every_second_time():
    learner, config = learner_of(td3, tau=0.25)
    for number in range(4):
        before = copied(learner.policy.actor, learner.policy.critics, learner.target.actor, learner.target.critics)
        td3.update(learner, config)
        learner.num_updates += 1
        after = copied(learner.policy.actor, learner.policy.critics, learner.target.actor, learner.target.critics)
        assert not torch.equal(after[1], before[1])
        if number % 2 == 0:
            assert all(torch.equal(after[part], before[part]) for part in (0, 2, 3))
        else:
            assert not torch.equal(after[0], before[0])
            for online, target in ((0, 2), (1, 3)):
                assert torch.allclose(after[target], 0.75 * before[target] + 0.25 * after[online], atol=1e-6)


@BOTH
@pytest.mark.parametrize(("num_envs", "batch_size", "backend"), [(1, 1, "serial"), (4, 2, "pool")])
def test_updates_follow_steps_whatever_the_batches(trainer, num_envs, batch_size, backend, monkeypatch):
    calls, played = [], []
    metrics = torch.zeros(len(trainer.METRICS))
    monkeypatch.setattr(trainer, "update", lambda *arguments: calls.append(0) or metrics)
    scale = pufferlib.models.distributions.Decisions.actions

    def actions(self, discrete_actions, continuous_actions):
        played.append(continuous_actions.clone())
        return scale(self, discrete_actions, continuous_actions)

    monkeypatch.setattr("pufferlib.models.distributions.Decisions.actions", actions)
    settings = {**QUICK, "num_envs": num_envs, "backend": backend, "steps_per_update": 4, "eval_episodes": 1}
    extra = {} if trainer is sac else {"exploration_noise": 0.0}
    config = trainer.Config(**settings, **extra, batch_size=batch_size, total_steps=300, num_workers=min(2, num_envs))
    result = trainer.train(config, Answer)
    assert len(calls) == math.ceil((result.num_steps - 100) / 4)
    first = torch.cat(played[: 100 // batch_size])
    assert first.min() < -0.9 and first.max() > 0.9 and abs(float(first.mean())) < 0.25  # uniform at first
    assert trainer is sac or float(torch.cat(played[-20:]).std()) < 0.25  # then of an actor that has learnt nothing


# ------------------------------------------------------------------------------------------------------------ learning


@pytest.mark.parametrize(
    ("trainer", "backend", "settings"),
    [
        (sac, "pool", {}),
        pytest.param(td3, "pool", {"n_step": 3}, marks=pytest.mark.long),
        (td3, "serial", DDPG),
        pytest.param(sac, "serial", {"n_step": 3}, marks=pytest.mark.long),
        pytest.param(td3, "serial", {}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_solves_what_is_trivial(trainer, backend, settings, tmp_path):
    """Bounds that are not centred at 0; and the file plays the same whether it samples or not."""
    wide = dict(policy_kwargs={"hidden_sizes": (128,)}, learning_rate=5e-3)  # 24 units are off by 0.5 with some orders
    settings = {**QUICK, **wide, **settings, "backend": backend, "runs": str(tmp_path)}
    result = trainer.train(trainer.Config(**settings, num_workers=2, total_steps=1_000), Answer)
    mean = np.mean([episode.episodic_return for episode in result.episodes])
    assert -0.3 < mean <= 0  # uniform play: -4.9
    env = Answer()
    for greedy in (True, False):
        with load_policy(result.run_folder / "policy.pt", env, greedy=greedy) as player:
            for asked in (-0.7, 0.1, 0.5):
                assert float(player.act(np.full(1, asked, np.float32))[0]) == pytest.approx(2 * asked, abs=0.4)


@pytest.mark.parametrize(
    ("trainer", "over"),
    [
        (td3, False),
        pytest.param(td3, True, marks=pytest.mark.long),
        pytest.param(sac, False, marks=pytest.mark.long),
        pytest.param(sac, True, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_what_comes_after_a_truncation_counts_and_after_a_termination_does_not(trainer, over):
    extra = {"alpha": 0.0} if trainer is sac else {}
    config = trainer.Config(**{**QUICK, "tau": 0.1}, **extra, total_steps=900, gamma=0.5, n_step=1)
    policy = trainer.train(config, lambda: Endless(over)).policy
    _, values, _ = policy(torch.ones(1, 1))
    assert float(values) == pytest.approx(4 / 3 if over else 2, abs=0.12)  # every second step is the last


# ------------------------------------------------------------------------------------------------------------ mistakes


@BOTH
@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(3), r"plays Boxes of floats, and not Discrete\(3\); cleanrl_demo\.ppo plays others too"),
        (spaces.Box(0, 9, (1,), np.int64), "plays Boxes of floats, and not Box"),
        (spaces.Box(-np.inf, 1, (1,), np.float32), "plays actions between finite bounds, and Box.* has none; use gymn"),
    ],
    ids=str,
)
def test_other_actions_than_bounded_numbers_are_refused(trainer, space, message):
    with pytest.raises(SpaceError, match=f"{trainer.Config.algorithm.upper()} {message}"):
        trainer.Policy(PLAIN, space)


class Other(MLP):
    """A policy with other methods."""

    def __init__(self, observation_layout, action_space, num_critics=2):
        super().__init__(observation_layout, action_space)


@BOTH
def test_a_policy_of_another_kind_is_refused(trainer):
    name = f"{__name__}:Other"
    config = trainer.Config(**{**QUICK, "policy_kwargs": {}}, policy=name, total_steps=200)
    with pytest.raises(
        PlanError, match=f"policy='{name}' has no .*; make it a subclass of cleanrl_demo.{config.algorithm}"
    ):
        trainer.train(config, Answer)


@pytest.mark.parametrize(
    ("trainer", "wrong", "message"),
    [
        (sac, {"gamma": 1.5}, r"gamma=1\.5 is out of bounds; use 0 to 1"),
        (sac, {"tau": 0.0}, r"tau=0\.0 is out of bounds; use more than 0, to 1"),
        (sac, {"n_step": 0}, "n_step=0 is out of bounds; use 1 or more"),
        (sac, {"alpha": -1.0}, r"alpha=-1\.0 is out of bounds; use 0 or more, or None"),
        (sac, {"steps_per_update": 0}, "steps_per_update=0 is out of bounds; use more than 0"),
        (sac, {"schedule": "steep"}, "schedule='steep' is out of bounds; use linear, cosine, constant"),
        (td3, {"policy_frequency": 0}, "policy_frequency=0 is out of bounds; use 1 or more"),
        (td3, {"num_critics": 0}, "num_critics=0 is out of bounds; use 1 or more"),
        (td3, {"policy_noise": -0.1}, r"policy_noise=-0\.1 is out of bounds; use 0 or more"),
        (td3, {"noise_clip": -0.1}, r"noise_clip=-0\.1 is out of bounds; use 0 or more"),
        (td3, {"exploration_noise": -1}, "exploration_noise=-1 is out of bounds; use 0 or more"),
        (td3, {"total_steps": 500}, "learning_starts=10000 is not less than total_steps=500"),
        (sac, {"total_steps": 100}, "learning_starts=100 is not less than total_steps=100"),
    ],
    ids=str,
)
def test_settings_out_of_bounds_are_refused(trainer, wrong, message):
    with pytest.raises(PlanError, match=message):
        trainer.Config(**wrong)


def test_images_go_through_convolutions_before_actions_join_them():
    image = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    policy = sac.Policy(observation_layout(image), PUSH, (8,))
    (actions, std), values, _ = policy(torch.zeros((2, 36, 36, 3), dtype=torch.uint8))
    assert actions.shape == std.shape == (2, 2) and values.shape == (2,) and not std.any()
    assert any(isinstance(part, torch.nn.Conv2d) for part in policy.critics.modules())


# ------------------------------------------------------------------------------------------------------ what one sees


def test_a_run_is_written_down_with_the_size_of_its_checkpoints(tmp_path, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = sac.Config(**{**QUICK, "runs": str(tmp_path)}, total_steps=300)
    result = sac.train(config, Answer)
    events = EventAccumulator(str(result.run_folder))
    events.Reload()
    names = {f"losses/{name}" for name in sac.METRICS} | {"charts/learning_rate", "charts/episodic_return"}
    assert names <= set(events.Tags()["scalars"])
    assert (
        "checkpoints have the replay buffer, 0.1 MiB at most; --no-keep-buffer leaves it out" in capsys.readouterr().out
    )
