"""A copy of the network of pufferlib.models that does not import it, for libraries with their own trainer.

tests/benchmarks/test_limits.py compares the two.
"""

from __future__ import annotations

import math

import gymnasium
import torch
from torch import Tensor, nn
from trainers.settings import Settings


def orthogonal(layer: nn.Module, gain: float = math.sqrt(2)) -> nn.Module:
    """Initialize a layer with orthogonal weights and zero bias, and return it."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def features(observations: Tensor) -> Tensor:
    """Scale observations for a network: images to 0 to 1, other numbers by a signed logarithm."""
    if observations.dtype == torch.uint8:
        return observations.float() / 255
    return observations.sign() * observations.abs().log1p()


def convolutions(num_channels: int, channels: tuple[int, int, int]) -> nn.Sequential:
    """Return three convolutions, from (rows, channels, height, width) to (rows, size)."""
    return nn.Sequential(
        orthogonal(nn.Conv2d(num_channels, channels[0], 8, stride=4)),
        nn.ReLU(),
        orthogonal(nn.Conv2d(channels[0], channels[1], 4, stride=2)),
        nn.ReLU(),
        orthogonal(nn.Conv2d(channels[1], channels[2], 3)),
        nn.ReLU(),
        nn.Flatten(),
    )


def head(space: gymnasium.spaces.Box, settings: Settings, num_outputs: int, gain: float) -> nn.Sequential:
    """Return an actor or a critic, on features of observations of this space."""
    images = len(space.shape) == 3
    encoder = convolutions(space.shape[0], settings.channels) if images else nn.Identity()
    with torch.no_grad():
        size = encoder(torch.zeros((1, *space.shape))).shape[1]
    return nn.Sequential(
        encoder,
        orthogonal(nn.Linear(size, settings.hidden_size)),
        nn.Tanh(),
        orthogonal(nn.Linear(settings.hidden_size, settings.hidden_size)),
        nn.Tanh(),
        orthogonal(nn.Linear(settings.hidden_size, num_outputs), gain),
    )


class Agent(nn.Module):
    """An actor of discrete actions and a critic."""

    def __init__(self, space: gymnasium.spaces.Box, num_actions: int, settings: Settings) -> None:
        super().__init__()
        self.actor = head(space, settings, num_actions, gain=0.01)
        self.critic = head(space, settings, 1, gain=1.0)
