"""PPO's clipped losses of a minibatch of segments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["ClippedLosses", "clipped_losses"]


class ClippedLosses(NamedTuple):
    """The losses, scalars with gradients, and numbers without. ratio: (segments, steps), without gradients."""

    policy: Tensor
    value: Tensor
    ratio: Tensor
    metrics: dict[str, Tensor]  # old_approx_kl, approx_kl, clipfrac, importance


def clipped_losses(
    log_probs: Tensor,
    values: Tensor,
    old_log_probs: Tensor,
    old_values: Tensor,
    advantages: Tensor,
    *,
    clip: float,
    value_clip: float | None,
    masks: Tensor,
    weights: Tensor | float = 1.0,
) -> ClippedLosses:
    """Return the losses of actions, each the mean over those with a mask.

    All tensors are (segments, steps). log_probs, values: of the policy now; old_log_probs, old_values: when it acted.
    advantages: with which the old values give the returns; for the policy they are normalized, and multiplied with
    ``weights``, (segments, 1). clip: bound of the probabilities' ratio around 1. value_clip: bound of the values'
    change; None for none. masks: True for the actions that count, at least one.

    Source: Schulman et al., arXiv:1707.06347, eq. 7 and 9; the value's clip is of OpenAI's baselines.
    """
    share = masks.to(values.dtype) / masks.sum()
    mean = (advantages * share).sum()
    deviation = ((advantages - mean).square() * share).sum().sqrt()
    normalized = weights * (advantages - mean) / (deviation + 1e-8)
    log_ratio = log_probs - old_log_probs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    policy = -torch.min(normalized * ratio, normalized * clipped)
    returns = advantages + old_values
    errors = (values - returns).square()
    if value_clip is not None:
        near = old_values + (values - old_values).clamp(-value_clip, value_clip)
        errors = torch.max(errors, (near - returns).square())
    with torch.no_grad():
        terms = {
            "old_approx_kl": -log_ratio,
            "approx_kl": ratio - 1 - log_ratio,
            "clipfrac": (ratio != clipped).to(values.dtype),
            "importance": ratio,
        }
        metrics = {name: (term * share).sum() for name, term in terms.items()}
    return ClippedLosses((policy * share).sum(), 0.5 * (errors * share).sum(), ratio.detach(), metrics)
