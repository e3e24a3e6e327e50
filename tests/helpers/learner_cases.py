"""Cases for the compiled learner: networks, actions and rows, and torch's autograd, which is the reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete, Tuple
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor, nn

from cuda_ext.learner.fused import TERMS, FusedLearner, Rows, Settings
from pufferlib.models import Decisions

__all__ = [
    "CASES",
    "Case",
    "Reference",
    "compare",
    "compare_actions",
    "compare_advantages",
    "compare_calls",
    "compare_tanh",
    "fused_of",
    "near",
    "outcomes_of",
]

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


@dataclass(frozen=True)
class Case:
    """Networks, actions and rows to learn from, drawn with a seed."""

    num_inputs: int = 3
    hidden: tuple[int, ...] = (9, 5)
    activation: str = "tanh"
    nvec: tuple[int, ...] = (3, 2)
    num_continuous: int = 2
    num_rows: int = 150
    num_minibatches: int = 2
    has_forbidden: bool = True  # options
    has_absent: bool = True  # rows
    objective: str = "ppo"
    max_grad_norm: float = 0.5
    clip: float = 0.2
    value_coefficient: float = 0.5
    advantage_floor: float = 0.1
    advantage_scale: float = 1.0
    most_groups: int = 16
    seed: int = 0

    def settings(self) -> Settings:
        return Settings(
            self.objective,
            clip=self.clip,
            entropy_coefficient=0.05,
            value_coefficient=self.value_coefficient,
            advantage_floor=self.advantage_floor,
            max_grad_norm=self.max_grad_norm,
            most_groups=self.most_groups,
        )

    def networks(self) -> tuple[nn.Sequential, nn.Sequential, nn.Parameter]:
        torch.manual_seed(self.seed)

        def network(num_outputs: int) -> nn.Sequential:
            widths = (self.num_inputs, *self.hidden)
            layers = [
                part
                for inputs, outputs in itertools.pairwise(widths)
                for part in (nn.Linear(inputs, outputs), ACTIVATIONS[self.activation]())
            ]
            return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))

        return (
            network(sum(self.nvec) + self.num_continuous),
            network(1),
            nn.Parameter(0.3 * torch.randn(self.num_continuous)),
        )

    def rows(self) -> Rows:
        generator = np.random.default_rng(self.seed)
        count, num_options = self.num_rows, sum(self.nvec)

        def normal(*shape: int) -> Any:
            return generator.normal(size=shape).astype(np.float32)

        allowed = generator.random((count, num_options)) < 0.7
        allowed[: count // 10] = False  # rows in which nothing is allowed, as those of absent agents
        actions = np.zeros((count, len(self.nvec)), np.int64)
        for part, (n, first) in enumerate(zip(self.nvec, np.cumsum((0, *self.nvec)), strict=False)):
            preference = generator.random((count, n)) + (allowed[:, first : first + n] if self.has_forbidden else 0)
            actions[:, part] = preference.argmax(1)
        return Rows(
            normal(count, self.num_inputs),
            actions,
            normal(count, self.num_continuous),
            -1.5 * generator.random(count).astype(np.float32) * (len(self.nvec) + self.num_continuous),
            np.float32(self.advantage_scale) * (2 * normal(count) + 1),
            normal(count),
            allowed if self.has_forbidden else None,
            generator.random(count) < 0.8 if self.has_absent else None,
        )

    def minibatches(self, epoch: int = 0) -> list[np.ndarray]:
        shuffled = np.random.default_rng([self.seed, epoch]).permutation(self.num_rows)
        return np.array_split(shuffled, self.num_minibatches)


def decisions_of(case: Case) -> Decisions:
    parts: list[Any] = [MultiDiscrete(list(case.nvec))] if case.nvec else []
    return Decisions(Tuple([*parts, *([Box(-1, 1, (case.num_continuous,))] if case.num_continuous else [])]))


class Reference:
    """The same learner in torch, in float64.

    kink_distance: the smallest input of a ReLU so far, without its sign. If it is as small as an error of float32, the
    compiled learner may place the unit on the other side of 0.
    """

    def __init__(self, case: Case) -> None:
        actor, critic, log_std = case.networks()
        self.actor, self.critic = actor.double(), critic.double()
        self.log_std = nn.Parameter(log_std.detach().double())
        self.parameters = [*self.actor.parameters(), *self.critic.parameters(), self.log_std]
        self.gradients = [torch.zeros_like(part) for part in self.parameters]
        self.optimizer = torch.optim.Adam(self.parameters, 1.0, eps=1e-5)
        self.decisions = decisions_of(case)
        self.settings = case.settings()
        self.kink_distance = np.inf
        for part in (*self.actor, *self.critic):
            if isinstance(part, nn.ReLU):
                part.register_forward_pre_hook(self.measure)

    def measure(self, relu: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        self.kink_distance = min(self.kink_distance, float(inputs[0].detach().abs().min()))

    def update(self, rows: Rows, minibatch: np.ndarray, learning_rate: float) -> dict[str, float]:
        """Take a step of Adam, and return the terms."""
        settings = self.settings
        if rows.masks is not None:
            minibatch = minibatch[rows.masks[minibatch]]
        if not len(minibatch):
            return dict.fromkeys(TERMS, 0.0)

        def column(values: Any) -> Tensor:
            tensor = torch.from_numpy(values[minibatch])
            return tensor.double() if tensor.is_floating_point() else tensor

        features = column(rows.features)
        mask = None if rows.allowed is None else column(rows.allowed)
        outputs = self.decisions.outputs(self.actor(features), self.log_std)
        distribution = self.decisions.distribution(outputs, mask)
        log_probs = distribution.log_prob(column(rows.discrete_actions), column(rows.continuous_actions))
        advantages = column(rows.advantages)
        advantages = (advantages - advantages.mean()) / advantages.std(correction=0).clamp(min=settings.advantage_floor)
        log_ratios = log_probs - column(rows.log_probs)
        ratios = log_ratios.exp()
        bounded = ratios.clamp(1 - settings.clip, 1 + settings.clip)
        goals = torch.min(ratios * advantages, bounded * advantages)
        approx_kls, clipfracs = ratios - 1 - log_ratios, (ratios != bounded).double()
        if settings.objective == "a2c":
            goals, approx_kls, clipfracs = log_probs * advantages, 0 * ratios, 0 * ratios
        v_losses = 0.5 * (self.critic(features)[:, 0] - column(rows.returns)).square()
        entropies = distribution.entropy()
        losses = settings.value_coefficient * v_losses - goals - settings.entropy_coefficient * entropies
        self.optimizer.zero_grad()
        losses.mean().backward()
        none = torch.zeros(())
        self.gradients = [(none if part.grad is None else part.grad).clone() for part in self.parameters]
        norm = nn.utils.clip_grad_norm_(self.parameters, math.inf)
        for part in self.parameters:
            if part.grad is not None:
                part.grad.mul_(min(1.0, settings.max_grad_norm / float(norm)))
        self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.step()
        terms = [float(part.detach().mean()) for part in (-goals, v_losses, entropies, approx_kls, clipfracs)]
        return dict(zip(TERMS, [*terms, float(norm)], strict=True))


def fused_of(case: Case, **kwargs: Any) -> FusedLearner:
    return FusedLearner(*case.networks(), case.nvec, case.settings(), **kwargs)


def near(actual: Any, expected: Any, share: float) -> None:
    """Assert that no element differs by more than a share of the tensor's largest, or of a tenth if that is less."""
    expected = np.asarray(expected)
    if expected.size:
        bound = share * max(0.1, np.abs(expected).max())
        np.testing.assert_allclose(actual, expected, rtol=0, atol=bound)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: others only wait for the small operations here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@one_thread()
def compare(case: Case, num_epochs: int = 1, share: float = 1e-5, *, avoid_kinks: bool = False) -> None:
    """Assert that the compiled learner and torch agree: terms and gradients in the first update, then weights.

    avoid_kinks: whether Hypothesis draws another case if an input of a ReLU is as small as an error of float32.
    """
    learner, reference, rows = fused_of(case), Reference(case), case.rows()
    for epoch in range(num_epochs):
        for index, minibatch in enumerate(case.minibatches(epoch)):
            terms = learner.update(rows, [minibatch], 1e-3)[0]
            expected = reference.update(rows, minibatch, 1e-3)
            if avoid_kinks:
                assume(reference.kink_distance > 1e-6)
            if epoch == index == 0:
                for name, term in zip(TERMS, terms, strict=True):
                    assert term == pytest.approx(expected[name], rel=2e-5, abs=2e-5), name
                for actual, gradient in zip(learner.by_parameter(learner.gradients), reference.gradients, strict=True):
                    near(actual, gradient, share)
    for actual, weights in zip(learner.by_parameter(learner.weights), reference.parameters, strict=True):
        near(actual, weights.detach(), 1e-4)


def compare_calls(case: Case) -> None:
    """Assert that one call with several minibatches does what a call for each does."""
    one, other, rows, minibatches = fused_of(case), fused_of(case), case.rows(), case.minibatches()
    terms = [other.update(rows, [minibatch], 1e-2)[0] for minibatch in minibatches]
    np.testing.assert_array_equal(one.update(rows, minibatches, 1e-2), terms)
    np.testing.assert_array_equal(one.weights, other.weights)


@one_thread()
def compare_actions(case: Case) -> None:
    """Assert that actions, log-probabilities and values are torch's, given the same random numbers."""
    learner, rows, (actor, critic, log_std) = fused_of(case), case.rows(), case.networks()
    with torch.no_grad():
        features = torch.from_numpy(rows.features)
        allowed = None if rows.allowed is None else torch.from_numpy(rows.allowed)
        decisions = decisions_of(case)
        distribution = decisions.distribution(decisions.outputs(actor(features), log_std), allowed)
        actions = distribution.sample(torch.Generator().manual_seed(case.seed))
        expected = (*actions, distribution.log_prob(*actions), critic(features)[:, 0])
    batch, generator = learner.inference_batch(case.num_rows), torch.Generator().manual_seed(case.seed)
    batch.features[:] = rows.features
    batch.infer()
    for part in batch.exponentials:
        torch.from_numpy(part).exponential_(generator=generator)
    if case.num_continuous:
        torch.from_numpy(batch.normals).normal_(generator=generator)
    batch.draw(rows.allowed)
    np.testing.assert_array_equal(batch.discrete_actions, expected[0])
    for actual, column in zip((batch.continuous_actions, batch.log_probs, batch.values), expected[1:], strict=True):
        near(actual, column, 1e-5)


def compare_tanh() -> None:
    """Assert that hidden units are tanh of their inputs, however large those are."""
    actor, critic = (nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)) for _ in range(2))
    with torch.no_grad():
        for name, part in actor.named_parameters():
            part.fill_(1 if name.endswith("weight") else 0)
    learner = FusedLearner(actor, critic, nn.Parameter(torch.zeros(1)), (), Settings())
    numbers = np.linspace(-20, 20, 20_001, dtype=np.float32)[:, None]
    numbers = np.concatenate([numbers, [[-1e30], [-300], [300], [1e30]]]).astype(np.float32)
    np.testing.assert_allclose(learner.policy_outputs(numbers), np.tanh(numbers.astype(np.float64)), rtol=3.1e-7)


def advantages(rewards: Any, values: Any, terminations: Any, truncations: Any, masks: Any, *, gamma: float,
               gae_lambda: float) -> Any:  # fmt: skip
    """Generalized advantage estimates by their definition: sums over the steps until an episode or the rollout ends."""
    estimates = np.zeros(rewards.shape)
    for step, agent in np.argwhere(masks):
        decay = 1.0
        for t in range(step, len(rewards)):
            if not masks[t, agent]:
                break
            next_value = 0 if terminations[t, agent] else values[t + 1, agent]
            estimates[step, agent] += decay * (rewards[t, agent] + gamma * next_value - values[t, agent])
            decay *= gamma * gae_lambda
            if terminations[t, agent] or truncations[t, agent]:
                break
    return estimates


def outcomes_of(seed: int = 0) -> tuple[Any, Any, Any, Any, Any]:
    generator, shape = np.random.default_rng(seed), (12, 5)
    rewards, values = (generator.normal(size=(rows, 5)).astype(np.float32) for rows in (12, 13))
    terminations, truncations, masks = (generator.random(shape) < share for share in (0.15, 0.15, 0.9))
    return rewards, values, terminations, truncations, masks


def compare_advantages(learner: FusedLearner) -> None:
    columns = outcomes_of()
    expected = advantages(*columns, gamma=0.9, gae_lambda=0.8)
    near(learner.advantages(*columns, gamma=0.9, gae_lambda=0.8), expected, 1e-6)


CASES = st.builds(
    Case,
    num_inputs=st.integers(1, 20),
    hidden=st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    nvec=st.lists(st.integers(1, 6), max_size=3).map(tuple),
    num_continuous=st.integers(0, 3),
    num_rows=st.integers(4, 300),
    num_minibatches=st.integers(1, 3),
    has_forbidden=st.booleans(),
    has_absent=st.booleans(),
    objective=st.sampled_from(["ppo", "a2c"]),
    max_grad_norm=st.sampled_from([0.1, 0.5, 100.0]),
    clip=st.sampled_from([0.05, 0.2, 0.5]),
    value_coefficient=st.sampled_from([0.1, 0.5, 2.0]),
    advantage_floor=st.sampled_from([0.01, 0.1, 1.0]),
    advantage_scale=st.sampled_from([0.01, 1.0]),
    most_groups=st.sampled_from([1, 3, 16]),
    seed=st.integers(0, 2**31),
).filter(lambda case: case.nvec or case.num_continuous)
