"""The demo trainers' network: rows of any layout in, a distribution over any action space and a value out.

An action is two tensors: ``choices``, int64 (rows, num_choices), one for each discrete part, and ``aims``, float32
(rows, num_aims), for the continuous parts, where -1 to 1 spans a part's bounds. Either may have no columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import getitem
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import Tensor, nn

from pufferlib.errors import SpaceError

SMALLEST_IMAGE = 36  # pixels, high and wide, that the convolutions need


class Policy(nn.Module):
    """An actor and a critic, of two tanh layers each; images pass three convolutions first.

    They share nothing: where returns are large, the critic's gradients would drown the actor's.
    """

    def __init__(
        self,
        layout: Any,
        action_space: gymnasium.Space,
        hidden_size: int,
        channels: tuple[int, int, int] = (32, 64, 64),
    ) -> None:
        """layout: a VecEnv's ``observation_layout``. action_space: its ``single_action_space``.

        channels: of the convolutions, where observations are images.
        """
        super().__init__()
        self.action_space = action_space
        parts = action_space.spaces if isinstance(action_space, Tuple) else (action_space,)
        self.nvec = [n for part in parts for n in num_options(part)]
        self.num_aims = sum(math.prod(part.shape) for part in parts if isinstance(part, Box))
        if not self.nvec and not self.num_aims:
            raise SpaceError(f"no policy for {action_space}; Discrete, MultiDiscrete, MultiBinary and Box have one")
        self.read = Frames(layout) if is_image(layout) else Leaves(layout)
        self.actor = network(self.read.shape, channels, hidden_size, sum(self.nvec) + self.num_aims, gain=0.01)
        self.critic = network(self.read.shape, channels, hidden_size, 1, gain=1.0)
        self.log_std = nn.Parameter(torch.zeros(self.num_aims))

    def forward(self, observations: Tensor) -> tuple[Distribution, Tensor]:
        """Return the distribution of actions and the values, (rows,) float32, of flat observations."""
        features = self.read(observations)
        return self._distribution(features), self.critic(features).squeeze(1)

    def distribution(self, observations: Tensor) -> Distribution:
        """Return the distribution of actions: all that is needed to play."""
        return self._distribution(self.read(observations))

    def values(self, observations: Tensor) -> Tensor:
        """Return the discounted returns that the critic expects, (rows,) float32."""
        return self.critic(self.read(observations)).squeeze(1)

    def actions(self, choices: Tensor, aims: Tensor) -> Any:
        """Return the flat actions that ``send`` takes: an array, or a pair of them for a Tuple."""
        if isinstance(self.action_space, Tuple):
            return tuple(_flat_actions(part, choices, aims) for part in self.action_space)
        return _flat_actions(self.action_space, choices, aims)

    def _distribution(self, features: Tensor) -> Distribution:
        outputs = self.actor(features)
        if len(self.nvec) == 1 and not self.num_aims:  # the most frequent case, which nothing need be cut for
            return Distribution([outputs], outputs[:, :0], self.log_std)
        *logits, means = outputs.split([*self.nvec, self.num_aims], dim=1)
        return Distribution(logits, means, self.log_std)


class Distribution:
    """Independent parts: categorical for each choice, normal for each aim."""

    def __init__(self, logits: Sequence[Tensor], means: Tensor, log_std: Tensor) -> None:
        self.log_probs = [part.log_softmax(1) for part in logits]  # each (rows, n)
        self.means, self.log_std = means, log_std  # (rows, num_aims), (num_aims,)

    @torch.no_grad()
    def sample(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw (choices, aims)."""
        # Of exponential clocks with rates p, the one with rate p[i] rings first with probability p[i].
        clocks = [torch.empty_like(part).exponential_(generator=generator) for part in self.log_probs]
        chosen = [(part - clock.log()).argmax(1) for part, clock in zip(self.log_probs, clocks, strict=True)]
        if not self.means.shape[1]:
            return self._stacked(chosen), self.means
        noise = torch.empty_like(self.means).normal_(generator=generator)
        return self._stacked(chosen), self.means + self.log_std.exp() * noise

    @torch.no_grad()
    def mode(self) -> tuple[Tensor, Tensor]:
        """Return the likeliest (choices, aims)."""
        return self._stacked([part.argmax(1) for part in self.log_probs]), self.means

    def log_prob(self, choices: Tensor, aims: Tensor) -> Tensor:
        """Return the log-probability of whole actions, (rows,): the sum over their parts."""
        terms = [
            part.gather(1, chosen.unsqueeze(1)).squeeze(1)
            for part, chosen in zip(self.log_probs, choices.unbind(1), strict=True)
        ]
        if self.means.shape[1]:
            deviations = (aims - self.means) / self.log_std.exp()
            terms.append((-0.5 * deviations.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(1))
        return reduce(torch.add, terms)

    def entropy(self) -> Tensor:
        """Return the entropy of whole actions, (rows,): the sum over their parts."""
        terms = [-(part.exp() * part).sum(1) for part in self.log_probs]
        if self.means.shape[1]:
            whole = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
            terms.append(whole.expand(len(self.means)))
        return reduce(torch.add, terms)

    def _stacked(self, chosen: list[Tensor]) -> Tensor:
        return torch.stack(chosen, 1) if chosen else self.means.new_empty((len(self.means), 0), dtype=torch.int64)


class Frames:
    """Images, uint8 with their channels last or first, as (rows, channels, height, width) float32 from 0 to 1."""

    def __init__(self, layout: Any) -> None:
        self.channels_last = min(layout.shape[:2]) >= SMALLEST_IMAGE
        height, width, channels = layout.shape if self.channels_last else (*layout.shape[1:], layout.shape[0])
        self.shape = (channels, height, width)

    def __call__(self, observations: Tensor) -> Tensor:
        images = observations.permute(0, 3, 1, 2) if self.channels_last else observations
        # In memory the channels come last, which convolutions take a sixth less time for. Divided in place: to have
        # the pages of a second tensor took 14 ms for 128 images, as long as a convolution.
        return images.to(torch.float32, memory_format=torch.channels_last).div_(255)


class Leaves:
    """Rows of any layout as (rows, size) float32: one-hot where a leaf is discrete, else its numbers."""

    def __init__(self, layout: Any) -> None:
        self.layout = layout
        self.leaves = [(leaf.path, _reader(_space_at(layout.space, leaf.path))) for leaf in layout.leaves]
        row = torch.from_numpy(np.zeros((1, *layout.shape), layout.dtype))
        self.shape = tuple(self(row).shape[1:])

    def __call__(self, observations: Tensor) -> Tensor:
        nested = self.layout.unflatten(observations)
        rows = len(observations)
        return torch.cat([read(reduce(getitem, path, nested).reshape(rows, -1)) for path, read in self.leaves], 1)


def network(
    shape: tuple[int, ...], channels: tuple[int, int, int], hidden_size: int, num_outputs: int, gain: float
) -> nn.Sequential:
    """Return a network from features of this shape to ``num_outputs``, whose last weights have this gain."""
    encoder = convolutions(shape[0], channels) if len(shape) == 3 else nn.Identity()
    with torch.no_grad():
        size = encoder(torch.zeros((1, *shape))).shape[1]
    return nn.Sequential(
        encoder,
        orthogonal(nn.Linear(size, hidden_size)),
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


def is_image(layout: Any) -> bool:
    """Whether rows are images, large enough for the convolutions."""
    if not layout.is_leaf or layout.dtype != np.uint8 or len(layout.shape) != 3:
        return False
    return min(layout.shape[:2]) >= SMALLEST_IMAGE or min(layout.shape[1:]) >= SMALLEST_IMAGE


def num_options(space: gymnasium.Space | None) -> list[int]:
    """Return how many options each discrete part of a space has; none for other spaces."""
    if isinstance(space, Discrete):
        return [int(space.n)]
    if isinstance(space, MultiDiscrete):
        return [int(n) for n in space.nvec.reshape(-1)]
    if isinstance(space, MultiBinary):
        return [2] * math.prod(space.shape)
    return []


def orthogonal(layer: Any, gain: float = math.sqrt(2)) -> Any:
    """Return a layer with orthogonal weights of this gain, and no bias."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _reader(space: gymnasium.Space | None) -> Callable[[Tensor], Tensor]:
    """Return what turns a leaf of this space, (rows, elements), into numbers, (rows, size) float32."""
    if isinstance(space, (Discrete, MultiDiscrete)):
        starts = np.broadcast_to(getattr(space, "start", 0), space.shape).reshape(-1).tolist()
        known = [torch.arange(start, start + n) for start, n in zip(starts, num_options(space), strict=True)]
        # Compared, not indexed: the zeros of an absent agent's row may be no option at all.
        return lambda leaf: torch.cat([leaf[:, i, None] == values for i, values in enumerate(known)], 1).float()
    if isinstance(space, Box) and np.all(np.abs(space.low) <= 1) and np.all(np.abs(space.high) <= 1):
        return Tensor.float
    return _tame


def _tame(leaf: Tensor) -> Tensor:
    """Return counts, letters, positions without bounds, …, at a size that networks like."""
    numbers = leaf.float()
    return numbers.abs().log1p().copysign(numbers)


def _space_at(space: gymnasium.Space | None, path: Iterable[Any]) -> gymnasium.Space | None:
    """Return the space of a leaf; None for the parts of a space of variable length."""
    for key in path:
        if not isinstance(space, (Dict, Tuple)):
            return None
        space = space[key]
    return space


def _flat_actions(space: gymnasium.Space, choices: Tensor, aims: Tensor) -> np.ndarray:
    shape = (-1, *(space.shape or ()))
    if not isinstance(space, Box):
        return (choices.numpy().reshape(shape) + getattr(space, "start", 0)).astype(space.dtype)
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    low, high = np.where(bounded, space.low, -1) / 2, np.where(bounded, space.high, 1) / 2
    values = np.clip((high + low) + (high - low) * aims.numpy().reshape(shape), space.low, space.high)
    return (values if np.issubdtype(space.dtype, np.floating) else np.rint(values)).astype(space.dtype)
