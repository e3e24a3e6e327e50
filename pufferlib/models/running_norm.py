"""Normalization of observations to mean 0 and standard deviation 1, by statistics that are part of a policy's weights.

The statistics are saved with the policy, and only ``observe`` changes them. A trainer calls it between rollouts,
because a policy must normalize an observation in the same way when it plays a rollout and when it learns from it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["RunningNorm", "observe"]

SHOWN_NBYTES = 1 << 24  # of rows per call: the activations of convolutions take gigabytes for a whole rollout of images


class RunningNorm(nn.Module):
    """A layer that standardizes numbers by the statistics of all rows passed to ``observe`` so far.

    Numbers are (rows, size) float32. which: (size,) bool, the columns to standardize; the others are only clipped.
    bound: the absolute value to which results are clipped.
    """

    _which: Tensor
    mean: Tensor  # (size,) float32
    variance: Tensor  # (size,) float32
    count: Tensor  # () int64, rows so far

    def __init__(self, which: Tensor, bound: float = 10.0) -> None:
        super().__init__()
        self.bound, self.observing = bound, False
        self.register_buffer("_which", which.clone(), persistent=False)
        self.register_buffer("mean", torch.zeros(len(which)))
        self.register_buffer("variance", torch.ones(len(which)))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the standardized numbers; during ``observe``, first update the statistics with these rows."""
        if self.observing:
            self._update(numbers.detach())
        std = (self.variance + 1e-8).sqrt()
        return ((numbers - self.mean) / std).clamp(-self.bound, self.bound)

    def _update(self, numbers: Tensor) -> None:
        """Update the mean, the variance and the count with these rows. Source: Chan, Golub and LeVeque, 1983."""
        if not len(numbers):
            return
        variance, mean = torch.var_mean(numbers, 0, correction=0)
        share = len(numbers) / (self.count + len(numbers))
        shift = mean - self.mean
        joined = torch.where(
            self.count == 0, variance, self.variance.lerp(variance, share) + share * (1 - share) * shift.square()
        )
        self.variance.copy_(torch.where(self._which, joined, self.variance))
        self.mean.copy_(torch.where(self._which, self.mean + share * shift, self.mean))
        self.count += len(numbers)


@torch.no_grad()
def observe(policy: nn.Module, observations: Tensor) -> None:
    """Update all running statistics of a policy with flat rows of observations; do nothing if the policy has none."""
    norms = [module for module in policy.modules() if isinstance(module, RunningNorm)]
    if not norms or not len(observations):
        return
    for norm in norms:
        norm.observing = True
    first = getattr(policy, "initial_state", None)
    try:
        for rows in observations.split(max(1, SHOWN_NBYTES // (observations[0].nbytes or 1))):
            policy(rows, None if first is None else first(len(rows)), None)
    finally:
        for norm in norms:
            norm.observing = False
