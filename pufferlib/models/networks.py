"""Networks: the library's policies and their layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from pufferlib.layout import Layout
from pufferlib.models.distributions import Decisions, Outputs
from pufferlib.models.reading import Features, Frames, Images, has_images, images_of

__all__ = ["CNN", "LSTM", "MLP", "Nature", "State"]

State = tuple[Tensor, ...]


class ActorCritic(nn.Module):
    """An actor and a critic that share no weights.

    If they shared weights, the critic's gradients would dominate when returns are large.

    read: a function that converts observations to features. network: a function of (num_outputs, gain) that creates the
    actor or the critic, a module that converts features to outputs; gain is the scale of the output layer's weights.
    """

    def __init__(
        self,
        read: Callable[[Tensor], Any],
        network: Callable[[int, float], nn.Module],
        action_space: gymnasium.Space[Any],
    ) -> None:
        super().__init__()
        self.decisions = Decisions(action_space)
        self.read = read
        self.actor = network(self.decisions.num_outputs, 0.01)
        self.critic = network(1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(self.decisions.num_aims))

    def forward(
        self, observations: Tensor, state: State | None = None, action_mask: Tensor | None = None
    ) -> tuple[Outputs, Tensor, State | None]:
        """Return (outputs, values, state); the state is unchanged."""
        features = self.read(observations)
        outputs = self.decisions.outputs(self.actor(features), self.log_std)
        return outputs, self.critic(features).squeeze(1), state


class MLP(ActorCritic):
    """An actor and a critic with two tanh layers each; observations of any structure are read as numbers.

    hidden_size: the size of each layer. normalize: as for ``Features``.
    """

    def __init__(
        self,
        observation_layout: Layout,
        action_space: gymnasium.Space[Any],
        hidden_size: int = 64,
        normalize: bool = False,
    ) -> None:
        read = Features(observation_layout, normalize)
        super().__init__(read, lambda num, gain: perceptron(read.size, hidden_size, num, gain), action_space)


class CNN(ActorCritic):
    """An MLP for observations that contain images; three convolutions convert the images to features first.

    hidden_size: the size of each layer after the convolutions. channels: the number of channels of each convolution.
    normalize: as for ``Features``, for the numbers that are not images. Raises SpaceError if there are no images.
    """

    def __init__(
        self,
        observation_layout: Layout,
        action_space: gymnasium.Space[Any],
        hidden_size: int = 64,
        channels: tuple[int, int, int] = (32, 64, 64),
        normalize: bool = False,
    ) -> None:
        read = images_of(observation_layout, normalize)

        def network(num_outputs: int, gain: float) -> nn.Module:
            encoder, size = vision(observation_layout, read, channels)
            return nn.Sequential(encoder, *perceptron(size, hidden_size, num_outputs, gain))

        super().__init__(read, network, action_space)


class Nature(nn.Module):
    """An actor and a critic that share an encoder of images; this halves the work of ``CNN``, and is usual for Atari.

    hidden_size: the size of the encoder's last layer. normalize: as for ``Features``, for the numbers that are not
    images. Raises SpaceError if there are no images.

    Source: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015.
    """

    def __init__(
        self,
        observation_layout: Layout,
        action_space: gymnasium.Space[Any],
        hidden_size: int = 512,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        self.decisions = Decisions(action_space)
        self.encoder = image_encoder(observation_layout, hidden_size, normalize)
        self.actor = orthogonal(nn.Linear(hidden_size, self.decisions.num_outputs), 0.01)
        self.critic = orthogonal(nn.Linear(hidden_size, 1), 1.0)
        self.log_std = nn.Parameter(torch.zeros(self.decisions.num_aims))

    def forward(
        self, observations: Tensor, state: State | None = None, action_mask: Tensor | None = None
    ) -> tuple[Outputs, Tensor, State | None]:
        """Return (outputs, values, state); the state is unchanged."""
        features = self.encoder(observations)
        outputs = self.decisions.outputs(self.actor(features), self.log_std)
        return outputs, self.critic(features).squeeze(1), state


class LSTM(nn.Module):
    """A recurrent policy: an LSTM on the features of any encoder, with an actor and a critic that read its output.

    encoder: a module that converts observations to features, (rows, num_features); by default, ``default_encoder``.
    hidden_size: the size of the LSTM's output. normalize: as for ``Features``, in the default encoder.
    """

    def __init__(
        self,
        observation_layout: Layout,
        action_space: gymnasium.Space[Any],
        hidden_size: int = 64,
        encoder: nn.Module | None = None,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        self.decisions = Decisions(action_space)
        self.encoder = default_encoder(observation_layout, hidden_size, normalize) if encoder is None else encoder
        row = torch.from_numpy(np.zeros((1, *observation_layout.shape), observation_layout.dtype))
        with torch.no_grad():
            size = self.encoder(row).shape[1]
        self.cell = nn.LSTMCell(size, hidden_size)
        for name, weights in self.cell.named_parameters():
            nn.init.zeros_(weights) if "bias" in name else nn.init.orthogonal_(weights)
        self.actor = orthogonal(nn.Linear(hidden_size, self.decisions.num_outputs), 0.01)
        self.critic = orthogonal(nn.Linear(hidden_size, 1), 1.0)
        self.log_std = nn.Parameter(torch.zeros(self.decisions.num_aims))

    def initial_state(self, num_rows: int) -> State:
        """Return the state at the beginning of an episode: (hidden, cell), each (num_rows, hidden_size)."""
        zeros = self.actor.weight.new_zeros(num_rows, self.cell.hidden_size)
        return zeros, zeros.clone()

    def forward(
        self, observations: Tensor, state: State | None = None, action_mask: Tensor | None = None
    ) -> tuple[Outputs, Tensor, State]:
        """Return (outputs, values, next state)."""
        hidden, cell = self.cell(self.encoder(observations), state)
        return *self._heads(hidden), (hidden, cell)

    def unroll(
        self, observations: Tensor, state: State, starts: Tensor, action_mask: Tensor | None = None
    ) -> tuple[Outputs, Tensor]:
        """Return the (outputs, values) of many steps; each layer except the LSTM processes all steps at once."""
        num_steps, rows = starts.shape
        features = self.encoder(observations.flatten(0, 1)).unflatten(0, (num_steps, rows))
        hidden, cell = state
        hiddens = []
        for step_features, continues in zip(features, (~starts).unsqueeze(2).to(features.dtype), strict=True):
            hidden, cell = self.cell(step_features, (hidden * continues, cell * continues))
            hiddens.append(hidden)
        return self._heads(torch.cat(hiddens))

    def _heads(self, hidden: Tensor) -> tuple[Outputs, Tensor]:
        return self.decisions.outputs(self.actor(hidden), self.log_std), self.critic(hidden).squeeze(1)


# --------------------------------------------------------------------------------------------------------- networks


class Encoder(nn.Module):
    """A module that converts observations with a reader, and applies layers to the result."""

    def __init__(self, read: Callable[[Tensor], Any], *layers: nn.Module) -> None:
        super().__init__()
        self.read = read
        self.layers = nn.Sequential(*layers)

    def forward(self, observations: Tensor) -> Tensor:
        """Return features, (rows, num_features)."""
        return cast(Tensor, self.layers(self.read(observations)))


def default_encoder(layout: Layout, hidden_size: int, normalize: bool = False) -> nn.Module:
    """Return an ``image_encoder`` if observations contain images, else an encoder with one tanh layer."""
    if has_images(layout):
        return image_encoder(layout, hidden_size, normalize)
    features = Features(layout, normalize)
    return Encoder(features, orthogonal(nn.Linear(features.size, hidden_size)), nn.Tanh())


def image_encoder(layout: Layout, hidden_size: int, normalize: bool = False) -> nn.Module:
    """Return an encoder of observations with images: three convolutions and a ReLU layer of hidden_size features."""
    read = images_of(layout, normalize)
    layers, size = vision(layout, read, (32, 64, 64))
    return Encoder(read, layers, orthogonal(nn.Linear(size, hidden_size)), nn.ReLU())


class Perceptron(nn.Sequential):
    """A sequence of linear and tanh layers with the same results as ``nn.Sequential``, but without a call per layer.

    For the few rows of a batch and five layers, this takes 15 µs; with a call per layer, it would take 26 µs. Layers
    with hooks and layers of other types are still called.
    """

    def forward(self, features: Tensor) -> Tensor:
        """Return outputs, (rows, num_outputs)."""
        for layer in self._modules.values():
            kind = type(layer)
            if kind is nn.Linear and not hooked(layer):
                weights = layer._parameters
                features = linear(features, cast(Tensor, weights["weight"]), weights["bias"])
            elif kind is nn.Tanh and not hooked(layer):
                features = features.tanh()
            else:
                features = layer(features)
        return features


def hooked(layer: Any) -> bool:
    """Return whether a layer has hooks, which run only if the layer itself is called."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


def perceptron(num_inputs: int, hidden_size: int, num_outputs: int, gain: float) -> Perceptron:
    """Return a Perceptron of two tanh layers and an output layer; the output layer's weights have this gain."""
    return Perceptron(
        orthogonal(nn.Linear(num_inputs, hidden_size)),
        nn.Tanh(),
        orthogonal(nn.Linear(hidden_size, hidden_size)),
        nn.Tanh(),
        orthogonal(nn.Linear(hidden_size, num_outputs), gain),
    )


class Sight(nn.Module):
    """An encoder of the tensors that ``Images`` returns: it convolves the images of each size and appends the numbers.

    shapes: the shapes of the images, each (channels, height, width). channels: as for ``CNN``.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], channels: tuple[int, int, int]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(convolutions(shape[0], channels) for shape in shapes)

    def forward(self, seen: list[Tensor]) -> Tensor:
        """Return features, (rows, num_features). seen: the tensors that ``Images`` returns."""
        images, numbers = seen[: len(self.encoders)], seen[len(self.encoders) :]
        return torch.cat([*(encode(image) for encode, image in zip(self.encoders, images, strict=True)), *numbers], 1)


def vision(layout: Layout, read: Frames | Images, channels: tuple[int, int, int]) -> tuple[nn.Module, int]:
    """Return an encoder for the output of ``images_of(layout)``, and the number of its features."""
    encoder = convolutions(read.shape[0], channels) if isinstance(read, Frames) else Sight(read.shapes, channels)
    row = torch.from_numpy(np.zeros((1, *layout.shape), layout.dtype))
    with torch.no_grad():
        return encoder, int(encoder(read(row)).shape[1])


def convolutions(num_channels: int, channels: tuple[int, int, int]) -> nn.Sequential:
    """Return an encoder that converts images to (rows, num_features) with the convolutions of Mnih et al., 2015."""
    first, second, third = channels
    return nn.Sequential(
        orthogonal(nn.Conv2d(num_channels, first, 8, stride=4)),
        nn.ReLU(),
        orthogonal(nn.Conv2d(first, second, 4, stride=2)),
        nn.ReLU(),
        orthogonal(nn.Conv2d(second, third, 3)),
        nn.ReLU(),
        nn.Flatten(),
    )


def orthogonal(layer: Any, gain: float = math.sqrt(2)) -> Any:
    """Initialize a layer with orthogonal weights of this gain and a bias of zeros; return the layer."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
