"""Policies that are tables over a game's information states, with fixed probabilities or learnable logits."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from gymnasium.spaces import Dict
from torch import Tensor, nn

from pufferlib.errors import SpaceError
from pufferlib.layout import Layout

__all__ = ["Logits", "Tabular"]


class Tabular(nn.Module):
    """A policy that plays with fixed probabilities in ``GameEnv(game, observation="index")``.

    Its only weights are ``table``, float64 (num_states, num_actions): the probabilities of the actions in each
    information state, as in a table of ``SequenceForm``. At first, they are uniform over all actions.
    """

    table: Tensor

    def __init__(self, observation_layout: Layout, action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        self.layout = observation_layout
        shape = _shape(observation_layout, action_space)
        self.register_buffer("table", torch.full(shape, 1 / shape[1], dtype=torch.float64))

    def forward(self, observations: Tensor, state: Any, action_mask: Tensor | None) -> tuple[Tensor, Tensor, Any]:
        """Return (logits, values, state); values are zeros."""
        chances = self.table[self.layout.unflatten(observations)["state"]]  # (rows, num_actions)
        logits = chances.clamp(min=1e-30).log().float()
        return logits, torch.zeros_like(logits[:, 0]), state


class Logits(nn.Module):
    """A trainable policy with a logit (or Q-value) for each action, and a value, in each information state.

    All logits and values are 0 at first. The policy plays in ``GameEnv(game, observation="index")`` and does not
    generalise between states.
    """

    def __init__(self, observation_layout: Layout, action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        self.layout = observation_layout
        shape = _shape(observation_layout, action_space)
        self.logits = nn.Parameter(torch.zeros(shape))
        self.values = nn.Parameter(torch.zeros(shape[0]))

    def forward(
        self, observations: Tensor, state: Any = None, action_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Any]:
        """Return (logits, values, state)."""
        states = self.layout.unflatten(observations)["state"].reshape(-1)
        return self.logits[states], self.values[states], state


def _shape(layout: Layout, action_space: gymnasium.Space[Any]) -> tuple[int, int]:
    """Return the number of information states and the number of actions.

    Raises SpaceError if the observation has no Discrete "state", the number of an information state.
    """
    space = layout.space
    if not isinstance(space, Dict) or not isinstance(space.spaces.get("state"), gymnasium.spaces.Discrete):
        raise SpaceError(f'{space} does not number information states; make GameEnv(game, observation="index")')
    return int(space["state"].n), int(action_space.n)  # type: ignore[attr-defined]
