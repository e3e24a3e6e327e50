"""Values of teams: what is known of a whole environment, and mixers of its agents' values into one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pufferlib.emulation.extra_leaves import STATE
from pufferlib.errors import SpaceError
from pufferlib.layout import Layout
from pufferlib.models.reading import Features, has_images, paths_of

__all__ = ["QMixer", "TeamState", "ValueSum"]


class TeamState(nn.Module):
    """A reader that converts the observations of an environment's agents to its state, (…, size) float32.

    The state is the leaf "state" that ``wrap(state=True)`` puts into every agent's observation, or without this leaf
    the observations of all agents, one after another. Numbers are read as by ``Features``: QMIX multiplies what layers
    compute from them, and on foraging, with coordinates of up to 7 unchanged, its values grew beyond what can be
    reached. Raises SpaceError for images.
    """

    def __init__(self, observation_layout: Layout, num_agents: int) -> None:
        super().__init__()
        if has_images(observation_layout):
            raise SpaceError(
                f"a team's state is read as numbers, and {observation_layout.space} has images; use qmix --mixer vdn, "
                "which needs no state"
            )
        self.shape, self.num_agents = tuple(observation_layout.shape), num_agents
        state = paths_of(observation_layout, STATE)
        self.is_leaf = bool(state)
        others = [leaf.path for leaf in observation_layout.leaves if leaf.path not in state]
        self.read = Features(observation_layout, without=others if state else ())
        self.size = self.read.size * (1 if self.is_leaf else num_agents)

    def forward(self, observations: Tensor, present: Tensor) -> Tensor:
        """Return the states. observations: (…, agents, *layout.shape). present: bool (…, agents).

        The leaf "state" is that of the first present agent, as it is zeros where an agent is absent.
        """
        outer = present.shape[:-1]
        if self.is_leaf:
            first = present.to(torch.uint8).argmax(-1).flatten()
            rows = observations.reshape(-1, self.num_agents, *self.shape)
            rows = rows[torch.arange(len(rows), device=rows.device), first]
        else:
            rows = observations.reshape(-1, *self.shape)
        states: Tensor = self.read(rows)
        return states.reshape(*outer, self.size)


class ValueSum(nn.Module):
    """The mixer of VDN, without weights: a team's value is the sum of its agents' values.

    Source: Sunehag et al., arXiv:1706.05296.
    """

    def forward(self, values: Tensor, states: Tensor) -> Tensor:
        """Return the teams' values, (…,). values: (…, agents), 0 for agents that do not count. states: not used."""
        return values.sum(-1)


class QMixer(nn.Module):
    """The mixer of QMIX: a network whose weights hypernetworks compute from the state; it rises with every value.

    num_agents, state_size: of an environment. embed_size: the size of the mixing layer. hypernet_size: the size of the
    hypernetworks' ReLU layer; with 0 they are linear.

    Source: Rashid et al., arXiv:1803.11485, section 4.1.
    """

    def __init__(self, num_agents: int, state_size: int, embed_size: int = 32, hypernet_size: int = 64) -> None:
        super().__init__()
        self.num_agents, self.embed_size = num_agents, embed_size

        def hypernetwork(num_outputs: int) -> nn.Module:
            if not hypernet_size:
                return nn.Linear(state_size, num_outputs)
            return nn.Sequential(nn.Linear(state_size, hypernet_size), nn.ReLU(), nn.Linear(hypernet_size, num_outputs))

        self.first_weights = hypernetwork(embed_size * num_agents)
        self.first_bias = nn.Linear(state_size, embed_size)
        self.last_weights = hypernetwork(embed_size)
        self.last_bias = nn.Sequential(nn.Linear(state_size, embed_size), nn.ReLU(), nn.Linear(embed_size, 1))

    def forward(self, values: Tensor, states: Tensor) -> Tensor:
        """Return the teams' values, (…,). values: (…, agents), 0 for agents that do not count. states: (…, size)."""
        first = self.first_weights(states).abs().unflatten(-1, (self.num_agents, self.embed_size))
        hidden = nn.functional.elu((values.unsqueeze(-1) * first).sum(-2) + self.first_bias(states))  # (…, embed_size)
        mixed: Tensor = (hidden * self.last_weights(states).abs()).sum(-1) + self.last_bias(states).squeeze(-1)
        return mixed
