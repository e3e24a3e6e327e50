"""Shared parts of updates: minibatches of the rows to learn from, and a policy's weights as one vector.

Minibatches have at least two rows if possible: advantages are centred on their mean, so the advantage of a single row
would be zero, and nothing would be learnt.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pufferlib.errors import PlanError

__all__ = ["as_one", "require_rows", "shares"]


def require_rows(config: Any, num_rows: int) -> None:
    """Raise PlanError if ``num_minibatches`` is too large for every minibatch to have at least two rows.

    config: a trainer's settings; those without ``num_minibatches`` are accepted. num_rows: the largest number of rows
    that an update can have.
    """
    num_minibatches = getattr(config, "num_minibatches", None)
    if num_minibatches is None or num_rows >= 2 * num_minibatches:
        return
    use = f"1 to {num_rows // 2}, or larger rollouts" if num_rows > 1 else "larger rollouts"
    raise PlanError(
        f"num_minibatches={num_minibatches} with at most {num_rows} rows per update: nothing is learnt from "
        f"minibatches with fewer than two rows; use {use}"
    )


def shares(rows: torch.Tensor, num_minibatches: int, at_least: int = 2) -> tuple[torch.Tensor, ...]:
    """Return rows split into ``num_minibatches`` minibatches, whose sizes differ by at most one.

    at_least: the minimum number of rows in a minibatch. If there are too few rows for ``num_minibatches`` of this size,
    the rows are split into fewer minibatches; fewer than twice ``at_least`` rows are not split.
    """
    return rows.tensor_split(max(1, min(num_minibatches, len(rows) // at_least)))


def as_one(policy: nn.Module) -> torch.Tensor:
    """Move a policy's weights into one vector, with a gradient of zeros, and return the vector.

    The policy's parameters and their gradients become views of this vector and of its gradient. Clipping and applying
    gradients takes only a few operations on one long vector. In an earlier version, the same operations on a dozen
    small tensors, one after another, took a quarter of an update's time.
    """
    weights = nn.utils.parameters_to_vector(policy.parameters()).detach()
    weights.grad = torch.zeros_like(weights)
    nn.utils.vector_to_parameters(weights, policy.parameters())
    begin = 0
    for part in policy.parameters():
        part.grad = weights.grad[begin : begin + part.numel()].view_as(part)
        begin += part.numel()
    return weights
