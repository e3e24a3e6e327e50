"""QMIX, VDN and IQL: values and targets against definitions, and that they learn."""

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
from benchmarks.team_games import TwoStep
from cleanrl_demo import qmix
from pufferlib.errors import PlanError, SpaceError
from pufferlib.layout import observation_layout
from pufferlib.models import Origin, load_policy
from pufferlib.models.mixers import QMixer, TeamState, ValueSum
from pufferlib.training import TeamReplay
from pufferlib.training.team_replay import Sequences

pytestmark = [pytest.mark.beside, pytest.mark.extras, pytest.mark.usefixtures("one_thread")]

PLAIN = observation_layout(spaces.Box(-1, 1, (2,), np.float32))
WITH_STATE = observation_layout(
    spaces.Dict(state=spaces.Box(-1, 1, (3,), np.float32), observation=spaces.Box(-1, 1, (2,), np.float32))
)
CHOICE = spaces.Discrete(3, start=2)
QUICK: dict[str, Any] = dict(
    backend="serial", num_envs=8, total_steps=2_000, learning_starts=200, learning_rate=5e-3, target_period=25,
    eval_episodes=100, runs=None, policy_kwargs={"hidden_size": 32},
)  # fmt: skip
TWO_STEP: dict[str, Any] = dict(
    QUICK, num_envs=32, total_steps=8_000, end_epsilon=1.0, target_period=30, wrap_kwargs={"state": True},
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- mixers


def test_a_qmixers_value_never_falls_when_an_agents_value_rises():
    torch.manual_seed(1)
    mixer, values, states = QMixer(3, 4), torch.randn(64, 3, requires_grad=True), 3 * torch.randn(64, 4)
    mixed = mixer(values, states)
    mixed.sum().backward()
    assert mixed.shape == (64,) and values.grad is not None and (values.grad >= 0).all()
    assert (values.grad > 0).float().mean() > 0.9  # and it does rise
    others = mixer(values, states.flip(0))
    assert (mixed - others).abs().min() > 0  # the state decides how
    assert torch.equal(mixer(values.reshape(8, 8, 3), states.reshape(8, 8, 4)), mixed.reshape(8, 8))


def test_the_team_state_is_the_leaf_or_all_observations():
    rows = np.stack(
        [
            WITH_STATE.flatten({"state": np.full(3, n / 9, np.float32), "observation": np.zeros(2, np.float32)})
            for n in range(4)
        ]
    )
    observations = torch.from_numpy(rows.astype(WITH_STATE.dtype)).reshape(2, 2, -1)
    state = TeamState(WITH_STATE, 2)
    present = torch.tensor([[True, True], [False, True]])
    assert state.size == 3
    assert torch.allclose(state(observations, present), torch.tensor([[0.0] * 3, [3 / 9] * 3]))
    joint = TeamState(PLAIN, 2)
    plain = torch.rand(5, 4, 2, 2)
    assert joint.size == 4 and torch.equal(joint(plain, torch.ones(5, 4, 2) > 0), plain.flatten(2))


def test_agents_do_not_read_the_state_but_their_index():
    policy = qmix.Policy(WITH_STATE, CHOICE, 2)
    one, other = (
        torch.from_numpy(
            WITH_STATE.flatten({"state": np.full(3, n, np.float32), "observation": np.ones(2, np.float32)})[None]
        ).repeat(2, 1)
        for n in (-1, 1)
    )
    assert torch.equal(policy(one)[1], policy(other)[1])
    first, second = policy.outputs(one, None, None)[0]
    assert not torch.allclose(first, second)  # the same observation, as another agent
    assert torch.equal(policy.outputs(one, None, torch.tensor([1, 0]))[0], torch.stack([second, first]))


# ------------------------------------------------------------------------------------------------------------ targets


class Fixed(torch.nn.Module):
    """Agents whose Q-values are the numbers that they observe."""

    num_places = 2

    def sequences(self, observations, memory, starts):
        return observations


def test_targets_are_those_of_the_definition():
    """Absent agents and those that terminated do not count; the trained network chooses, the target network values."""
    observations = torch.tensor([[[[1.0, 3.0], [5.0, 4.0]]] * 4, [[[2.0, 6.0], [8.0, 7.0]]] * 4])  # (2, 4, 2, 2)
    acted = torch.tensor([[[True, True], [True, True], [True, False], [False, False]]])
    alive = torch.tensor([[[True, True], [True, False], [False, False], [False, False]]])
    rewards = torch.tensor([[[1.0, 3.0], [1.0, 3.0], [1.0, 0.0], [0.0, 0.0]]])
    actions = torch.tensor([[[1, 0]] * 4])
    sampled = Sequences(observations, actions, rewards, acted, alive, torch.zeros(2, 4, 2) > 0, torch.zeros(4, 2, 0))
    networks = {
        mixer: qmix.Networks(Fixed(), PLAIN, qmix.Config(mixer=mixer, team_reward="sum")) for mixer in ("vdn", "iql")
    }
    older = copy.deepcopy(networks)
    for target in older.values():
        target.policy.sequences = lambda observations, memory, starts: 100 - observations  # prefers the others
    loss, mean = qmix.td_loss(networks["vdn"], older["vdn"], sampled, None, 0.5, "sum")
    errors = [3 + 5 - (4 + 0.5 * (94 + 92)), 3 + 5 - (4 + 0.5 * 94), 3 - 1]
    assert float(loss) == pytest.approx(np.square(errors).mean()) and float(mean) == pytest.approx((8 + 8 + 3) / 3)
    errors = [3 + 5 - (2 + 0.5 * (94 + 92)), 3 + 5 - (2 + 0.5 * 94), 3 - 1]
    loss, _ = qmix.td_loss(networks["vdn"], older["vdn"], sampled, None, 0.5, "mean")
    assert float(loss) == pytest.approx(np.square(errors).mean())
    loss, mean = qmix.td_loss(networks["iql"], older["iql"], sampled, None, 0.5, "sum")
    errors = [3 - (1 + 0.5 * 94), 5 - (3 + 0.5 * 92), 3 - (1 + 0.5 * 94), 5 - 3, 3 - 1]
    assert float(loss) == pytest.approx(np.square(errors).mean()) and float(mean) == pytest.approx((3 * 3 + 5 * 2) / 5)
    mixing = qmix.Networks(Fixed(), PLAIN, qmix.Config())
    losses = [
        float(qmix.td_loss(mixing, mixing, columns, None, 0.5, "sum")[0].detach())
        for columns in (sampled, Sequences(*(column[:, :3] for column in sampled[:-1]), sampled.memory[:3]))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # the last sequence is of absent agents
    mask = torch.ones(2, 4, 2, 2) > 0
    mask[1, :, 0, 1] = False
    loss, _ = qmix.td_loss(networks["vdn"], older["vdn"], sampled, mask, 0.5, "sum")
    errors = [3 + 5 - (4 + 0.5 * (98 + 92)), 3 + 5 - (4 + 0.5 * 98), 3 - 1]
    assert float(loss) == pytest.approx(np.square(errors).mean())


def test_a_recurrent_network_learns_with_the_memory_that_it_played_with():
    """Sequences of rows give what the rows gave one by one, also over the end of an episode."""
    torch.manual_seed(1)
    policy = qmix.RecurrentPolicy(PLAIN, CHOICE, 2)
    observations, starts = torch.rand(6, 4, 2), torch.rand(6, 4) < 0.3
    state = (torch.rand(4, policy.hidden_size),)
    before, expected = state, []
    for step in range(6):
        if step:
            state = (state[0] * ~starts[step].unsqueeze(1),)
        q_values, state = policy.outputs(observations[step], state, None)
        expected.append(q_values)
    assert torch.allclose(policy.sequences(observations, before[0], starts), torch.stack(expected), atol=1e-6)
    plain = qmix.Policy(PLAIN, CHOICE, 2)
    expected = torch.stack([plain.outputs(rows, None, None)[0] for rows in observations])
    assert torch.allclose(plain.sequences(observations, torch.zeros(4, 0), starts), expected, atol=1e-6)

    memory = torch.rand(3, 2, policy.hidden_size)
    networks = qmix.Networks(policy, PLAIN, qmix.Config(mixer="iql", recurrent=True))
    observations, starts = torch.rand(5, 3, 2, 2), torch.rand(5, 3, 2) < 0.3
    sampled = Sequences(observations, *[torch.zeros(0)] * 4, starts, memory)
    expected = policy.sequences(observations.flatten(1, 2), memory.flatten(0, 1), starts.flatten(1, 2))
    assert torch.equal(networks.q_values(sampled), expected.view(5, 3, 2, 3))


def test_rewards_are_standardized_by_those_of_valid_steps_so_far():
    """And checkpoints have the statistics."""
    config = qmix.Config(**QUICK, mixer="vdn", team_reward="sum", standardize_rewards=True)
    learner, paid = learner_of(config), np.zeros(0)
    for seed in range(3):
        sampled = learner.replay.sample(64, torch.Generator().manual_seed(seed))
        is_valid = sampled.acted.any(-1)
        sampled.acted[0, :8] = is_valid[0, :8] = False
        sampled.rewards[0, :8] = 100.0  # which does not count
        mean_square, _ = qmix.td_loss(learner.networks, learner.target, sampled, None, 0.9, "sum", learner.reward_norm)
        team_rewards = sampled.rewards.sum(-1)
        paid = np.concatenate([paid, team_rewards[is_valid].numpy()])
        rewards = ((team_rewards - paid.mean()) / paid.std()).clamp(-10, 10)
        by_hand = sampled._replace(rewards=torch.stack([rewards, torch.zeros_like(rewards)], -1))
        expected, _ = qmix.td_loss(learner.networks, learner.target, by_hand, None, 0.9, "sum")
        assert float(mean_square.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
    assert paid.std() > 0.1 and learner.reward_norm.count == len(paid)
    qmix.update(learner, config)
    assert learner.reward_norm.count > len(paid)
    other = learner_of(config)
    other.restore(copy.deepcopy(learner.state()))
    assert other.reward_norm.state_dict() == learner.reward_norm.state_dict()


def learner_of(config: qmix.Config, env: Any = "ocean/multiagent") -> qmix.Learner:
    """Return a learner whose buffer has some steps of random play, and whose target networks are others."""
    with pufferlib.make(env, num_envs=4, as_torch=True) as vec:
        torch.manual_seed(1)
        learner = qmix.Learner(vec, Origin(*config.made_as()), config)
        vec.async_reset(seed=1)
        for _ in range(12):
            actions, _ = qmix.choose(learner, vec.recv().observations, None, 1.0)
            vec.send(actions.numpy())
            host = vec.host_batch
            learner.replay.add(host, host.observations, actions.numpy(), host.rewards, host.terminations)
    with torch.no_grad():
        learner.target_weights.add_(torch.randn_like(learner.weights))
    return learner


def test_targets_are_copied_when_due_and_gradients_are_bounded_and_of_one_update():
    config = qmix.Config(**{**QUICK, "target_period": 2}, max_grad_norm=1e-3)
    learner = learner_of(config)
    for num_updates in range(4):
        learner.num_updates = num_updates
        weights, target = learner.weights.detach().clone(), learner.target_weights.clone()
        qmix.update(learner, config)
        assert torch.equal(learner.target_weights, target if num_updates % 2 else weights)
        assert not torch.equal(learner.weights, weights)
        assert float(learner.weights.grad.norm()) == pytest.approx(1e-3, rel=1e-4)
    learner.optimizer.param_groups[0]["lr"], state, gradients = 0.0, learner.generator.get_state(), []
    for _ in range(2):
        learner.generator.set_state(state)
        qmix.update(learner, replace(config, max_grad_norm=1e9))
        gradients.append(learner.weights.grad.clone())
    assert torch.equal(*gradients)


def test_an_update_passes_the_masks_of_all_rows(monkeypatch):
    masks, td_loss = [], qmix.td_loss

    def watched(networks, target, sampled, mask, *args):
        masks.append((sampled, mask))
        return td_loss(networks, target, sampled, mask, *args)

    monkeypatch.setattr(qmix, "td_loss", watched)
    config = qmix.Config(**QUICK)
    learner = learner_of(config, Barred)
    qmix.update(learner, config)
    ((sampled, mask),) = masks
    before = sampled.observations[0].flatten(0, 1)
    assert mask.shape == (2, 64, 2, 3) and torch.equal(mask[0].flatten(0, 1), learner.actor.mask(before))
    assert mask.sum(-1).unique().tolist() == [2]


# ----------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("batch_size", [4, pytest.param(2, marks=pytest.mark.long)])
def test_the_buffer_has_what_was_played_with_the_memory_before_it(batch_size, monkeypatch):
    """Rows are those of each agent in order; truncations do not terminate; memories begin again with each episode."""
    replays: list[TeamReplay] = []

    def make_replay(*args: Any, **kwargs: Any) -> TeamReplay:
        replays.append(TeamReplay(*args, **kwargs))
        return replays[0]

    updates, epsilons, choose = [], [], qmix.choose

    def watched(learner: Any, observations: Any, state: Any, epsilon: float) -> Any:
        epsilons.append(epsilon)
        return choose(learner, observations, state, epsilon)

    monkeypatch.setattr(qmix, "TeamReplay", make_replay)
    monkeypatch.setattr(qmix, "update", lambda *args: updates.append(1) or torch.zeros(2))
    monkeypatch.setattr(qmix, "choose", watched)
    config = qmix.Config(
        num_envs=4, batch_size=batch_size, total_steps=400, learning_starts=100, recurrent=True, sequence_length=3,
        eval_episodes=1, runs=None, policy_kwargs={"hidden_size": 8},
    )  # fmt: skip
    result = qmix.train(config, Counting)
    policy = result.policy
    assert len(updates) == -(-(result.num_steps - 100) // config.steps_per_update)
    assert (epsilons[0], epsilons[-1]) == pytest.approx((1, 0.05)) and sorted(epsilons, reverse=True) == epsilons
    require_counted(replays[0])
    names = ("observations", "masks", "memory")
    for env_id, num_rows in enumerate(replays[0].num_rows):
        rows = [torch.from_numpy(replays[0].columns[name][env_id, :num_rows]) for name in names]
        observations, masks, memories = rows
        state = torch.zeros(2, 8)
        for row in range(num_rows):
            state = state * masks[row].unsqueeze(1)
            assert torch.allclose(memories[row], state, atol=1e-6)
            state = policy.outputs(observations[row], (state,), None)[1][0].detach()


def test_actions_that_are_forbidden_are_not_played_at_random_either():
    config = qmix.Config(**{**QUICK, "total_steps": 400, "eval_episodes": 4})
    result = qmix.train(config, Barred)  # which refuses them
    assert {episode.length for episode in result.episodes} == {4}


@pytest.mark.parametrize(
    ("mixer", "settings"),
    [
        ("qmix", {"backend": "pool", "num_workers": 2, "batch_size": 4}),
        pytest.param("vdn", {"recurrent": True, "sequence_length": 4}, marks=pytest.mark.long),
        pytest.param("iql", {}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_two_agents_with_opposite_answers_learn_theirs(mixer, settings, tmp_path):
    config = qmix.Config(**{**QUICK, **settings, "runs": str(tmp_path)}, mixer=mixer)
    result = qmix.train(config)
    assert np.mean([episode.episodic_return for episode in result.episodes]) == 2
    assert result.run_folder is not None
    with load_policy(result.run_folder / "policy.pt") as player:
        env = pufferlib.registry.creator("ocean/multiagent")()
        wrapped = pufferlib.wrap(env)
        for seed in range(4):
            observations, _ = wrapped.reset(seed=seed)
            actions = player.act(observations)
            assert list(actions.values()) == env.solve().tolist()
            player.reset()
        wrapped.close()


@pytest.mark.long
@pytest.mark.parametrize(("mixer", "paid"), [("qmix", 8), ("vdn", 7)])
def test_qmix_finds_the_better_of_two_games_and_vdn_cannot(mixer, paid):
    result = qmix.train(qmix.Config(**TWO_STEP, mixer=mixer), TwoStep)
    assert {episode.episodic_return for episode in result.episodes} == {2 * paid}  # both agents are paid


@pytest.mark.long
def test_a_memory_is_learnt_through_a_sequence():
    config = qmix.Config(
        env="ocean/memory", mixer="iql", recurrent=True, sequence_length=10, total_steps=30_000, num_envs=32,
        learning_starts=1_000, learning_rate=2e-3, steps_per_update=32, minibatch_size=32, eval_episodes=200, runs=None,
        exploration_fraction=0.6, target_period=50, gamma=0.9,
    )  # fmt: skip
    result = qmix.train(config)
    assert result.score is not None and result.score > 0.9


# ----------------------------------------------------------------------------------------------------------- mistakes


def test_other_actions_than_discrete_ones_are_refused():
    with pytest.raises(SpaceError, match="QMIX plays Discrete actions, and not Box.*; cleanrl_demo.ppo plays others"):
        qmix.Policy(PLAIN, spaces.Box(-1, 1, (2,)), 2)


def test_a_policy_must_have_the_memory_that_the_settings_state():
    config = qmix.Config(**{**QUICK, "recurrent": True}, policy="cleanrl_demo.qmix:Policy")
    with pufferlib.make("ocean/multiagent", num_envs=2) as vec:
        message = (
            "policy='cleanrl_demo.qmix:Policy' does not fit recurrent=True; make it a subclass of .*RecurrentPolicy"
        )
        with pytest.raises(PlanError, match=message):
            qmix.Learner(vec, Origin(*config.made_as()), config)


def test_an_image_next_to_a_state_is_refused():
    image = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    layout = observation_layout(spaces.Dict(state=spaces.Box(-1, 1, (3,), np.float32), observation=image))
    with pytest.raises(SpaceError, match='images and a part "state" that the network must not read are not supported'):
        qmix.Policy(layout, CHOICE, 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mixer": "sum"}, "mixer='sum' is out of bounds; use qmix, vdn, iql"),
        ({"team_reward": "max"}, "team_reward='max' is out of bounds; use mean, sum"),
        ({"sequence_length": 0}, "sequence_length=0 is out of bounds; use 1 or more"),
        ({"hypernet_size": -1}, "hypernet_size=-1 is out of bounds; use 0 or more"),
        ({"gamma": 1.5}, r"gamma=1\.5 is out of bounds; use 0 to 1"),
        ({"schedule": "steep"}, "schedule='steep' is out of bounds"),
        ({"total_steps": 900}, "learning_starts=1000 is not less than total_steps=900"),
    ],
    ids=str,
)
def test_settings_out_of_bounds_are_refused(wrong, message):
    with pytest.raises(PlanError, match=message):
        qmix.Config(**wrong)


def test_value_sums_ignore_the_state():
    assert ValueSum()(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.zeros(2, 9)).tolist() == [3, 3]
