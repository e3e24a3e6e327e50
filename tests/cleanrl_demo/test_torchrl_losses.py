"""The losses of SAC, TD3 and DDPG, and their gradients, against TorchRL's objectives on random batches.

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
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import DDPGLoss, SACLoss, TD3Loss, ValueEstimators

from cleanrl_demo import sac, td3
from pufferlib.layout import observation_layout
from pufferlib.training.replay_buffer import Transitions

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
