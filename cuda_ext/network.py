"""Convert a torch.nn.Sequential for the code with which kernels compute small networks.

That is ``layers.cuh`` in float32 and, for tensor cores, ``tensor_cores.cuh`` in bfloat16.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pufferlib.errors import KernelError

__all__ = [
    "CHUNK",
    "MOST_HIDDEN",
    "MOST_WIDTH",
    "PART",
    "PRECISIONS",
    "Network",
    "described",
    "layers_of",
    "packed",
    "packed_fragments",
    "sizes",
]

MOST_HIDDEN = 3  # layers between inputs and outputs
MOST_WIDTH = 256  # outputs of a layer
CHUNK = 8  # as in layers.cuh: layers are zero-padded to multiples of it
PART = 16  # as in tensor_cores.cuh: inputs and outputs of layers are zero-padded to multiples of it
PRECISIONS = ("float32", "bfloat16")
ACTIVATIONS = {"Tanh": 1, "ReLU": 2}  # TANH and RELU of layers.cuh; 0: none
SUPPORTED = (
    f"a torch.nn.Sequential of Linear, Tanh and ReLU with up to {MOST_HIDDEN} hidden layers, of up to {MOST_WIDTH} "
    "outputs each"
)
ADVICE = f"a rollout plays {SUPPORTED}, or use send_logits"


@dataclass(frozen=True)
class Network:
    """A network in the layout that launches expect. Its weights are a copy, so training does not change them.

    layers: (number of outputs, activation) of each layer, with the activations numbered as in ``layers.cuh``.
    weights: in float32, for each layer the biases, then a row of weights for each input. Biases and rows are padded
        with zeros to a multiple of CHUNK numbers. In bfloat16, the result of ``packed_fragments``.
    width: the number of outputs of the widest layer, rounded up to a multiple of CHUNK or, in bfloat16, of PART.
    precision: one of PRECISIONS.
    """

    layers: tuple[tuple[int, int], ...]
    weights: Any
    width: int
    precision: str = "float32"

    @classmethod
    def of(cls, policy: Any, num_inputs: int, num_outputs: int, device: Any, precision: str = "float32") -> Network:
        """Convert a torch.nn.Sequential. Nothing is copied to or from the host if the policy is already on the device.

        The first network of a size is an exception, for which the order of its weights is copied to the device.
        Raises the errors of ``described``.
        """
        layers = described(policy, num_inputs, num_outputs, (), precision)["layers"][1:]
        linears, _ = layers_of(policy, ADVICE)
        weights = packed_fragments(linears) if precision == "bfloat16" else packed(linears).float()
        width, _ = sizes([num_inputs, *layers[::2]], precision)
        return cls(tuple(zip(layers[::2], layers[1::2], strict=True)), weights.to(device), width, precision)


def packed(linears: Sequence[Any]) -> Any:
    """Return the weights of layers as one vector, in the layout of ``Network.weights``, without gradients.

    A few operations gather it, which on a device take less time than those that would arrange layer after layer.
    """
    numbers = _numbers(linears)
    return numbers.index_select(0, _order(_shapes(linears), numbers.device))


def packed_fragments(linears: Sequence[Any]) -> Any:
    """Return the weights of layers as one int32 vector, in the order in which the lanes of a warp load them.

    For each layer, there are the biases, float32, then the weights, bfloat16, both padded with zeros to multiples of
    PART inputs and outputs: for PART outputs after PART outputs, for PART inputs after PART inputs, and for each lane
    its two registers of B for the first 8 outputs, then those for the others ("Matrix Fragments for mma.m16n8k16" of
    the PTX ISA). Gradients are not recorded.
    """
    import torch

    numbers = _numbers(linears)
    of_biases, of_weights, sizes_of_biases, sizes_of_weights = _fragment_orders(_shapes(linears), numbers.device)
    biases = numbers.index_select(0, of_biases).float().view(torch.int32).split(sizes_of_biases)
    weights = numbers.to(torch.bfloat16).index_select(0, of_weights).view(torch.int32).split(sizes_of_weights)
    return torch.cat([*itertools.chain(*zip(biases, weights, strict=True))])


def _shapes(linears: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Return the outputs and inputs of each layer."""
    return tuple((linear.out_features, linear.in_features) for linear in linears)


def _numbers(linears: Sequence[Any]) -> Any:
    """Return all weights and biases as one vector, layer by layer, followed by a zero. Biases that lack are zeros."""
    import torch

    parts = []
    with torch.no_grad():
        for linear in linears:
            biases = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
            parts += [linear.weight.reshape(-1), biases]
        return torch.cat([*parts, linears[0].weight.new_zeros(1)])


def _positions(shapes: Sequence[tuple[int, int]]) -> tuple[list[tuple[Any, Any]], int]:
    """Return where ``_numbers`` has each layer's weights, (outputs, inputs), and its biases; and where its zero is."""
    import torch

    layers, begin = [], 0
    for outputs, inputs in shapes:
        end = begin + outputs * inputs
        weights = torch.arange(begin, end, dtype=torch.int32).view(outputs, inputs)
        begin = end + outputs
        layers.append((weights, torch.arange(end, begin, dtype=torch.int32)))
    return layers, begin


@functools.lru_cache(maxsize=16)
def _order(shapes: tuple[tuple[int, int], ...], device: Any) -> Any:
    """Return where ``_numbers`` has the elements of ``packed``."""
    import torch

    layers, zero = _positions(shapes)
    parts = []
    for weights, biases in layers:
        rows = torch.cat([biases[None], weights.T])
        parts.append(torch.nn.functional.pad(rows, (0, -len(biases) % CHUNK), value=zero).reshape(-1))
    return torch.cat(parts).to(device)


@functools.lru_cache(maxsize=16)
def _fragment_orders(shapes: tuple[tuple[int, int], ...], device: Any) -> tuple[Any, Any, list[int], list[int]]:
    """Return where ``_numbers`` has the biases and weights of ``packed_fragments``, and their words in each layer."""
    import torch

    layers, zero = _positions(shapes)
    of_biases, of_weights, pad = [], [], torch.nn.functional.pad
    for weights, biases in layers:
        num_outputs, num_inputs = weights.shape
        of_biases.append(pad(biases, (0, -num_outputs % PART), value=zero))
        rows = pad(weights, (0, -num_inputs % PART, 0, -num_outputs % PART), value=zero)
        # Output 16 p + 8 h + n and input 16 k + 8 r + 2 m + i are in lane 4 n + m, in the half i of a register.
        fragments = rows.reshape(-1, 2, 8, rows.shape[1] // PART, 2, 4, 2)  # (p, h, n, k, r, m, i)
        of_weights.append(fragments.permute(0, 3, 2, 5, 1, 4, 6).reshape(-1))
    words = [len(part) for part in of_biases], [len(part) // 2 for part in of_weights]
    return torch.cat(of_biases).to(device), torch.cat(of_weights).to(device), *words


def sizes(widths: Sequence[int], precision: str = "float32") -> tuple[int, int]:
    """Return a network's padded width (see ``Network``), and the number of 32-bit words of its weights.

    These include biases and padding. widths: the number of inputs, then the number of each layer's outputs.
    """
    if precision == "bfloat16":
        padded = [-(-width // PART) * PART for width in widths]
        return max(padded[1:]), sum(after + before * after // 2 for before, after in itertools.pairwise(padded))
    padded = [-(-width // CHUNK) * CHUNK for width in widths[1:]]
    return max(padded), sum((inputs + 1) * outputs for inputs, outputs in zip(widths, padded, strict=False))


def described(
    policy: Any, num_inputs: int, num_outputs: int, options: Sequence[int], precision: str = "float32"
) -> dict[str, Any]:
    """Return the arguments of ``Shape.of`` that describe a torch.nn.Sequential. options: of each choice.

    Raises KernelError if kernels do not support the policy or the precision, or if the policy does not have num_inputs
    inputs and num_outputs outputs.
    """
    if precision not in PRECISIONS:
        raise KernelError(f"precision={precision!r} of a policy; use {' or '.join(map(repr, PRECISIONS))}")
    linears, activations = layers_of(policy, ADVICE)
    _require_size(linears)
    actual = [linears[0].in_features, linears[-1].out_features]
    if actual != [num_inputs, num_outputs]:
        raise KernelError(
            f"the policy makes {actual[1]} logits of {actual[0]} numbers, and these environments take "
            f"{num_outputs} logits and observe {num_inputs} numbers"
        )
    outputs = [linear.out_features for linear in linears]
    width, num_weights = sizes([num_inputs, *outputs], precision)
    return {
        "network_width": width,
        "num_weights": num_weights,
        "tensor_cores": precision == "bfloat16",
        "layers": (num_inputs, *itertools.chain(*zip(outputs, activations, strict=True))),
        "options": tuple(options),
    }


def layers_of(network: Any, advice: str) -> tuple[list[Any], list[int]]:
    """Return a torch.nn.Sequential's linear layers, and the number of the activation after each layer, 0 for none.

    advice: the end of the error message. Raises KernelError if it has other parts than Linear, Tanh and ReLU, or if
    the sizes of neighbouring layers differ.
    """
    import torch

    if not isinstance(network, torch.nn.Sequential):
        raise KernelError(f"the policy is a {type(network).__name__}; {advice}")
    linears: list[Any] = []
    activations: list[int] = []
    for index, module in enumerate(network):
        kind = type(module).__name__
        if isinstance(module, torch.nn.Linear):
            linears.append(module)
            activations.append(0)
        elif kind in ACTIVATIONS and activations and activations[-1] == 0:
            activations[-1] = ACTIVATIONS[kind]
        elif not (isinstance(module, torch.nn.Flatten) and index == 0):
            raise KernelError(f"the policy has a {kind} at place {index}; {advice}")
    for layer, next_layer in itertools.pairwise(linears):
        if layer.out_features != next_layer.in_features:
            raise KernelError(
                f"the policy has a layer of {layer.out_features} outputs before one of {next_layer.in_features} inputs"
            )
    return linears, activations


def _require_size(linears: Sequence[Any]) -> None:
    """Raise KernelError if a network has more or larger layers than kernels support."""
    widths = [linear.out_features for linear in linears]
    if not 1 <= len(widths) <= MOST_HIDDEN + 1 or max(widths) > MOST_WIDTH:
        raise KernelError(f"the policy has {len(widths)} layers of {widths} outputs; {ADVICE}")
