"""A policy that is a table: the probability of each action in each information state of a game."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from gymnasium.spaces import Dict
from torch import Tensor, nn

from pufferlib.errors import SpaceError
from pufferlib.layout import Layout

__all__ = ["Tabular"]


class Tabular(nn.Module):
    """Plays a table of ``SequenceForm`` in ``GameEnv(game, observation="index")``. Its weights: ``table``, float64."""

    table: Tensor

    def __init__(self, observation_layout: Layout, action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        space = observation_layout.space
        if not isinstance(space, Dict) or not isinstance(space.spaces.get("state"), gymnasium.spaces.Discrete):
            raise SpaceError(f'{space} does not number information states; make GameEnv(game, observation="index")')
        self.layout = observation_layout
        shape = (int(space["state"].n), int(action_space.n))  # type: ignore[attr-defined]
        self.register_buffer("table", torch.full(shape, 1 / shape[1], dtype=torch.float64))

    def forward(self, observations: Tensor, state: Any, action_mask: Tensor | None) -> tuple[Tensor, Tensor, Any]:
        """Return (outputs, values, state); values are zeros."""
        chances = self.table[self.layout.unflatten(observations)["state"]]  # (rows, num_actions)
        logits = chances.clamp(min=1e-30).log().float()
        return logits, torch.zeros_like(logits[:, 0]), state
