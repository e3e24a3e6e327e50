"""Stack: evaluates policies of one architecture at once, with one batched matrix product per layer."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

__all__ = ["Stack"]


class Stack:
    """A stack of policies without recurrent state that differ only in their weights. The weights are copied."""

    def __init__(self, policies: Sequence[nn.Module]) -> None:
        self._weights = stack_module_state(list(policies))
        self._module = deepcopy(policies[0]).to("meta")
        # vmap turns the matrix product of each layer into one batched product for all policies.
        self._call = torch.vmap(self._forward, in_dims=(0, 0, 0), randomness="error")

    def _forward(self, weights: Any, observations: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        outputs, _, _ = functional_call(self._module, weights, (observations, None, mask if mask.numel() else None))
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def __call__(self, observations: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return each policy's outputs for its rows, (policies, rows, …).

        observations: (policies, rows, *shape). mask: bool (policies, rows, num_options), or None.
        Raises RuntimeError if torch.vmap cannot run the network.
        """
        if mask is None:
            mask = observations.new_empty((*observations.shape[:1], 0), dtype=torch.bool)
        outputs: tuple[Tensor, ...] = self._call(self._weights, observations, mask)
        return outputs
