"""Networks: what reads observations of any structure, and the policies that come with the library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import reduce
from operator import getitem
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import Tensor, nn

from pufferlib.errors import SpaceError
from pufferlib.layout import Layout
from pufferlib.models.distributions import Decisions, Outputs, num_options
from pufferlib.models.running_norm import RunningNorm

__all__ = ["CNN", "LSTM", "MLP", "Features", "Frames", "Nature", "State", "is_image"]

SMALLEST_IMAGE = 36  # pixels, high and wide, that the convolutions need
State = tuple[Tensor, ...]


class ActorCritic(nn.Module):
    """An actor and a critic that share nothing: with large returns the critic's gradients would drown the actor's.

    read: makes features of observations. network(num_outputs, gain): makes each of the two, from features to outputs.
    """

    def __init__(
        self,
        read: Callable[[Tensor], Tensor],
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
        """Return (outputs, values, state)."""
        features = self.read(observations)
        outputs = self.decisions.outputs(self.actor(features), self.log_std)
        return outputs, self.critic(features).squeeze(1), state


class MLP(ActorCritic):
    """Two tanh layers each, over observations of any structure as numbers.

    hidden_size: of each layer. normalize: as ``Features`` has it.
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
    """The same, over images, which pass three convolutions first, of so many channels.

    hidden_size: of each layer after.
    """

    def __init__(
        self,
        observation_layout: Layout,
        action_space: gymnasium.Space[Any],
        hidden_size: int = 64,
        channels: tuple[int, int, int] = (32, 64, 64),
    ) -> None:
        read = Frames(observation_layout)

        def network(num_outputs: int, gain: float) -> nn.Module:
            encoder = convolutions(read.shape[0], channels)
            return nn.Sequential(
                encoder, *perceptron(num_features(encoder, read.shape), hidden_size, num_outputs, gain)
            )

        super().__init__(read, network, action_space)


class Nature(nn.Module):
    """One encoder of images, from which both actor and critic read: half of a CNN's work, and usual for Atari.

    hidden_size: of its last layer. Source: Mnih et al., "Human-level control through deep reinforcement learning",
    Nature 518, 2015.
    """

    def __init__(self, observation_layout: Layout, action_space: gymnasium.Space[Any], hidden_size: int = 512) -> None:
        super().__init__()
        self.decisions = Decisions(action_space)
        self.encoder = image_encoder(observation_layout, hidden_size)
        self.actor = orthogonal(nn.Linear(hidden_size, self.decisions.num_outputs), 0.01)
        self.critic = orthogonal(nn.Linear(hidden_size, 1), 1.0)
        self.log_std = nn.Parameter(torch.zeros(self.decisions.num_aims))

    def forward(
        self, observations: Tensor, state: State | None = None, action_mask: Tensor | None = None
    ) -> tuple[Outputs, Tensor, State | None]:
        """Return (outputs, values, state)."""
        features = self.encoder(observations)
        outputs = self.decisions.outputs(self.actor(features), self.log_std)
        return outputs, self.critic(features).squeeze(1), state


class LSTM(nn.Module):
    """A memory around any encoder: its features go through an LSTM, whose state is the policy's.

    encoder: a module from observations to features, (rows, num_features); by default the default policy's first layers.
    hidden_size: of the memory, from which actor and critic read. normalize: as ``Features`` has it, in the default
    encoder of observations that are no images.
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
        """Return (outputs, values, state)."""
        hidden, cell = self.cell(self.encoder(observations), state)
        return *self._heads(hidden), (hidden, cell)

    def unroll(
        self, observations: Tensor, state: State, starts: Tensor, action_mask: Tensor | None = None
    ) -> tuple[Outputs, Tensor]:
        """Return (outputs, values) of many steps, all but the memory at once."""
        num_steps, rows = starts.shape
        features = self.encoder(observations.flatten(0, 1)).unflatten(0, (num_steps, rows))
        hidden, cell = state
        seen = []
        for now, goes_on in zip(features, (~starts).unsqueeze(2).to(features.dtype), strict=True):
            hidden, cell = self.cell(now, (hidden * goes_on, cell * goes_on))
            seen.append(hidden)
        return self._heads(torch.cat(seen))

    def _heads(self, hidden: Tensor) -> tuple[Outputs, Tensor]:
        return self.decisions.outputs(self.actor(hidden), self.log_std), self.critic(hidden).squeeze(1)


# ----------------------------------------------------------------------------------------------------- observations


def is_image(layout: Layout) -> bool:
    """Whether rows are images, large enough for the convolutions."""
    if not layout.is_leaf or layout.dtype != np.uint8 or len(layout.shape) != 3:
        return False
    return min(layout.shape[:2]) >= SMALLEST_IMAGE or min(layout.shape[1:]) >= SMALLEST_IMAGE


class Frames:
    """Images, uint8 with their channels last or first, as (rows, channels, height, width) float32 from 0 to 1."""

    def __init__(self, layout: Layout) -> None:
        if not is_image(layout):
            raise SpaceError(
                f"{layout.space} holds no images: uint8, with their channels last or first, and of {SMALLEST_IMAGE} "
                'pixels at least; use the policy "mlp"'
            )
        self.channels_last = min(layout.shape[:2]) >= SMALLEST_IMAGE
        height, width, channels = layout.shape if self.channels_last else (*layout.shape[1:], layout.shape[0])
        self.shape = (channels, height, width)

    def __call__(self, observations: Tensor) -> Tensor:
        images = observations.permute(0, 3, 1, 2) if self.channels_last else observations
        # In memory the channels come last, which convolutions take a sixth less time for. Divided in place: to have
        # the pages of a second tensor took 14 ms for 128 images, as long as a convolution.
        return images.to(torch.float32, memory_format=torch.channels_last).div_(255)


class Features(nn.Module):
    """Rows of any layout as (rows, size) float32: one-hot where a leaf is discrete, else its numbers.

    normalize: standardise the numbers of Boxes by running statistics; see ``observe``.
    """

    def __init__(self, layout: Layout, normalize: bool = False) -> None:
        super().__init__()
        self.layout = layout
        spaces = [(leaf, _space_at(layout.space, leaf.path)) for leaf in layout.leaves]
        numbers = [normalize and not isinstance(space, (Discrete, MultiDiscrete, MultiBinary)) for _, space in spaces]
        self.readers = [
            (leaf.path, Tensor.float if number else _reader(space))
            for (leaf, space), number in zip(spaces, numbers, strict=True)
        ]
        self.one_hots = nn.ModuleList([read for _, read in self.readers if isinstance(read, OneHot)])  # moves them
        row = torch.from_numpy(np.zeros((1, *layout.shape), layout.dtype))
        pieces = self._pieces(row)
        self.size = sum(piece.shape[1] for piece in pieces)
        self.norm: nn.Module | None = None
        if normalize:
            which = [torch.full(piece.shape[1:], number) for piece, number in zip(pieces, numbers, strict=True)]
            self.norm = RunningNorm(torch.cat(which))

    def forward(self, observations: Tensor) -> Tensor:
        """Return numbers, (rows, size)."""
        pieces = self._pieces(observations)
        numbers = torch.cat(pieces, 1) if len(pieces) > 1 else pieces[0]
        return numbers if self.norm is None else cast(Tensor, self.norm(numbers))

    def _pieces(self, observations: Tensor) -> list[Tensor]:
        nested = self.layout.unflatten(observations)
        leaves = [(reduce(getitem, path, nested), read) for path, read in self.readers]
        return [read(leaf.flatten(1) if leaf.dim() > 1 else leaf.unsqueeze(1)) for leaf, read in leaves]

    def columns_without(self, name: str) -> list[int]:
        """Return which features come of other leaves than the one of this name at the top of the observation."""
        pieces = self._pieces(torch.from_numpy(np.zeros((1, *self.layout.shape), self.layout.dtype)))
        kept: list[bool] = []
        for (path, _), piece in zip(self.readers, pieces, strict=True):
            kept += [path[:1] != (name,)] * piece.shape[1]
        return [column for column, keep in enumerate(kept) if keep]


class OneHot(nn.Module):
    """Choices, (rows, elements), as (rows, options of all) float32."""

    _options: Tensor
    _elements: Tensor

    def __init__(self, space: Discrete[Any] | MultiDiscrete[Any]) -> None:
        super().__init__()
        starts = np.broadcast_to(getattr(space, "start", 0), cast(Any, space.shape)).reshape(-1).tolist()
        nvec = num_options(space)
        options = [torch.arange(start, start + n) for start, n in zip(starts, nvec, strict=True)]
        elements = torch.arange(len(nvec)).repeat_interleave(torch.tensor(nvec))
        self.register_buffer("_options", torch.cat(options), persistent=False)
        self.register_buffer("_elements", elements, persistent=False)

    def forward(self, leaf: Tensor) -> Tensor:
        """Compare, not index: the zeros of an absent agent's row may be no option at all."""
        return (leaf[:, self._elements] == self._options).float()


def _reader(space: gymnasium.Space[Any] | None) -> Callable[[Tensor], Tensor]:
    """Return what turns a leaf of this space, (rows, elements), into numbers, (rows, size) float32."""
    if isinstance(space, (Discrete, MultiDiscrete)):
        return OneHot(space)
    if isinstance(space, Box) and np.all(np.abs(space.low) <= 1) and np.all(np.abs(space.high) <= 1):
        return Tensor.float
    return _tame


def _tame(leaf: Tensor) -> Tensor:
    """Return counts, letters, positions without bounds, …, at a size that networks like."""
    numbers = leaf.float()
    return numbers.abs().log1p().copysign(numbers)


def _space_at(space: gymnasium.Space[Any] | None, path: Iterable[Any]) -> gymnasium.Space[Any] | None:
    """Return the space of a leaf; None for the parts of a space of variable length."""
    for key in path:
        if not isinstance(space, (Dict, Tuple)):
            return None
        space = space[key]
    return space


# --------------------------------------------------------------------------------------------------------- networks


class Encoder(nn.Module):
    """Layers behind what reads observations."""

    def __init__(self, read: Callable[[Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.read = read
        self.layers = nn.Sequential(*layers)

    def forward(self, observations: Tensor) -> Tensor:
        """Return features, (rows, num_features)."""
        return cast(Tensor, self.layers(self.read(observations)))


def default_encoder(layout: Layout, hidden_size: int, normalize: bool = False) -> nn.Module:
    """Return what makes features of observations: ``image_encoder`` where they are images, else a tanh layer."""
    if is_image(layout):
        return image_encoder(layout, hidden_size)
    features = Features(layout, normalize)
    return Encoder(features, orthogonal(nn.Linear(features.size, hidden_size)), nn.Tanh())


def image_encoder(layout: Layout, hidden_size: int) -> nn.Module:
    """Return three convolutions and a layer behind them."""
    frames = Frames(layout)
    layers = convolutions(frames.shape[0], (32, 64, 64))
    return Encoder(frames, layers, orthogonal(nn.Linear(num_features(layers, frames.shape), hidden_size)), nn.ReLU())


def perceptron(num_inputs: int, hidden_size: int, num_outputs: int, gain: float) -> nn.Sequential:
    """Return two tanh layers and one of outputs, whose weights have this gain."""
    return nn.Sequential(
        orthogonal(nn.Linear(num_inputs, hidden_size)),
        nn.Tanh(),
        orthogonal(nn.Linear(hidden_size, hidden_size)),
        nn.Tanh(),
        orthogonal(nn.Linear(hidden_size, num_outputs), gain),
    )


def convolutions(num_channels: int, channels: tuple[int, int, int]) -> nn.Sequential:
    """Return what makes (rows, size) of images: the layers of Mnih et al., 2015."""
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


def num_features(encoder: nn.Module, shape: tuple[int, ...]) -> int:
    """Return how many numbers a module makes of a row of this shape."""
    with torch.no_grad():
        return int(encoder(torch.zeros((1, *shape))).shape[1])


def orthogonal(layer: Any, gain: float = math.sqrt(2)) -> Any:
    """Return a layer with orthogonal weights of this gain, and no bias."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
