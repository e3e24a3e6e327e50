"""PufferLib's ``cleanrl`` of version 2 and ``frameworks.cleanrl`` of version 1: policies that sample their actions."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pufferlib.compat.pytorch import entropy, log_prob, sample_logits

__all__ = ["Policy", "RecurrentPolicy", "entropy", "log_prob", "sample_logits"]


class _SamplingPolicy(nn.Module):
    """The base of both classes. policy: the inner module, whose attributes is_continuous and hidden_size are copied."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy
        self.is_continuous = getattr(policy, "is_continuous", False)
        if hasattr(policy, "hidden_size"):
            self.hidden_size = policy.hidden_size


class Policy(_SamplingPolicy):
    """A policy without a state. policy: called with observations, it returns (logits, values)."""

    def get_value(self, x: Tensor, state: Any = None) -> Tensor:
        """Return the values of observations."""
        values: Tensor = self.policy(x)[1]
        return values

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (actions, logprobs, entropies, values). action: taken in place of sampled ones."""
        logits, values = self.policy(x)
        return *sample_logits(logits, action, self.is_continuous), values

    def forward(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return ``get_action_and_value``."""
        return self.get_action_and_value(x, action)


class RecurrentPolicy(_SamplingPolicy):
    """A policy with an LSTM. policy: called with observations and a state, it returns (logits, values, state)."""

    @property
    def lstm(self) -> nn.Module:
        """The LSTM: the policy's attribute ``recurrent`` or ``lstm``. Raises ValueError if it has neither."""
        for name in ("recurrent", "lstm"):
            if hasattr(self.policy, name):
                module: nn.Module = getattr(self.policy, name)
                return module
        raise ValueError(f"{type(self.policy).__name__} has neither recurrent nor lstm; name its LSTM so")

    def get_value(self, x: Tensor, state: Any = None) -> Tensor:
        """Return the values of observations."""
        values: Tensor = self.policy(x, state)[1]
        return values

    def get_action_and_value(
        self, x: Tensor, state: Any = None, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Any]:
        """Return (actions, logprobs, entropies, values, state). action: taken in place of sampled ones."""
        logits, values, state = self.policy(x, state)
        return *sample_logits(logits, action, self.is_continuous), values, state

    def forward(
        self, x: Tensor, state: Any = None, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Any]:
        """Return ``get_action_and_value``."""
        return self.get_action_and_value(x, state, action)
