"""Networks of the agents of an environment: one that they share, which knows their index, or one for each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from pufferlib.emulation.extra_leaves import STATE
from pufferlib.layout import Layout
from pufferlib.models.critics import ReLUNetwork
from pufferlib.models.networks import State

__all__ = ["AgentLayers", "AgentNetwork", "RecurrentAgentNetwork"]


class AgentNetwork(nn.Module):
    """Two ReLU layers on an agent's observation, without the leaf "state", and on the agent's index, one-hot.

    num_outputs: the size of the output layer. num_agents: the number of agents of an environment. hidden_size: the size
    of each layer. Images in the observations first pass through three convolutions.
    """

    recurrent = False

    def __init__(self, observation_layout: Layout, num_outputs: int, num_agents: int, hidden_size: int = 64) -> None:
        super().__init__()
        self.num_places, self.hidden_size = num_agents, hidden_size
        self.encoder = ReLUNetwork(observation_layout, hidden_size, num_agents, (), without=STATE)
        self.layer: nn.Module = (nn.GRUCell if self.recurrent else nn.Linear)(hidden_size, hidden_size)
        self.head = nn.Linear(hidden_size, num_outputs)

    def outputs(self, observations: Tensor, state: State | None, places: Tensor | None) -> tuple[Tensor, State | None]:
        """Return (outputs, the next state). places: (rows,), the agents' indices; None: rows of whole environments."""
        hidden, state = self.remember(self.encode(observations, places), state)
        return self.head(hidden), state

    def encode(self, observations: Tensor, places: Tensor | None) -> Tensor:
        """Return features, (rows, hidden_size)."""
        if places is None:
            places = torch.arange(len(observations), device=observations.device) % self.num_places
        return cast(Tensor, self.encoder(observations, one_hot(places, self.num_places).float())).relu()

    def remember(self, features: Tensor, state: State | None) -> tuple[Tensor, State | None]:
        """Return (hidden features, the next state)."""
        return cast(Tensor, self.layer(features)).relu(), state

    def sequences(self, observations: Tensor, memory: Tensor, starts: Tensor) -> Tensor:
        """Return the outputs of sequences, (steps, rows, num_outputs).

        observations: (steps, rows, *layout.shape), the rows of whole environments. memory: (rows, memory size), before
        the first step. starts: bool (steps, rows), True where an episode begins.
        """
        outputs: Tensor = self.outputs(observations.flatten(0, 1), None, None)[0]
        return cast(Tensor, outputs.unflatten(0, starts.shape))


class RecurrentAgentNetwork(AgentNetwork):
    """An AgentNetwork whose second layer is a GRU. Its output is the agent's state."""

    recurrent = True

    def initial_state(self, num_rows: int) -> State:
        """Return the state at the beginning of an episode, (num_rows, hidden_size) zeros in a tuple."""
        return (self.head.weight.new_zeros(num_rows, self.hidden_size),)

    def remember(self, features: Tensor, state: State | None) -> tuple[Tensor, State | None]:
        """Return (hidden features, the next state), which are the same."""
        hidden = self.layer(features, None if state is None else state[0])
        return hidden, (hidden,)

    def sequences(self, observations: Tensor, memory: Tensor, starts: Tensor) -> Tensor:
        """Return the outputs of sequences; the state is zeros where an episode begins after the first step."""
        features = self.encode(observations.flatten(0, 1), None).unflatten(0, starts.shape)
        hiddens = [self.layer(features[0], memory)]
        for row_features, continues in zip(features[1:], ~starts[1:].unsqueeze(2), strict=True):
            hiddens.append(self.layer(row_features, hiddens[-1] * continues))
        return cast(Tensor, self.head(torch.stack(hiddens)))


class AgentLayers(nn.Module):
    """ReLU layers with weights of their own for each agent, computed for all agents at once.

    num_agents: of an environment. sizes: the numbers of inputs, of the units of each layer, and of outputs.
    """

    def __init__(self, num_agents: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for num_inputs, num_units in itertools.pairwise(sizes):
            bound = num_inputs**-0.5  # as nn.Linear begins
            self.weights.append(torch.empty(num_agents, num_inputs, num_units).uniform_(-bound, bound))
            self.biases.append(torch.empty(num_agents, 1, num_units).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs, (rows, agents, num_outputs). inputs: (rows, agents, num_inputs)."""
        hidden = inputs.transpose(0, 1)
        for index, (weights, biases) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(biases, hidden.relu() if index else hidden, weights)
        return hidden.transpose(0, 1)
