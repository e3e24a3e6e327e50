"""Actions of environments that are a kernel: as tensors on a device, and either options or numbers, never both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pufferlib.models.distributions import Decisions, range_of

__all__ = ["KernelActions", "pair"]


class KernelActions:
    """The actions of kernel environments, on a device, as a policy has them and as environments have them.

    A policy has options, int64 (rows, width), or the numbers of a Box, float32 (rows, width), where -1 to 1 spans the
    bounds. Environments have the options themselves, and numbers between the bounds. No method copies anything from the
    host, so a CUDA graph can capture them.

    decisions: those of the policy.
    """

    def __init__(self, decisions: Decisions, device: torch.device | str) -> None:
        self.is_continuous = decisions.num_aims > 0
        self.width, self.dtype = len(decisions.nvec), torch.int64
        if self.is_continuous:
            self.width, self.dtype = decisions.num_aims, torch.float32
            space: Any = decisions.space  # a Box
            parts = (torch.as_tensor(part, dtype=torch.float32) for part in range_of(space))
            self._center, self._span = (part.reshape(-1).to(device) for part in parts)

    def of_environments(self, actions: Tensor) -> Tensor:
        """Return a policy's actions, (…, width), as environments have them. Numbers may be beyond the bounds."""
        return torch.addcmul(self._center, self._span, actions) if self.is_continuous else actions

    def of_policy(self, actions: Tensor) -> Tensor:
        """Return environments' actions, (…, width), as a policy has them."""
        return (actions - self._center) / self._span if self.is_continuous else actions


def pair(actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return (discrete_actions, continuous_actions), of which ``actions`` are one, and the other has no columns."""
    if actions.is_floating_point():
        return actions.new_empty((len(actions), 0), dtype=torch.int64), actions
    return actions, actions.new_empty((len(actions), 0), dtype=torch.float32)
