"""Small networks that kernels play between steps: a torch.nn.Sequential as ``layers.cuh`` reads it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pufferlib.errors import KernelError

__all__ = ["CHUNK", "MOST_HIDDEN", "MOST_WIDTH", "Network", "sizes"]

MOST_HIDDEN = 3  # layers between inputs and outputs
MOST_WIDTH = 256  # outputs of a layer
CHUNK = 8  # layers.cuh's: layers are padded with zeros to multiples of it
FOLLOWS = {"Tanh": 1, "ReLU": 2}  # layers.cuh's TANH and RELU; 0: nothing
TAKEN = (
    f"a torch.nn.Sequential of Linear, Tanh and ReLU with up to {MOST_HIDDEN} hidden layers, of up to {MOST_WIDTH} "
    "outputs each"
)


@dataclass(frozen=True)
class Network:
    """A network as a launch is given it. Its weights are a copy, float32: what is trained meanwhile changes nothing.

    layers: outputs of each, and what follows it, a number of ``layers.cuh``. weights: for each layer the biases, then
    a row for each input, padded. width: of the widest layer, padded.
    """

    layers: tuple[tuple[int, int], ...]
    weights: Any
    width: int

    @classmethod
    def of(cls, policy: Any, num_inputs: int, num_outputs: int, device: Any) -> Network:
        """Return the network of a torch.nn.Sequential; where it is on the device, nothing crosses the bus.

        Raises KernelError for what no kernel plays, and for numbers of inputs and outputs other than these.
        """
        linears, follows = _taken_apart(policy)
        found = [linears[0].in_features, linears[-1].out_features]
        if found != [num_inputs, num_outputs]:
            raise KernelError(
                f"the policy makes {found[1]} logits of {found[0]} numbers, and these environments take {num_outputs} "
                f"logits and observe {num_inputs} numbers"
            )
        import torch

        parts = []
        with torch.no_grad():
            for each in linears:
                rows = each.weight.T if each.bias is None else torch.cat([each.bias[None], each.weight.T])
                missing = (0, -each.out_features % CHUNK, 1 if each.bias is None else 0, 0)
                parts.append(torch.nn.functional.pad(rows, missing).reshape(-1))
            weights = torch.cat(parts).to(device, torch.float32, copy=True)
        layers = tuple((each.out_features, following) for each, following in zip(linears, follows, strict=True))
        width, _ = sizes([num_inputs, *(outputs for outputs, _ in layers)])
        return cls(layers, weights, width)


def sizes(widths: Sequence[int]) -> tuple[int, int]:
    """Return the width and the number of weights of a padded network. widths: inputs, then outputs of each layer."""
    padded = [-(-width // CHUNK) * CHUNK for width in widths[1:]]
    return max(padded), sum((inputs + 1) * outputs for inputs, outputs in zip(widths, padded, strict=False))


def _taken_apart(policy: Any) -> tuple[list[Any], list[int]]:
    """Return the linear layers, and what follows each."""
    import torch

    if not isinstance(policy, torch.nn.Sequential):
        raise KernelError(f"policy is a {type(policy).__name__}; a rollout plays {TAKEN}, or use send_logits")
    linears: list[Any] = []
    follows: list[int] = []
    for place, each in enumerate(policy):
        kind = type(each).__name__
        if isinstance(each, torch.nn.Linear):
            linears.append(each)
            follows.append(0)
        elif kind in FOLLOWS and follows and follows[-1] == 0:
            follows[-1] = FOLLOWS[kind]
        elif not (isinstance(each, torch.nn.Flatten) and place == 0):
            raise KernelError(f"the policy has a {kind} at place {place}; a rollout plays {TAKEN}, or use send_logits")
    for one, following in itertools.pairwise(linears):
        if one.out_features != following.in_features:
            raise KernelError(
                f"the policy has a layer of {one.out_features} outputs before one of {following.in_features} inputs"
            )
    widths = [each.out_features for each in linears]
    if not 1 <= len(widths) <= MOST_HIDDEN + 1 or max(widths) > MOST_WIDTH:
        raise KernelError(f"the policy has {len(widths)} layers of {widths} outputs; a rollout plays {TAKEN}")
    return linears, follows
