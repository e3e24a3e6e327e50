"""Advantage estimates of segments of equal length, with V-trace's corrections for actions of an older policy."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["vtrace_advantages"]


def vtrace_advantages(
    values: Tensor,
    rewards: Tensor,
    terminations: Tensor,
    ratio: Tensor,
    gamma: float,
    gae_lambda: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    *,
    truncations: Tensor | None = None,
    masks: Tensor | None = None,
) -> Tensor:
    """Return the advantage of each action, (segments, steps); 0 in the last column, whose outcome is not known.

    All tensors are (segments, steps). values: of the observation of each column. ratio: the probability of the action
    that answered it, now, divided by that when it was taken. rewards, terminations, truncations and masks of a column
    came with its observation, so that they are the outcome of the column before. terminations: no value is added.
    truncations: the value of this column's observation, the episode's last, is added; by default there are none.
    masks: False where the action before did not count; its advantage is then 0. By default all count.

    Source: Espeholt et al., arXiv:1802.01561, section 4.1, with the decay of generalised advantage estimates (Schulman
    et al., arXiv:1506.02438); with ratios of 1 and clips of at least 1 these are the latter.
    """
    advantages = torch.zeros_like(values)
    continues = 1 - terminations[:, 1:].to(values.dtype)
    bootstrap = gamma * values[:, 1:] * continues
    deltas = ratio[:, :-1].clamp(max=rho_clip) * (rewards[:, 1:] + bootstrap - values[:, :-1])
    decays = gamma * gae_lambda * ratio[:, :-1].clamp(max=c_clip) * continues
    if truncations is not None:
        decays = decays * (1 - truncations[:, 1:].to(values.dtype))
    if masks is not None:
        deltas, decays = (part * masks[:, 1:].to(values.dtype) for part in (deltas, decays))
    last = values.new_zeros(len(values))
    for step in range(values.shape[1] - 2, -1, -1):
        last = advantages[:, step] = deltas[:, step] + decays[:, step] * last
    return advantages
