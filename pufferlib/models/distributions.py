"""The parts of an action space, and the distribution of actions that a policy's outputs define.

Actions are a pair of tensors: ``discrete_actions``, int64 (rows, len(nvec)), with one column per discrete part, and
``continuous_actions``, float32 (rows, num_aims), with one column per continuous part, where -1 to 1 spans the part's
bounds. Either may have no columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import Tensor

from pufferlib.errors import SpaceError
from pufferlib.util.renamed import renamed_arguments

__all__ = ["Decisions", "Distribution", "num_options", "range_of"]

# Logits (rows, num_options); or (mean, std), each (rows, num_aims); or all three, if a space has both.
Outputs = Tensor | tuple[Tensor, ...]


class Decisions:
    """The discrete and continuous parts of a flat action space, a VecEnv's ``single_action_space``.

    A continuous part is one element of a Box. nvec: the number of options of each discrete part. num_options: the sum
    of nvec, which is the number of logits. num_aims: the number of continuous parts. Raises SpaceError if the space has
    neither discrete nor continuous parts.
    """

    def __init__(self, action_space: gymnasium.Space[Any]) -> None:
        self.space = action_space
        parts = action_space.spaces if isinstance(action_space, Tuple) else (action_space,)
        self.nvec = [n for part in parts for n in num_options(part)]
        self.num_options = sum(self.nvec)
        self.num_aims = sum(math.prod(part.shape) for part in parts if isinstance(part, Box))
        # Each part of the space, with the result of ``range_of`` if it is a Box.
        self._parts: list[tuple[Any, tuple[Any, Any] | None]]
        self._parts = [(part, range_of(part) if isinstance(part, Box) else None) for part in parts]
        self._has_tuple = isinstance(action_space, Tuple)
        if not self.nvec and not self.num_aims:
            raise SpaceError(f"no policy for {action_space}; use Discrete, MultiDiscrete, MultiBinary or Box parts")

    @property
    def num_outputs(self) -> int:
        """The number of a network's outputs per row: one logit per option and one mean per continuous part."""
        return self.num_options + self.num_aims

    def outputs(self, numbers: Tensor, log_std: Tensor) -> Outputs:
        """Convert a network's raw outputs to the outputs that a policy's ``forward`` returns.

        numbers: the raw outputs, (rows, num_outputs). log_std: (num_aims,), the same for all rows, or (rows, num_aims).
        """
        if not self.num_aims:
            return numbers
        mean = numbers[:, self.num_options :]
        std = log_std.exp().expand_as(mean)
        return (numbers[:, : self.num_options], mean, std) if self.nvec else (mean, std)

    def distribution(self, outputs: Outputs, action_mask: Tensor | None = None) -> Distribution:
        """Return the distribution of actions that a policy's outputs define.

        action_mask: bool (rows, num_options), True for allowed options; by default, all are allowed. Options that are
        not allowed are never drawn, whatever their logits. If a part has no allowed option, as in the rows of absent
        agents, any of its options may be drawn.
        """
        logits, mean, std = self._split(outputs)
        if action_mask is not None and self.nvec:
            logits = logits.masked_fill(~action_mask, torch.finfo(logits.dtype).min)
        # One discrete part is the most frequent case and needs no split.
        if len(self.nvec) == 1:
            return Distribution([logits], mean, std)
        return Distribution(torch.split(logits, self.nvec, dim=1), mean, std)

    def _split(self, outputs: Outputs) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(outputs, Tensor):
            none = outputs[:, :0]
            return outputs, none, none
        if self.nvec:
            logits, mean, std = outputs
            return logits, mean, std
        mean, std = outputs
        return mean[:, :0], mean, std

    @renamed_arguments(choices="discrete_actions", aims="continuous_actions")
    def actions(self, discrete_actions: Tensor, continuous_actions: Tensor) -> Any:
        """Convert actions to the form that ``VecEnv.send`` takes: an array or, for a Tuple space, a tuple of arrays."""
        parts = [
            _discrete(space, discrete_actions)
            if center_span is None
            else _continuous(space, *center_span, continuous_actions)
            for space, center_span in self._parts
        ]
        return tuple(parts) if self._has_tuple else parts[0]


class Distribution:
    """A distribution of actions whose parts are independent: categorical if discrete, normal if continuous."""

    def __init__(self, logits: Sequence[Tensor], mean: Tensor, std: Tensor) -> None:
        self.log_probs = [part.log_softmax(1) for part in logits]  # each (rows, n)
        self.mean, self.std = mean, std  # (rows, num_aims)

    def sample(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw (discrete_actions, continuous_actions) without gradients.

        generator: a generator on the device of the logits; by default, torch's global one.
        """
        # Of exponential clocks with rates p, the one with rate p[i] rings first with probability p[i].
        log_probs, mean = [part.detach() for part in self.log_probs], self.mean.detach()
        clocks = [torch.empty_like(part).exponential_(generator=generator) for part in log_probs]
        chosen = [(part - clock.log()).argmax(1) for part, clock in zip(log_probs, clocks, strict=True)]
        if not mean.shape[1]:
            return self._stacked(chosen), mean
        noise = torch.empty_like(mean).normal_(generator=generator)
        return self._stacked(chosen), mean + self.std.detach() * noise

    def sample_with(self, gumbels: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (discrete_actions, continuous_actions) that the given random numbers choose, without gradients.

        gumbels: (rows, number of logits), of the standard Gumbel distribution. normals: (rows, num_aims), of the
        standard normal distribution. Both are on the device of the logits.
        """
        parts = gumbels.split([part.shape[1] for part in self.log_probs], dim=1)
        chosen = [(part.detach() + noise).argmax(1) for part, noise in zip(self.log_probs, parts, strict=True)]
        return self._stacked(chosen), self.mean.detach() + self.std.detach() * normals

    def mode(self) -> tuple[Tensor, Tensor]:
        """Return the most likely (discrete_actions, continuous_actions), without gradients."""
        return self._stacked([part.argmax(1) for part in self.log_probs]), self.mean.detach()

    @renamed_arguments(choices="discrete_actions", aims="continuous_actions")
    def log_prob(self, discrete_actions: Tensor, continuous_actions: Tensor) -> Tensor:
        """Return the log-probability of each row's action, (rows,): the sum over its parts."""
        terms = [
            part.gather(1, chosen.unsqueeze(1)).squeeze(1)
            for part, chosen in zip(self.log_probs, discrete_actions.unbind(1), strict=True)
        ]
        if self.mean.shape[1]:
            deviations = (continuous_actions - self.mean) / self.std
            terms.append((-0.5 * deviations.square() - self.std.log() - 0.5 * math.log(2 * math.pi)).sum(1))
        return reduce(torch.add, terms)

    def entropy(self) -> Tensor:
        """Return the entropy of each row's distribution, (rows,): the sum over its parts."""
        terms = [-(part.exp() * part).sum(1) for part in self.log_probs]
        if self.mean.shape[1]:
            terms.append((self.std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(1))
        return reduce(torch.add, terms)

    def _stacked(self, chosen: list[Tensor]) -> Tensor:
        if len(chosen) == 1:
            return chosen[0].unsqueeze(1)
        return torch.stack(chosen, 1) if chosen else self.mean.new_empty((len(self.mean), 0), dtype=torch.int64)


def num_options(space: gymnasium.Space[Any] | None) -> list[int]:
    """Return the number of options of each discrete part of a space other than a Tuple; [] if it has none."""
    if isinstance(space, Discrete):
        return [int(space.n)]
    if isinstance(space, MultiDiscrete):
        return [int(n) for n in space.nvec.reshape(-1)]
    if isinstance(space, MultiBinary):
        return [2] * math.prod(space.shape)
    return []


def range_of(space: Box) -> tuple[Any, Any]:
    """Return the values that 0 stands for in a Box's elements, and their distances to those of 1."""
    low, high = np.isfinite(space.low), np.isfinite(space.high)
    # If a bound is missing, -1 to 1 spans two units: from the other bound, or around 0 if both are.
    least = np.where(low, space.low, np.where(high, space.high - 2.0, -1.0))
    most = np.where(high, space.high, np.where(low, space.low + 2.0, 1.0))
    low, high = least / 2, most / 2
    return high + low, high - low


def _discrete(space: gymnasium.Space[Any], discrete_actions: Tensor) -> np.ndarray[Any, Any]:
    """Return the actions of a space's discrete part."""
    flat: np.ndarray[Any, Any] = discrete_actions.cpu().numpy().reshape(-1, *(space.shape or ()))
    return (flat + getattr(space, "start", 0)).astype(space.dtype)


def _continuous(space: Box, center: Any, span: Any, continuous_actions: Tensor) -> np.ndarray[Any, Any]:
    """Return the actions of a space's Box. center, span: see ``range_of``."""
    values: np.ndarray[Any, Any] = span * continuous_actions.cpu().numpy().reshape(-1, *space.shape)
    values += center
    # For a few numbers, np.clip takes three times as long.
    np.minimum(np.maximum(values, space.low, out=values), space.high, out=values)
    rounded = values if space.dtype.kind == "f" else np.rint(values)
    return np.asarray(rounded, space.dtype)
