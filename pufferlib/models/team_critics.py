"""Critics of the agents of an environment, which see all agents, attend to them, or see their own agent alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pufferlib.emulation.extra_leaves import STATE
from pufferlib.errors import PlanError, SpaceError
from pufferlib.layout import Layout
from pufferlib.models.agent_networks import AgentLayers
from pufferlib.models.mixers import TeamState
from pufferlib.models.reading import WIDE_BOUND, Features, has_images, paths_of

__all__ = ["AttentionCritic", "CentralCritic", "OwnCritic", "own_features"]


def own_features(layout: Layout) -> Features:
    """Return a reader of an agent's observation, without the leaf "state". Raises SpaceError for images."""
    if has_images(layout):
        raise SpaceError(f"these networks read numbers, and {layout.space} has images; use ppo, or qmix --mixer vdn")
    return Features(layout, without=paths_of(layout, STATE), bound=WIDE_BOUND)


class OwnCritic(nn.Module):
    """Each agent's critic sees the agent's observation and action.

    layout: the layout of an agent's observation. num_numbers: how many numbers an action is. Both also hold for the
    other critics here.
    """

    def __init__(self, layout: Layout, num_agents: int, num_numbers: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.read = own_features(layout)
        self.layers = AgentLayers(num_agents, (self.read.size + num_numbers, *hidden_sizes, 1))

    def forward(self, observations: Tensor, own_actions: Tensor, other_actions: Tensor, present: Tensor) -> Tensor:
        """Return the agents' values, (rows, agents).

        observations: (rows, agents, *layout.shape). own_actions: (rows, agents, num_numbers), the actions of which
        values are wanted. other_actions: the same shape, the actions that an agent's critic takes the others to play.
        present: bool (rows, agents); the actions of absent agents are taken for zeros.
        """
        features = self.read(observations.flatten(0, 1)).unflatten(0, present.shape)
        values: Tensor = self.layers(torch.cat([features, own_actions], 2)).squeeze(2)
        return values


class CentralCritic(nn.Module):
    """Each agent's critic sees the environment's state (``TeamState``) and all actions.

    Source: Lowe et al., arXiv:1706.02275.
    """

    def __init__(self, layout: Layout, num_agents: int, num_numbers: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.state = TeamState(layout, num_agents)
        self.layers = AgentLayers(num_agents, (self.state.size + num_agents * num_numbers, *hidden_sizes, 1))

    def forward(self, observations: Tensor, own_actions: Tensor, other_actions: Tensor, present: Tensor) -> Tensor:
        """Return the agents' values, as ``OwnCritic`` does."""
        num_agents = present.shape[1]
        is_own = torch.eye(num_agents, dtype=torch.bool, device=own_actions.device).unsqueeze(2)
        present_others = torch.where(present.unsqueeze(2), other_actions, 0.0)
        # What each critic sees: (rows, critics, agents, num_numbers).
        actions = torch.where(is_own, own_actions.unsqueeze(2), present_others.unsqueeze(1))
        states = self.state(observations, present).unsqueeze(1).expand(-1, num_agents, -1)
        values: Tensor = self.layers(torch.cat([states, actions.flatten(2)], 2)).squeeze(2)
        return values


class AttentionCritic(nn.Module):
    """Each agent's critic sees its own observation and action, and attends to those of the others.

    Queries, keys and values are computed by layers that all agents share. num_heads: of the attention. Raises PlanError
    unless the first hidden size is a multiple of it. Source: Iqbal and Sha, arXiv:1810.02912, section 3.
    """

    num_heads = 4

    def __init__(self, layout: Layout, num_agents: int, num_numbers: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        size = next(iter(hidden_sizes), 0)
        if not size or size % self.num_heads:
            raise PlanError(
                f"hidden_sizes={tuple(hidden_sizes)}: an attention critic needs a first size that is a multiple of "
                f"{self.num_heads}"
            )
        self.read = own_features(layout)
        self.encoder = AgentLayers(num_agents, (self.read.size + num_numbers, size))
        self.queries, self.keys, self.values = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.layers = AgentLayers(num_agents, (2 * size, *hidden_sizes, 1))

    def forward(self, observations: Tensor, own_actions: Tensor, other_actions: Tensor, present: Tensor) -> Tensor:
        """Return the agents' values, as ``OwnCritic`` does."""
        features = self.read(observations.flatten(0, 1)).unflatten(0, present.shape)
        encoded = self.encoder(torch.cat([features, own_actions], 2)).relu()
        of_others = encoded
        if other_actions is not own_actions:
            of_others = self.encoder(torch.cat([features, other_actions], 2)).relu()
        queries, keys, values = (
            layer(rows).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for layer, rows in ((self.queries, encoded), (self.keys, of_others), (self.values, of_others))
        )
        sees = ~torch.eye(present.shape[1], dtype=torch.bool, device=own_actions.device) & present.unsqueeze(1)
        sees = sees.unsqueeze(1)  # (rows, 1, agents, agents), for all heads
        scores = (queries @ keys.transpose(2, 3) / queries.shape[3] ** 0.5).masked_fill(~sees, -1e9)
        attended = torch.where(sees, scores.softmax(3), 0.0) @ nn.functional.leaky_relu(values)
        joined = torch.cat([encoded, attended.transpose(1, 2).flatten(2)], 2)
        result: Tensor = self.layers(joined).squeeze(2)
        return result
