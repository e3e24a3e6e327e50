"""Networks for continuous actions that are learnt off policy: ReLU layers on observations and actions, and critics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from pufferlib.errors import SpaceError
from pufferlib.layout import Layout
from pufferlib.models.networks import vision
from pufferlib.models.reading import WIDE_BOUND, Features, Frames, Images, has_images, images_of, paths_of

__all__ = ["Critics", "ReLUNetwork", "num_continuous_actions"]


class ReLUNetwork(nn.Module):
    """ReLU layers on observations of any structure and on further numbers, such as actions, that are joined to them.

    Images in the observations first pass through three convolutions. num_outputs: the size of the output layer.
    num_numbers: how many further numbers a row has. hidden_sizes: the size of each layer. without: the name of a part
    at the top of the observation that is not read; it may be absent. Raises SpaceError if the part is there, next to
    images.
    """

    def __init__(
        self,
        observation_layout: Layout,
        num_outputs: int,
        num_numbers: int = 0,
        hidden_sizes: Sequence[int] = (256, 256),
        without: str = "",
    ) -> None:
        super().__init__()
        self.read: Frames | Images | Features
        self.encoder: nn.Module = nn.Identity()
        unread = paths_of(observation_layout, without)
        if has_images(observation_layout):
            if unread:
                raise SpaceError(
                    f'observations with images and a part "{without}" that the network must not read are not '
                    f"supported; leave the images or the part out of {observation_layout.space}"
                )
            self.read = images = images_of(observation_layout, bound=WIDE_BOUND)
            self.encoder, size = vision(observation_layout, images, (32, 64, 64))
        else:
            self.read = features = Features(observation_layout, without=unread, bound=WIDE_BOUND)
            size = features.size
        sizes = [size + num_numbers, *hidden_sizes]
        layers: list[nn.Module] = []
        for num_inputs, num_units in itertools.pairwise(sizes):
            layers += [nn.Linear(num_inputs, num_units), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], num_outputs))

    def forward(self, observations: Tensor, *numbers: Tensor) -> Tensor:
        """Return outputs, (rows, num_outputs). numbers: (rows, …) float32, ``num_numbers`` columns in total."""
        features = self.encoder(self.read(observations))
        return cast(Tensor, self.layers(torch.cat([features, *numbers], 1) if numbers else features))


class Critics(nn.ModuleList):
    """Several critics with weights of their own. Each estimates the value of an observation and a continuous action.

    num_actions: the number of elements of an action.
    """

    def __init__(
        self,
        observation_layout: Layout,
        num_actions: int,
        hidden_sizes: Sequence[int] = (256, 256),
        num_critics: int = 2,
    ) -> None:
        super().__init__(ReLUNetwork(observation_layout, 1, num_actions, hidden_sizes) for _ in range(num_critics))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return each critic's values, (num_critics, rows). actions: (rows, num_actions), -1 to 1."""
        return torch.stack([critic(observations, actions).squeeze(1) for critic in self])


def num_continuous_actions(action_space: gymnasium.Space[Any], algorithm: str) -> int:
    """Return the number of elements of an action, a Box with finite bounds.

    algorithm: the name for the message. Raises SpaceError for any other space.
    """
    if not isinstance(action_space, Box) or not np.issubdtype(action_space.dtype, np.floating):
        raise SpaceError(
            f"{algorithm} plays Boxes of floats, and not {action_space}; cleanrl_demo.ppo plays others too"
        )
    if not action_space.is_bounded():
        raise SpaceError(
            f"{algorithm} plays actions between finite bounds, and {action_space} has none; "
            "use gymnasium.wrappers.RescaleAction, or cleanrl_demo.ppo"
        )
    return math.prod(action_space.shape)
