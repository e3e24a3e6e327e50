"""Segments of rollouts: storage, V-trace, prioritized draws, clipped losses, and the optimizers by name."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pufferlib
from pufferlib.training.clipped_losses import clipped_losses
from pufferlib.training.optimizers import MatrixMuon, make_optimizer
from pufferlib.training.segments import Segments, prioritized
from pufferlib.training.vtrace import vtrace_advantages

pytestmark = pytest.mark.beside


def by_definition(values: Any, rewards: Any, ratio: Any, ends: Any, gamma: float, lam: float, clips: Any) -> Any:
    """V-trace's advantages, action by action. ends: terminations, truncations, masks."""
    terminations, truncations, masks = ends
    advantages = np.zeros_like(values)
    for row in range(len(values)):
        for step in range(values.shape[1] - 1):
            total, factor, at = 0.0, 1.0, step
            while at < values.shape[1] - 1 and masks[row, at + 1]:
                next_value = 0.0 if terminations[row, at + 1] else values[row, at + 1]
                delta = rewards[row, at + 1] + gamma * next_value - values[row, at]
                total += factor * min(ratio[row, at], clips[0]) * delta
                if terminations[row, at + 1] or truncations[row, at + 1]:
                    break
                factor *= gamma * lam * min(ratio[row, at], clips[1])
                at += 1
            advantages[row, step] = total
    return advantages


@pytest.mark.parametrize("seed", range(3))
def test_vtrace_equals_its_definition(seed: int) -> None:
    draw = np.random.default_rng(seed)
    values, rewards = draw.normal(size=(2, 4, 9)).astype(np.float32)
    ratio = draw.uniform(0.3, 2, (4, 9)).astype(np.float32)
    ends = draw.random((3, 4, 9)) < np.array([0.2, 0.2, 0.8])[:, None, None]
    expected = by_definition(values, rewards, ratio, ends, 0.97, 0.9, (1.2, 0.8))
    tensors = [torch.from_numpy(array) for array in (values, rewards, ends[0], ratio)]
    truncations, masks = torch.from_numpy(ends[1]), torch.from_numpy(ends[2])
    found_advantages = vtrace_advantages(*tensors, 0.97, 0.9, 1.2, 0.8, truncations=truncations, masks=masks)
    np.testing.assert_allclose(found_advantages, expected, rtol=1e-4, atol=1e-5)
    expected = by_definition(values, rewards, ratio, [ends[0], 0 * ends[1], ends[2] | True], 0.97, 0.9, (1, 1))
    np.testing.assert_allclose(vtrace_advantages(*tensors, 0.97, 0.9), expected, rtol=1e-4, atol=1e-5)


def test_segments_hold_each_agents_steps_in_order() -> None:
    """Agents come in any order, some more often than others; the steps that find no segment are dropped."""
    draw = np.random.default_rng(1)
    segments = Segments(5, 8, 4, {"agent": ((), torch.int64), "step": ((2,), torch.float32)})
    for _ in range(2):
        segments.start()
        counts = np.zeros(5, int)
        while not segments.is_full:
            ids = draw.choice(5, 3, replace=False, p=[0.4, 0.3, 0.1, 0.1, 0.1])
            steps = torch.from_numpy(counts[ids]).float()
            segments.add(ids, {"agent": torch.from_numpy(ids), "step": torch.stack([steps, -steps], 1)})
            counts[ids] += 1
        agents, steps = segments["agent"], segments["step"][..., 0]
        assert agents.shape == (8, 4)
        assert torch.equal(agents, agents[:, :1].expand(8, 4))
        assert torch.equal(steps - steps[:, :1], torch.arange(4.0).expand(8, 4))
        starts = [(int(agent), int(step)) for agent, step in zip(agents[:, 0], steps[:, 0], strict=True)]
        assert len({*starts}) == 8
        assert {agent for agent, _ in starts} == {*range(5)}
        assert all(step % 4 == 0 for _, step in starts)
        assert torch.equal(segments["step"][..., 1], -steps)
    with pytest.raises(pufferlib.PlanError, match="3 segments"):
        Segments(5, 3, 4, {})
    with pytest.raises(pufferlib.PlanError, match="horizon=0"):
        Segments(5, 5, 0, {})


def test_segments_are_drawn_by_their_priorities() -> None:
    torch.manual_seed(1)
    advantages = torch.tensor([[1.0, -1.0], [3.0, 1.0], [0.0, 0.0], [-2.0, 0.0]])
    shares = torch.tensor([2, 4, 0, 2.0]) ** 0.5
    shares /= shares.sum()
    indices = torch.cat([prioritized(advantages, 1, 0.5, 1.0)[0] for _ in range(1000)])
    assert torch.allclose(torch.bincount(indices, minlength=4) / 1000, shares, atol=0.08)  # five standard deviations
    indices, weights = prioritized(advantages, 3, 0.5, 0.6)
    assert {*indices.tolist()} == {0, 1, 3}
    assert torch.allclose(weights[:, 0], (4 * shares[indices]) ** -0.6, rtol=1e-3)
    assert torch.allclose(prioritized(advantages, 4, 0.0, 0.6)[1], torch.ones(4, 1))


def test_clipped_losses_are_means_over_the_actions_that_count() -> None:
    torch.manual_seed(2)
    log_probs, values, old_log_probs, old_values, advantages = torch.randn(5, 3, 6, dtype=torch.float64)
    log_probs, values = log_probs.requires_grad_(), values.requires_grad_()
    masks, weights = torch.rand(3, 6) < 0.7, torch.rand(3, 1, dtype=torch.float64)
    arguments = (log_probs, values, old_log_probs, old_values, advantages)
    losses = clipped_losses(*arguments, clip=0.2, value_clip=0.3, masks=masks, weights=weights)

    flat = [part[masks] for part in (*arguments, weights.expand(3, 6))]
    policy_loss, value_loss = [], []
    mean, deviation = flat[4].mean(), flat[4].std(correction=0)
    for new, value, old, old_value, advantage, weight in zip(*flat, strict=True):
        scaled = weight * (advantage - mean) / deviation
        ratio = (new - old).exp()
        policy_loss.append(-min(scaled * ratio, scaled * ratio.clamp(0.8, 1.2)))
        target = advantage + old_value
        near = old_value + (value - old_value).clamp(-0.3, 0.3)
        value_loss.append(0.5 * max((value - target) ** 2, (near - target) ** 2))
    assert torch.allclose(losses.policy, torch.stack(policy_loss).mean())
    assert torch.allclose(losses.value, torch.stack(value_loss).mean())
    ratios = (flat[0] - flat[2]).exp()
    assert torch.allclose(losses.metrics["clipfrac"], ((ratios - 1).abs() > 0.2).double().mean())
    assert torch.allclose(losses.metrics["importance"], ratios.mean())
    assert torch.allclose(losses.metrics["old_approx_kl"], (flat[2] - flat[0]).mean())
    (losses.policy + losses.value).backward()
    assert not log_probs.grad[~masks].any()
    assert not values.grad[~masks].any()
    free = clipped_losses(*arguments, clip=0.2, value_clip=None, masks=masks)
    assert torch.allclose(free.value, 0.5 * (flat[1] - flat[4] - flat[3]).square().mean())


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.Flatten(), nn.Linear(6 * 4, 4))


def stepped(policy: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int = 3) -> Tensor:
    for step in range(num_steps):
        optimizer.zero_grad()
        policy(torch.full((1, 2, 4, 4), 1.0 + step)).square().sum().backward()
        optimizer.step()
    return torch.cat([part.detach().ravel() for part in policy.parameters()])


def test_muon_takes_matrices_and_sgd_the_rest() -> None:
    policy, other = network(), network()
    weights = stepped(policy, make_optimizer("muon", policy.parameters(), 0.01, (0.9, 0.999), 1e-8))
    kernel = nn.Parameter(other[0].weight.detach().flatten(1))
    options = {"lr": 0.01, "momentum": 0.9}
    muon = torch.optim.Muon([kernel, other[2].weight], weight_decay=0, adjust_lr_fn="original", **options)
    sgd = torch.optim.SGD([other[0].bias, other[2].bias], nesterov=True, **options)
    for step in range(3):
        other.zero_grad()
        other(torch.full((1, 2, 4, 4), 1.0 + step)).square().sum().backward()
        kernel.grad = other[0].weight.grad.flatten(1)
        muon.step()
        sgd.step()
        other[0].weight.data = kernel.detach().view(6, 2, 3, 3)
    assert torch.allclose(weights, torch.cat([part.detach().ravel() for part in other.parameters()]))


def test_muon_updates_weights_of_any_memory_format() -> None:
    plain, other = network(), network().to(memory_format=torch.channels_last)
    assert not other[0].weight.is_contiguous()
    one, another = (
        stepped(policy, make_optimizer("muon", policy.parameters(), 0.01, (0.9, 0.999), 1e-8))
        for policy in (plain, other)
    )
    assert torch.allclose(one, another, rtol=0, atol=2e-3)  # a step is some 0.01, computed in bfloat16


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_an_optimizer_goes_on_from_its_state(name: str) -> None:
    policy = network()
    optimizer = make_optimizer(name, policy.parameters(), 0.01, (0.9, 0.999), 1e-8)
    stepped(policy, optimizer)
    optimizer.param_groups[0]["lr"] = 0.003
    other = network()
    other.load_state_dict(policy.state_dict())
    resumed = make_optimizer(name, other.parameters(), 0.01, (0.9, 0.999), 1e-8)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(stepped(policy, optimizer), stepped(other, resumed))


def test_a_learning_rate_schedule_reaches_both_parts_of_muon() -> None:
    policy = network()
    optimizer = make_optimizer("muon", policy.parameters(), 0.01, (0.9, 0.999), 1e-8)
    before = torch.cat([part.detach().ravel().clone() for part in policy.parameters()])
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.0)
    assert torch.equal(stepped(policy, optimizer, 1), before)
    assert isinstance(optimizer, MatrixMuon)


def test_unknown_optimizers_and_old_versions_of_torch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pufferlib.PlanError, match="optimizer='sgd' is none; use adam or muon"):
        make_optimizer("sgd", network().parameters(), 0.01, (0.9, 0.999), 1e-8)
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(pufferlib.PlanError, match="torch>=2.9"):
        make_optimizer("muon", network().parameters(), 0.01, (0.9, 0.999), 1e-8)
