"""Normalize observations to mean 0 and standard deviation 1, by statistics that are part of the policy's weights.

The statistics are saved with the policy, and only ``observe`` changes them. A trainer calls it between rollouts: while
a rollout is played and learnt from, the policy must normalize each observation in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["RunningNorm", "observe"]

SHOWN_NBYTES = 1 << 24  # of rows per call: the activations of convolutions on a whole rollout of images take gigabytes


class RunningNorm(nn.Module):
    """Standardizes numbers, (rows, size) float32, by the statistics of all rows passed to ``observe`` so far.

    which: (size,) bool, the columns to standardize; others do not change. bound: of the absolute results.
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
        """Return the numbers standardised."""
        if self.observing:
            self._update(numbers.detach())
        std = (self.variance + 1e-8).sqrt()
        return ((numbers - self.mean) / std).clamp(-self.bound, self.bound)

    def _update(self, numbers: Tensor) -> None:
        """Combine the moments of these rows with those so far: Chan, Golub, LeVeque, 1983."""
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
    """Update all statistics of a policy with these flat rows; do nothing if it has none."""
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
