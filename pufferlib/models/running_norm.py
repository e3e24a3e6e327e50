"""Observations at mean 0 and deviation 1, by statistics that are a part of the policy's weights.

So they are saved with it, and stand still wherever it only plays: nothing but ``observe`` changes them. A trainer calls
it between rollouts; within one, and while that is learnt from, the policy must see an observation in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["RunningNorm", "observe"]

SHOWN_NBYTES = 1 << 24  # of rows, shown at once: what convolutions make of a whole rollout of images takes gigabytes


class RunningNorm(nn.Module):
    """Numbers, (rows, size) float32, standardised by all rows that ``observe`` has shown so far.

    which: (size,) bool, the columns that are; others stay as they are. bound: of what comes out.
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
            self._take_in(numbers.detach())
        spread = (self.variance + 1e-8).sqrt()
        return ((numbers - self.mean) / spread).clamp(-self.bound, self.bound)

    def _take_in(self, numbers: Tensor) -> None:
        """Join the moments of these rows with those so far: Chan, Golub, LeVeque, 1983."""
        if not len(numbers):
            return
        variance, mean = torch.var_mean(numbers, 0, correction=0)
        share = len(numbers) / (self.count + len(numbers))
        apart = mean - self.mean
        joined = torch.where(
            self.count == 0, variance, self.variance.lerp(variance, share) + share * (1 - share) * apart.square()
        )
        self.variance.copy_(torch.where(self._which, joined, self.variance))
        self.mean.copy_(torch.where(self._which, self.mean + share * apart, self.mean))
        self.count += len(numbers)


@torch.no_grad()
def observe(policy: nn.Module, observations: Tensor) -> None:
    """Have all statistics in a policy take in these flat rows; where it has none, nothing happens."""
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
