"""The losses of SAC, TD3, DDPG, QMIX and VDN, and their gradients, against TorchRL's objectives on random batches.

TorchRL's default loss is smooth L1; here it is squared, as in the papers. It draws its noise from torch's global
generator, in the shapes that the tests draw it in. Its targets have one step: discounts are gamma.
"""

from __future__ import annotations

import copy
import multiprocessing
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("torchrl")
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import Bounded
from torchrl.modules import ProbabilisticActor, QMixer, QValueModule, SafeSequential, TanhNormal, VDNMixer
from torchrl.objectives import DDPGLoss, QMixerLoss, SACLoss, TD3Loss, ValueEstimators

from cleanrl_demo import qmix, sac, td3
from pufferlib.layout import observation_layout
from pufferlib.training.replay_buffer import Transitions
from pufferlib.training.team_replay import Sequences

pytestmark = [pytest.mark.extras, pytest.mark.beside, pytest.mark.usefixtures("one_thread")]
pytestmark += [pytest.mark.filterwarnings("ignore:No target network updater:UserWarning")]

multiprocessing.set_start_method(None, force=True)  # TorchRL has set it, for all that comes after
OBSERVATIONS = observation_layout(spaces.Box(-1, 1, (5,), np.float32))
ACTIONS = spaces.Box(-1, 1, (3,), np.float32)
PREFIX = re.compile(r"^(?:module\.|\d+\.)+")  # of names of weights, by TorchRL
NUM_ROWS, GAMMA, ALPHA = 32, 0.9, 0.3


@pytest.fixture(autouse=True)
def start_method_as_it_was() -> Iterator[None]:
    yield
    multiprocessing.set_start_method(None, force=True)


def batch(seed: int) -> Transitions:
    """Return random transitions; every third terminated."""
    draw = torch.Generator().manual_seed(seed)
    observations, next_observations = torch.rand(2, NUM_ROWS, 5, generator=draw) * 2 - 1
    actions = torch.rand(NUM_ROWS, 3, generator=draw) * 1.98 - 0.99
    rewards = torch.randn(NUM_ROWS, generator=draw)
    terminations = torch.arange(NUM_ROWS) % 3 == 0
    return Transitions(observations, actions, rewards, terminations, next_observations, torch.full((NUM_ROWS,), GAMMA))


def as_tensordict(sampled: Transitions) -> TensorDict:
    ended = sampled.terminations[:, None]
    after = {"observation": sampled.next_observations, "reward": sampled.rewards[:, None]}
    after |= {"done": ended, "terminated": ended}
    columns = {"observation": sampled.observations, "action": sampled.actions, "next": after}
    return TensorDict(columns, [NUM_ROWS])


def perturbed(module: Any, seed: int) -> Any:
    """Return a copy of a module with other weights, as target networks have."""
    module, draw = copy.deepcopy(module), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in module.parameters():
            weights.add_(torch.randn(weights.shape, generator=draw) * 0.1)
    return module


def qvalue(critic: Any) -> TensorDictModule:
    return TensorDictModule(critic, in_keys=["observation", "action"], out_keys=["state_action_value"])


def assert_equal(ours: Any, reference: Any) -> None:
    """Compare tensors within 1e-5 of the largest element of each."""
    for one, other in zip(ours, reference, strict=True):
        one, other = one.detach(), other.detach().reshape(one.shape)
        assert float((one - other).abs().max()) <= 1e-5 * max(float(other.abs().max()), 1e-12)


def fill_targets(parameters: Any, modules: Any) -> None:
    """Write the weights of one or several modules into TorchRL's target parameters, which are stacked if several."""
    for name, values in parameters.flatten_keys(".").items():
        weights = [dict(module.named_parameters())[PREFIX.sub("", name)].detach() for module in modules]
        values.data.copy_(torch.stack(weights) if len(weights) > 1 or values.dim() > weights[0].dim() else weights[0])


def gradients_of(parameters: Any, modules: Any) -> list[torch.Tensor]:
    """Return the gradients in TorchRL's parameters, in the order of those of the modules, one after another."""
    flat = {PREFIX.sub("", name): values for name, values in parameters.flatten_keys(".").items()}
    stacked = next(iter(flat.values())).dim() > next(iter(modules[0].parameters())).dim()
    return [
        flat[name].grad[index] if stacked else flat[name].grad
        for index, module in enumerate(modules)
        for name, _ in module.named_parameters()
    ]


@pytest.mark.parametrize("seed", range(3))
def test_losses_and_gradients_of_sac_are_torchrls(seed: int) -> None:
    torch.manual_seed(seed)
    policy, sampled = sac.Policy(OBSERVATIONS, ACTIONS, (16, 16)), batch(seed)
    target = perturbed(policy.critics, seed).requires_grad_(False)
    reference_policy = copy.deepcopy(policy)
    actor = ProbabilisticActor(
        TensorDictModule(Normal(reference_policy), in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"tanh_loc": False},
        return_log_prob=True,
    )
    critics = [qvalue(critic) for critic in reference_policy.critics]
    reference = SACLoss(actor, critics, num_qvalue_nets=2, loss_function="l2", alpha_init=ALPHA, target_entropy=-3.0)
    reference.make_value_estimator(ValueEstimators.TD0, gamma=GAMMA)
    fill_targets(reference.target_qvalue_network_params, target)
    torch.manual_seed(7)
    losses = reference(as_tensordict(sampled))
    expected = [losses["loss_qvalue"], losses["loss_actor"], losses["loss_alpha"]]
    sum(expected).backward()

    alpha = torch.tensor([ALPHA])
    torch.manual_seed(7)  # noise of the next actions, then of the actions
    noise, actor_noise = (torch.normal(torch.zeros(NUM_ROWS, 3), 1.0) for _ in range(2))
    qf_loss, _ = sac.critic_loss(policy, target, sampled, noise, alpha)
    qf_loss.backward()
    critic_gradients = [weights.grad.clone() for weights in policy.critics.parameters()]
    policy.critics.requires_grad_(False)
    pi_loss, log_prob = sac.actor_loss(policy, sampled.observations, actor_noise, alpha)
    pi_loss.backward()
    log_alpha = alpha.log().requires_grad_()
    temperature_loss = sac.alpha_loss(log_alpha, log_prob, -3.0)
    temperature_loss.backward()
    assert_equal([qf_loss, pi_loss, temperature_loss], expected)
    assert_equal(critic_gradients, gradients_of(reference.qvalue_network_params, policy.critics))
    assert_equal(
        [weights.grad for weights in policy.actor.parameters()],
        gradients_of(reference.actor_network_params, [Normal(policy)]),
    )
    assert_equal([log_alpha.grad], [reference.log_alpha.grad])


class Normal(torch.nn.Module):
    """The actor of SAC's policy as a module of its own, with the mean and the standard deviation as outputs."""

    def __init__(self, policy: sac.Policy) -> None:
        super().__init__()
        self.actor = policy.actor

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return sac.Policy.normal(self, observations)  # type: ignore[arg-type]


class Deterministic(torch.nn.Module):
    """The actor of TD3's policy as a module of its own."""

    def __init__(self, policy: td3.Policy) -> None:
        super().__init__()
        self.actor = policy.actor

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return td3.Policy.act(self, observations)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["td3", "ddpg"])
@pytest.mark.parametrize("seed", range(3))
def test_losses_and_gradients_of_td3_and_ddpg_are_torchrls(seed: int, algorithm: str) -> None:
    torch.manual_seed(seed)
    num_critics, policy_noise = (2, 0.2) if algorithm == "td3" else (1, 0.0)
    policy, sampled = td3.Policy(OBSERVATIONS, ACTIONS, (16, 16), num_critics), batch(seed)
    target = perturbed(policy, seed).requires_grad_(False)
    reference_policy = copy.deepcopy(policy)
    actor = TensorDictModule(Deterministic(reference_policy), in_keys=["observation"], out_keys=["action"])
    critics = [qvalue(critic) for critic in reference_policy.critics]
    if algorithm == "td3":
        spec = Bounded(-torch.ones(3), torch.ones(3), (3,))
        reference = TD3Loss(actor, critics, action_spec=spec, loss_function="l2", policy_noise=0.2, noise_clip=0.5)
        critic_parameters, target_parameters = reference.qvalue_network_params, reference.target_qvalue_network_params
    else:
        reference = DDPGLoss(actor, critics[0], loss_function="l2", delay_actor=True, delay_value=True)
        critic_parameters, target_parameters = reference.value_network_params, reference.target_value_network_params
    reference.make_value_estimator(ValueEstimators.TD0, gamma=GAMMA)
    fill_targets(target_parameters, target.critics)
    fill_targets(reference.target_actor_network_params, [Deterministic(target)])
    data = as_tensordict(sampled)
    torch.manual_seed(7)
    losses = reference(data)
    value_loss = losses["loss_qvalue" if algorithm == "td3" else "loss_value"]
    (value_loss + losses["loss_actor"]).backward()

    torch.manual_seed(7)
    noise = torch.randn_like(sampled.actions)
    qf_loss, _ = td3.critic_loss(policy, target, sampled, noise, policy_noise, 0.5)
    qf_loss.backward()
    critic_gradients = [weights.grad.clone() for weights in policy.critics.parameters()]
    policy.critics.requires_grad_(False)
    pi_loss = td3.actor_loss(policy, sampled.observations)
    pi_loss.backward()
    assert_equal([qf_loss, pi_loss], [value_loss, losses["loss_actor"]])
    assert_equal(critic_gradients, gradients_of(critic_parameters, policy.critics))
    assert_equal(
        [weights.grad for weights in policy.actor.parameters()],
        gradients_of(reference.actor_network_params, [Deterministic(policy)]),
    )


NUM_AGENTS = 3
# TorchRL's names of a mixer's weights, by ours.
MIXER_NAMES = {
    "first_weights": "hyper_w_1", "first_bias": "hyper_b_1", "last_weights": "hyper_w_final", "last_bias": "V",
}  # fmt: skip


class Team(torch.nn.Module):
    """The agents' network as a module of (…, agents, observation) and Q-values."""

    def __init__(self, policy: qmix.Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        rows = observations.reshape(-1, observations.shape[-1])
        return self.policy.outputs(rows, None, None)[0].reshape(*observations.shape[:-1], -1)


@pytest.mark.parametrize("mixer", ["qmix", "vdn"])
@pytest.mark.parametrize("seed", range(3))
def test_losses_and_gradients_of_qmix_and_vdn_are_torchrls(seed: int, mixer: str) -> None:
    """TorchRL's target network both prefers the next actions and values them; here it is the trained network's copy."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    config = qmix.Config(mixer=mixer, hypernet_size=0)  # linear hypernetworks, as TorchRL's
    networks = qmix.Networks(qmix.Policy(OBSERVATIONS, spaces.Discrete(4), NUM_AGENTS, 16), OBSERVATIONS, config)
    target = copy.deepcopy(networks)
    if mixer == "qmix":
        target.mixer = perturbed(networks.mixer, seed)
    observations = torch.rand(2, NUM_ROWS, NUM_AGENTS, 5, generator=draw) * 2 - 1
    actions = torch.randint(4, (NUM_ROWS, NUM_AGENTS), generator=draw)
    rewards = torch.randn(NUM_ROWS, generator=draw)
    ended = torch.arange(NUM_ROWS) % 3 == 0

    values, chosen = ("agents", "action_value"), ("agents", "chosen_action_value")
    team = TensorDictModule(Team(copy.deepcopy(networks.policy)), [("agents", "observation")], [values])
    choice = QValueModule("categorical", action_value_key=values, out_keys=[("agents", "action"), values, chosen])
    value_actor = SafeSequential(team, choice)
    reference_mixer = (
        QMixer((5 * NUM_AGENTS,), 32, NUM_AGENTS, "cpu") if mixer == "qmix" else VDNMixer(NUM_AGENTS, "cpu")
    )
    load(reference_mixer, networks.mixer)
    in_keys = [chosen, *(["state"] if mixer == "qmix" else [])]
    module = TensorDictModule(reference_mixer, in_keys=in_keys, out_keys=["chosen_action_value"])
    reference = QMixerLoss(value_actor, module, action_space="categorical", delay_value=True)
    reference.set_keys(
        action_value=values,
        local_value=chosen,
        global_value="chosen_action_value",
        action=("agents", "action"),
    )
    reference.make_value_estimator(ValueEstimators.TD0, gamma=GAMMA)
    if mixer == "qmix":
        perturbed_reference = copy.deepcopy(reference_mixer)
        load(perturbed_reference, target.mixer)
        fill_targets(reference.target_mixer_network_params, [perturbed_reference])
    after = {
        "agents": {"observation": observations[1]},
        "state": observations[1].flatten(1),
        "reward": rewards[:, None],
    }
    after |= {"done": ended[:, None], "terminated": ended[:, None]}
    columns = {"agents": {"observation": observations[0], "action": actions}, "state": observations[0].flatten(1)}
    expected = reference(TensorDict({**columns, "next": after}, [NUM_ROWS]))["loss"]
    expected.backward()

    shape = (1, NUM_ROWS, NUM_AGENTS)
    acted = torch.ones(shape, dtype=torch.bool)
    sampled = Sequences(
        observations,
        actions[None],
        rewards[None, :, None].expand(shape),
        acted,
        acted & ~ended[None, :, None],
        torch.zeros(2, *shape[1:], dtype=torch.bool),
        torch.zeros(*shape[1:], 0),
    )
    loss, _ = qmix.td_loss(networks, target, sampled, None, GAMMA, "mean")
    loss.backward()
    assert_equal([loss], [expected])
    policy_gradients = gradients_of(reference.local_value_network_params, [Team(networks.policy)])
    assert_equal([weights.grad for weights in networks.policy.parameters()], policy_gradients)
    if mixer == "qmix":
        flat = {
            PREFIX.sub("", name): values for name, values in reference.mixer_network_params.flatten_keys(".").items()
        }
        for name, weights in networks.mixer.named_parameters():
            assert_equal([weights.grad], [flat[reference_name(name)].grad])


def reference_name(name: str) -> str:
    """Return TorchRL's name of a QMixer's weights."""
    part, _, rest = name.partition(".")
    return f"{MIXER_NAMES[part]}.{rest}"


def load(reference: Any, mixer: Any) -> None:
    """Write a mixer's weights into TorchRL's mixer."""
    reference.load_state_dict({reference_name(name): weights for name, weights in mixer.state_dict().items()})
