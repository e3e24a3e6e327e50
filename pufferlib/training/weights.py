"""A policy's weights as one vector, which is faster to clip and to update than many small tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["ALIGNMENT", "aligned", "as_one", "begins_of"]

ALIGNMENT = 32  # floats, or 128 bytes: cuBLAS uses slower kernels for matrices at other addresses


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


def aligned(policy: nn.Module) -> Tensor:
    """Move a policy's weights into one vector, with a gradient of zeros, and return the vector.

    The policy's parameters and their gradients become views of the vector and of its gradient. Unlike in
    ``as_one``, each parameter begins at a multiple of ALIGNMENT, with zeros in between.
    """
    parts = list(policy.parameters())
    begins = begins_of([part.numel() for part in parts])
    weights = parts[0].detach().new_zeros(begins[-1])
    weights.grad = torch.zeros_like(weights)
    for begin, part in zip(begins, parts, strict=False):
        span = slice(begin, begin + part.numel())
        weights[span] = part.detach().reshape(-1)
        part.data = weights[span].view_as(part)
        part.grad = weights.grad[span].view_as(part)
    return weights


def begins_of(sizes: Sequence[int]) -> list[int]:
    """Return the offset of each part, a multiple of ALIGNMENT, then the padded total size. sizes: the parts' sizes."""
    return [0, *itertools.accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]
