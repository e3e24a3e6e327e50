"""MADDPG, MATD3 and attention critics: what critics see, losses against definitions and TD3's, and that they learn."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from counting_envs import Counting, require_counted
from gymnasium import spaces
from masked_games import Barred

import pufferlib
from cleanrl_demo import maddpg, td3
from pufferlib.errors import PlanError, SpaceError
from pufferlib.layout import observation_layout
from pufferlib.models import Origin, load_policy
from pufferlib.models.agent_networks import AgentLayers
from pufferlib.models.mixers import TeamState
from pufferlib.models.team_critics import AttentionCritic, CentralCritic, OwnCritic
from pufferlib.training import TeamReplay
from pufferlib.training.replay_buffer import Transitions
from pufferlib.training.team_replay import Sequences

pytestmark = [pytest.mark.beside, pytest.mark.extras, pytest.mark.usefixtures("one_thread")]

PLAIN = observation_layout(spaces.Box(-1, 1, (2,), np.float32))
WITH_STATE = observation_layout(
    spaces.Dict(state=spaces.Box(-1, 1, (3,), np.float32), observation=spaces.Box(-1, 1, (2,), np.float32))
)
CHOICE, AIM = spaces.Discrete(3, start=2), spaces.Box(-1, 1, (3,), np.float32)
QUICK: dict[str, Any] = dict(
    backend="serial", num_envs=8, total_steps=2_000, learning_starts=400, steps_per_update=8, minibatch_size=64,
    learning_rate=5e-3, eval_episodes=100, runs=None, policy_kwargs={"hidden_sizes": (32, 32)},
)  # fmt: skip
NUM_AGENTS, NUM_ROWS = 3, 16


def joint_step(seed: int = 1, layout: Any = PLAIN) -> Sequences:
    """Return a minibatch of joint steps, in which agents are absent, or end by termination."""
    draw = torch.Generator().manual_seed(seed)
    sides = (NUM_ROWS, NUM_AGENTS)
    acted = torch.rand(1, *sides, generator=draw) < 0.8
    return Sequences(
        torch.rand(2, *sides, *layout.shape, generator=draw) * 2 - 1,
        torch.rand(1, *sides, 3, generator=draw) * 2 - 1,
        torch.randn(1, *sides, generator=draw),
        acted,
        acted & (torch.rand(1, *sides, generator=draw) < 0.7),
        torch.zeros(2, *sides) > 0,
        torch.zeros(*sides, 0),
    )


def networks_of(action_space: Any = AIM, layout: Any = PLAIN, **settings: Any) -> maddpg.Networks:
    return maddpg.Networks(maddpg.Policy(layout, action_space, NUM_AGENTS, (8, 8)), layout, maddpg.Config(**settings))


# ----------------------------------------------------------------------------------------------------------- networks


def test_each_agent_has_layers_of_its_own():
    layers, inputs = AgentLayers(2, (3, 4, 5)), torch.rand(6, 2, 3)
    outputs = layers(inputs)
    for agent in range(2):
        hidden = (inputs[:, agent] @ layers.weights[0][agent] + layers.biases[0][agent]).relu()
        expected = hidden @ layers.weights[1][agent] + layers.biases[1][agent]
        assert torch.allclose(outputs[:, agent], expected, atol=1e-6)


@pytest.mark.parametrize("critic", [OwnCritic, CentralCritic, AttentionCritic])
def test_critics_see_what_they_are_to_see(critic):
    """Whose values change if an agent's action changes: as its own, as another's, and while it is absent."""
    torch.manual_seed(2)
    layers = critic(PLAIN, NUM_AGENTS, 3, (8, 8))
    observations, present = torch.rand(5, NUM_AGENTS, 2), torch.ones(5, NUM_AGENTS) > 0
    actions, changed = torch.rand(5, NUM_AGENTS, 3), torch.rand(5, NUM_AGENTS, 3)
    changed[:, 1:] = actions[:, 1:]  # agent 0's alone

    def changes(own_actions: torch.Tensor, other_actions: torch.Tensor, present: torch.Tensor) -> list[bool]:
        before, after = (
            layers(observations, actions, actions, present),
            layers(observations, own_actions, other_actions, present),
        )
        return [not torch.allclose(before[:, agent], after[:, agent], atol=1e-7) for agent in range(NUM_AGENTS)]

    seen = critic is not OwnCritic
    assert changes(changed, actions, present) == [True, False, False]
    assert changes(actions, changed, present) == [False, seen, seen]
    present[:, 0] = False
    assert changes(actions, changed, present) == [False, False, False]


def test_actors_do_not_read_the_state_and_play_rows_in_any_order():
    torch.manual_seed(1)
    policy = maddpg.Policy(WITH_STATE, CHOICE, NUM_AGENTS, (8,))
    rows = torch.from_numpy(
        np.stack(
            [
                WITH_STATE.flatten({"state": np.full(3, n / 9, np.float32), "observation": np.ones(2, np.float32)})
                for n in range(NUM_AGENTS)
            ]
        )
    )
    logits = policy(rows)[0]
    assert torch.equal(policy(rows[:1].repeat(NUM_AGENTS, 1))[0], logits)
    assert not torch.allclose(logits[0], logits[1])  # the same observation, as another agent
    places = torch.tensor([2, 0, 1])
    assert torch.allclose(policy(rows[places], None, None, places)[0], logits[places])
    joint = policy.outputs(rows[None])
    assert torch.allclose(joint[0], logits)


def test_numbers_of_discrete_actions_are_near_those_that_are_played():
    torch.manual_seed(3)
    policy, outputs = maddpg.Policy(PLAIN, CHOICE, 2), torch.tensor([[[1.0, 3.0, 2.0]] * 2]).repeat(20_000, 1, 1)
    gumbels = -torch.empty_like(outputs).exponential_().log()
    mask = torch.tensor([[True, False, True], [True, True, True]]).expand(20_000, 2, 3)
    numbers = policy.numbers(outputs.requires_grad_(), gumbels, mask)
    assert torch.allclose(numbers.sum(2), torch.ones(20_000, 2)) and (numbers[:, 0, 1] == 0).all()
    played = torch.stack([(numbers.argmax(2) == action).float().mean(0) for action in range(3)], 1)
    expected = torch.tensor([[1.0, -torch.inf, 2.0], [1.0, 3.0, 2.0]]).softmax(1)
    assert torch.allclose(played, expected, atol=0.02)
    numbers[:, :, 0].sum().backward()
    assert outputs.grad is not None and outputs.grad.abs().sum() > 0


# ------------------------------------------------------------------------------------------------------------- losses


class Fixed(torch.nn.Module):
    """A critic whose value is a sum: of the own action, 100 times the first observed number, 10 per present agent."""

    def forward(self, observations, own_actions, other_actions, present):
        return own_actions.sum(2) + 100 * observations[:, :, 0] + 10 * present.sum(1, keepdim=True)


def test_targets_are_those_of_the_definition():
    """Absent agents, and those that terminated, have no value to come; the others have, also after a truncation."""
    sampled, networks = joint_step(), networks_of()
    networks.critics = torch.nn.ModuleList([Fixed()])
    next_actions = torch.rand(NUM_ROWS, NUM_AGENTS, 3)
    loss, mean = maddpg.critic_loss(networks, networks, sampled, next_actions, 0.5)
    expected, values = 0.0, []
    for agent in range(NUM_AGENTS):
        errors = []
        for row in sampled.acted[0, :, agent].nonzero()[:, 0]:
            value = float(sampled.actions[0, row, agent].sum() + 100 * sampled.observations[0, row, agent, 0])
            value += 10 * int(sampled.acted[0, row].sum())
            target = float(sampled.rewards[0, row, agent])
            if sampled.alive[0, row, agent]:
                target += 0.5 * float(next_actions[row, agent].sum() + 100 * sampled.observations[1, row, agent, 0])
                target += 0.5 * 10 * int(sampled.alive[0, row].sum())
            errors.append((value - target) ** 2)
            values.append(value)
        expected += float(np.mean(errors))
    assert float(loss) == pytest.approx(expected, rel=1e-4) and float(mean) == pytest.approx(np.mean(values), rel=1e-4)


def test_an_actors_loss_is_that_of_the_definition():
    sampled, networks = joint_step(), networks_of()
    networks.critics = torch.nn.ModuleList([Fixed()])
    outputs = networks.policy.outputs(sampled.observations[0]).detach()
    expected = 0.0
    for agent in range(NUM_AGENTS):
        losses = []
        for row in sampled.acted[0, :, agent].nonzero()[:, 0]:
            value = float(outputs[row, agent].tanh().sum() + 100 * sampled.observations[0, row, agent, 0])
            value += 10 * int(sampled.acted[0, row].sum())
            losses.append(1000 * float(outputs[row, agent].square().mean()) - value)
        expected += float(np.mean(losses))
    loss = maddpg.actor_loss(networks, sampled, None, None, 1000.0).detach()
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_an_actor_learns_from_its_own_critic_and_action_alone():
    torch.manual_seed(4)
    sampled, networks = joint_step(), networks_of(critic="central")

    def gradient() -> torch.Tensor:
        networks.zero_grad()
        maddpg.actor_loss(networks, sampled, None, None, 0.0).backward()
        return torch.stack([weights.grad.flatten(1).norm(dim=1) for weights in networks.policy.parameters()])

    before = gradient()
    assert (before > 0).all()
    with torch.no_grad():
        for weights in networks.critics.parameters():
            weights[1] *= 2.0  # of the second agent's critic
    changed = (gradient() != before).any(0)
    assert changed.tolist() == [False, True, False]


@pytest.mark.parametrize("num_critics", [1, 2], ids=["ddpg", "td3"])
def test_one_agent_has_the_losses_and_gradients_of_td3(num_critics):
    """Whose losses and gradients are TorchRL's (test_torchrl_losses.py)."""
    torch.manual_seed(num_critics)
    sampled = joint_step()
    config = maddpg.Config(critic="own", num_critics=num_critics)
    networks = maddpg.Networks(maddpg.Policy(PLAIN, AIM, 1, (8, 8)), PLAIN, config)
    target = copy.deepcopy(networks)
    with torch.no_grad():
        for weights in target.parameters():
            weights += 0.1 * torch.rand_like(weights)
    acted = sampled.acted[0].flatten()
    one = Sequences(*(column.flatten(1, 2)[:, acted].unsqueeze(2) for column in sampled[:-1]), torch.zeros(0))
    reference, reference_target = (td3.Policy(PLAIN, AIM, (8, 8), num_critics) for _ in range(2))
    for ours, theirs in ((networks, reference), (target, reference_target)):
        load(theirs.actor, ours.policy.layers)
        for critic, expected_critic in zip(ours.critics, theirs.critics, strict=True):
            load(expected_critic, critic.layers)
    columns = (one.observations[0], one.actions[0], one.rewards[0], one.observations[1], one.alive[0])
    before, actions, rewards, after, alive = (column[:, 0] for column in columns)
    transitions = Transitions(before, actions, rewards, ~alive, after, torch.full_like(rewards, 0.9))
    noise = torch.randn(len(actions), 3)
    smoothing = (0.2 * noise).clamp(-0.5, 0.5)[:, None]
    next_actions = (target.policy.outputs(one.observations[1]).tanh() + smoothing).clamp(-1, 1)
    loss, mean = maddpg.critic_loss(networks, target, one, next_actions, 0.9)
    expected, expected_mean = td3.critic_loss(reference, reference_target, transitions, noise, 0.2, 0.5)
    assert torch.allclose(loss, expected, rtol=1e-5) and torch.allclose(mean, expected_mean, rtol=1e-5)
    (loss + maddpg.actor_loss(networks, one, None, None, 0.0)).backward()
    (expected + td3.actor_loss(reference, before)).backward()
    for critic, expected_critic in zip(networks.critics, reference.critics, strict=True):
        assert_same_gradients(critic.layers, expected_critic)
    assert_same_gradients(networks.policy.layers, reference.actor)


def linears(network: Any) -> list[torch.nn.Linear]:
    return [layer for layer in network.layers if isinstance(layer, torch.nn.Linear)]


def load(network: Any, layers: AgentLayers) -> None:
    """Write the first agent's weights into a ReLUNetwork."""
    with torch.no_grad():
        for linear, weights, biases in zip(linears(network), layers.weights, layers.biases, strict=True):
            linear.weight.copy_(weights[0].T)
            linear.bias.copy_(biases[0, 0])


def assert_same_gradients(layers: AgentLayers, network: Any) -> None:
    for linear, weights, biases in zip(linears(network), layers.weights, layers.biases, strict=True):
        for gradient, expected in ((weights.grad[0].T, linear.weight.grad), (biases.grad[0, 0], linear.bias.grad)):
            assert (gradient - expected).abs().max() <= 1e-5 * expected.abs().max()


# ------------------------------------------------------------------------------------------------------------ updates


def learner_of(config: maddpg.Config, env: Any) -> maddpg.Learner:
    """Return a learner whose buffer has some steps of the target's play, and whose target networks are others."""
    with pufferlib.make(env, num_envs=4, as_torch=True) as vec:
        torch.manual_seed(1)
        learner = maddpg.Learner(vec, Origin(*config.made_as()), config)
        vec.async_reset(seed=1)
        for _ in range(20):
            batch = vec.recv()
            discrete, continuous = maddpg.choose(learner, batch.observations, True, 0.1)
            vec.send(learner.actor.decisions.actions(discrete, continuous))
            host, actions = vec.host_batch, discrete[:, 0] if learner.policy.is_discrete else continuous
            learner.replay.add(host, host.observations, actions.numpy(), host.rewards, host.terminations)
    with torch.no_grad():
        for weights in learner.target_weights:
            weights.add_(0.1 * torch.randn_like(weights))
    return learner


def test_actors_and_targets_follow_every_second_update():
    config = maddpg.Config(**QUICK, policy_frequency=2, tau=0.25)
    learner = learner_of(config, "ocean/multiagent")
    trained = (learner.actor_weights, learner.qf_weights)
    for num_updates in range(4):
        learner.num_updates = num_updates
        before, targets = ([part.detach().clone() for part in parts] for parts in (trained, learner.target_weights))
        maddpg.update(learner, config)
        follows = num_updates % 2 == 1
        assert torch.equal(learner.actor_weights, before[0]) != follows
        assert not torch.equal(learner.qf_weights, before[1])
        for weights, target, moved in zip(trained, targets, learner.target_weights, strict=True):
            assert torch.allclose(moved, target.lerp(weights, 0.25) if follows else target, atol=1e-7)
    for optimizer in learner.optimizers.values():
        optimizer.param_groups[0]["lr"] = 0.0
    state, gradients = learner.generator.get_state(), []
    for _ in range(2):  # with targets that moved a little meanwhile; a sum would be twice as large
        learner.generator.set_state(state)
        maddpg.update(learner, replace(config, tau=1e-9, max_grad_norm=1e9))
        gradients.append([weights.grad.clone() for weights in trained])
    for one, other in zip(*gradients, strict=True):
        assert (one - other).abs().max() < 0.01 * one.abs().max()
    maddpg.update(learner, replace(config, max_grad_norm=1e-3))
    assert [float(weights.grad.norm()) for weights in trained] == pytest.approx([1e-3, 1e-3], rel=1e-4)


@pytest.mark.parametrize("env", ["ocean/continuous", Barred], ids=["box", "discrete"])
def test_targets_are_of_the_target_actors_actions(env, monkeypatch):
    """Of a Box, with bounded noise within its bounds; of Discrete actions, without those that are then forbidden."""
    seen, masks, critic_loss, actor_loss = [], [], maddpg.critic_loss, maddpg.actor_loss

    def watched(networks, target, sampled, next_actions, gamma):
        seen.append((sampled, next_actions))
        return critic_loss(networks, target, sampled, next_actions, gamma)

    def watched_actor(networks, sampled, gumbels, mask, penalty):
        masks.append(mask)
        return actor_loss(networks, sampled, gumbels, mask, penalty)

    monkeypatch.setattr(maddpg, "critic_loss", watched)
    monkeypatch.setattr(maddpg, "actor_loss", watched_actor)
    config = maddpg.Config(**QUICK, policy_noise=5.0, noise_clip=0.25, tau=1e-9)
    learner = learner_of(config, env)
    if env is not Barred:
        learner.target_weights[0].mul_(10)  # some actions are near their bounds
    maddpg.update(learner, config)
    ((sampled, next_actions),) = seen
    outputs = learner.target.policy.outputs(sampled.observations[1])
    if env is Barred:
        mask = learner.mask(sampled.observations[1])
        assert mask is not None and (next_actions[~mask] == 0).all() and (next_actions[mask] > 0).all()
        assert torch.equal(masks[0], learner.mask(sampled.observations[0])) and not torch.equal(masks[0], mask)
        assert torch.allclose(next_actions.sum(2), torch.ones(mask.shape[:2]))
        return
    noise = next_actions - outputs.tanh()
    inside = next_actions.abs() < 1
    assert next_actions.abs().max() == 1 and inside.any() and not inside.all()
    assert noise.abs().max() <= 0.25 + 1e-6 and noise[inside].abs().mean() > 0.2  # nearly all at its bounds
    monkeypatch.setattr(learner.target.policy, "outputs", lambda observations: outputs.detach())
    maddpg.update(learner, replace(config, policy_noise=0.0))
    assert torch.allclose(seen[1][1], outputs.tanh(), atol=1e-6)


class Boxed(pufferlib.PufferEnv):
    """Two agents with Boxes, which observe their index."""

    num_agents = 2
    single_observation_space = spaces.Box(0, 1, (1,), np.float32)
    single_action_space = AIM

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed=seed)
        self.observations[:, 0] = np.arange(2)

    def step(self, actions: Any) -> None:
        self.terminations[:] = True


def test_each_agent_plays_its_own_actors_action():
    learner = learner_of(maddpg.Config(**QUICK), Boxed)
    rows = torch.tensor([[0.0], [1.0]]).repeat(3, 1)
    expected = learner.policy.outputs(rows.unflatten(0, (3, 2))).tanh().detach()
    assert not torch.allclose(expected[:, 0], expected[:, 1])
    _, actions = maddpg.choose(learner, rows, False, 0.0)
    assert torch.equal(actions, expected.flatten(0, 1))


def test_actions_in_training_have_noise_and_are_uniform_at_first():
    config = maddpg.Config(**QUICK)
    learner = learner_of(config, "ocean/continuous")
    rows = torch.zeros(2_000, *learner.actor.seen_layout.shape)
    best = learner.policy.outputs(rows[:1, None]).tanh().flatten().detach()
    _, actions = maddpg.choose(learner, rows, False, 0.2)
    assert actions.mean(0).tolist() == pytest.approx(best.tolist(), abs=0.03)
    assert actions.std(0).tolist() == pytest.approx([0.2] * len(best), rel=0.1)
    _, actions = maddpg.choose(learner, rows, True, 0.2)
    assert actions.std(0).tolist() == pytest.approx([3**-0.5] * len(best), rel=0.05) and actions.abs().max() <= 1
    learner = learner_of(config, Barred)
    rows = torch.from_numpy(np.repeat(learner.replay.columns["observations"][0, 0], 1_000, 0)).unflatten(0, (2, 1_000))
    rows = rows.transpose(0, 1).flatten(0, 1)
    logits = maddpg.allowed(learner.policy.outputs(rows[:2][None]), learner.mask(rows[:2][None]))[0].detach()
    for at_random, expected in ((False, logits.softmax(1)), (True, (logits * 0).nan_to_num(-torch.inf).softmax(1))):
        discrete, _ = maddpg.choose(learner, rows, at_random, 0.2)
        shares = torch.stack([(discrete.view(1_000, 2) == action).float().mean(0) for action in range(3)], 1)
        assert torch.allclose(shares, expected, atol=0.06)


# ----------------------------------------------------------------------------------------------------------- learning


def test_the_buffer_has_what_was_played(monkeypatch):
    """Rows are those of each agent in order, and truncations do not terminate."""
    replays: list[TeamReplay] = []
    phases, choose = [], maddpg.choose

    def watched(learner: Any, observations: Any, at_random: bool, noise: float) -> Any:
        phases.append((learner.num_steps, at_random))
        return choose(learner, observations, at_random, noise)

    monkeypatch.setattr(maddpg, "TeamReplay", lambda *args: replays.append(TeamReplay(*args)) or replays[0])
    monkeypatch.setattr(maddpg, "choose", watched)
    config = maddpg.Config(
        num_envs=4, total_steps=400, learning_starts=100, steps_per_update=1e9, eval_episodes=1, runs=None
    )
    maddpg.train(config, Counting)
    require_counted(replays[0])
    assert all(at_random == (num_steps < 100) for num_steps, at_random in phases)


def test_actions_that_are_forbidden_are_not_played_at_random_either():
    config = maddpg.Config(**{**QUICK, "total_steps": 600, "eval_episodes": 4})
    result = maddpg.train(config, Barred)  # which refuses them
    assert {episode.length for episode in result.episodes} == {4}


@pytest.mark.parametrize(
    "settings",
    [
        {"backend": "pool", "num_workers": 2, "batch_size": 4},
        pytest.param({"critic": "attention"}, marks=pytest.mark.long),
        pytest.param({"num_critics": 2, "policy_frequency": 2, "critic": "own"}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_two_agents_with_opposite_answers_learn_theirs(settings, tmp_path):
    config = maddpg.Config(**{**QUICK, **settings, "runs": str(tmp_path)})
    result = maddpg.train(config)
    assert np.mean([episode.episodic_return for episode in result.episodes]) == 2
    assert result.run_folder is not None
    with load_policy(result.run_folder / "policy.pt", greedy=True) as player:
        env = pufferlib.registry.creator("ocean/multiagent")()
        wrapped = pufferlib.wrap(env)
        observations, _ = wrapped.reset(seed=3)
        assert list(player.act(observations).values()) == env.solve().tolist()
        wrapped.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_matd3_learns_continuous_actions():
    config = maddpg.Config(
        env="ocean/continuous", num_envs=16, total_steps=20_000, learning_starts=1_000, steps_per_update=8,
        minibatch_size=128, learning_rate=5e-3, gamma=0.9, tau=0.02, max_grad_norm=10, num_critics=2, policy_noise=0.2,
        policy_frequency=2, eval_episodes=200, runs=None,
    )  # fmt: skip
    result = maddpg.train(config)
    assert result.score is not None and result.score > 0.9


# ----------------------------------------------------------------------------------------------------------- mistakes


def test_other_actions_are_refused():
    with pytest.raises(SpaceError, match="MADDPG plays Boxes of floats, and not MultiDiscrete"):
        maddpg.Policy(PLAIN, spaces.MultiDiscrete([2, 3]), 2)


IMAGES = observation_layout(spaces.Box(0, 255, (40, 40, 3), np.uint8))


@pytest.mark.parametrize(
    ("error", "message", "make"),
    [
        (SpaceError, "these networks read numbers, and .* has images", lambda: maddpg.Policy(IMAGES, CHOICE, 2)),
        (SpaceError, "a team's state is read as numbers, and .* has images", lambda: TeamState(IMAGES, 2)),
        (PlanError, r"hidden_sizes=\(6, 8\): .* multiple of 4", lambda: AttentionCritic(PLAIN, 2, 3, (6, 8))),
        (PlanError, r"hidden_sizes=\(\): .* multiple of 4", lambda: AttentionCritic(PLAIN, 2, 3, ())),
    ],
)
def test_what_networks_cannot_read_or_attend_with_is_refused(error, message, make):
    with pytest.raises(error, match=message):
        make()


def test_a_policy_of_something_else_is_refused():
    config = maddpg.Config(**{**QUICK, "policy": "cleanrl_demo.qmix:Policy", "policy_kwargs": {}})
    with pufferlib.make("ocean/multiagent", num_envs=2) as vec:
        with pytest.raises(PlanError, match="does not fit; make it a subclass of cleanrl_demo.maddpg.Policy"):
            maddpg.Learner(vec, Origin(*config.made_as()), config)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"critic": "all"}, "critic='all' is out of bounds; use central, own, attention"),
        ({"num_critics": 0}, "num_critics=0 is out of bounds; use 1 or more"),
        ({"policy_noise": -0.1}, r"policy_noise=-0\.1 is out of bounds; use 0 or more"),
        ({"tau": 0}, "tau=0 is out of bounds; use more than 0, to 1"),
        ({"total_steps": 900}, "learning_starts=25000 is not less than total_steps=900"),
    ],
    ids=str,
)
def test_settings_out_of_bounds_are_refused(wrong, message):
    with pytest.raises(PlanError, match=message):
        maddpg.Config(**wrong)
