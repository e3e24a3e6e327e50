"""PufferLib's ``pytorch``: nested observations as tensors, and the distributions of its policies."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from pufferlib.compat.exceptions import APIUsageError
from pufferlib.compat.versions import version_of_program

__all__ = [
    "LITTLE_BYTE_ORDER",
    "LSTM",
    "BatchFirstLSTM",
    "NativeDType",
    "NativeDTypeValue",
    "compilable_cast",
    "cycle_selector",
    "entropy",
    "entropy_probs",
    "flattened_tensor_size",
    "layer_init",
    "log_prob",
    "nativize_dtype",
    "nativize_observation",
    "nativize_tensor",
    "numpy_to_torch_dtype_dict",
    "round_to",
    "sample_logits",
]

LITTLE_BYTE_ORDER = sys.byteorder == "little"
NativeDTypeValue = tuple[torch.dtype, Sequence[int], int, int]  # dtype, shape, offset, length
NativeDType = Any  # a NativeDTypeValue, or a dict of them by key, at any depth

numpy_to_torch_dtype_dict = {
    np.dtype(name): getattr(torch, name)
    for name in (
        *("float64", "float32", "float16"),
        *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    )
    if hasattr(torch, name)
}


def nativize_dtype(emulated: Any) -> NativeDType:
    """Return where the leaves of an observation lie in a row.

    emulated: an environment's ``emulated``, with items or attributes observation_dtype and emulated_observation_dtype.
    A leaf is (torch dtype, shape, offset, length), with offset and length in elements of a row; a Dict or Tuple is a
    dict of its parts by key, "f0", "f1", … for a Tuple. Raises APIUsageError for a dtype that torch does not have.
    """
    row, structure = (
        emulated[name] if isinstance(emulated, Mapping) else getattr(emulated, name)
        for name in ("observation_dtype", "emulated_observation_dtype")
    )
    return _nativize_dtype(np.dtype(row), np.dtype(structure))


def _nativize_dtype(sample_dtype: np.dtype[Any], structured_dtype: np.dtype[Any], offset: int = 0) -> NativeDType:
    """Return ``nativize_dtype`` of a part of a row. offset: the part's first byte in the row."""
    if structured_dtype.fields is None:
        base, shape = structured_dtype.base, structured_dtype.shape or (1,)
        if base not in numpy_to_torch_dtype_dict:
            raise APIUsageError(f"torch has no dtype for {base}; use a space of another dtype")
        size, unit = base.itemsize * int(np.prod(shape)), sample_dtype.base.itemsize  # a row's dtype may have a shape
        return numpy_to_torch_dtype_dict[base], shape, offset // unit, size // unit
    assert structured_dtype.names is not None
    return {
        name: _nativize_dtype(
            sample_dtype, *structured_dtype.fields[name][:1], offset + structured_dtype.fields[name][1]
        )
        for name in structured_dtype.names
    }


def nativize_tensor(observation: Tensor, native_dtype: NativeDType) -> Any:
    """Return a batch's leaves as tensors (rows, \\*shape), in dicts like ``native_dtype``.

    observation: (rows, size), of the row's dtype. The tensors are views, unless the rows' alignment does not allow it.
    """
    if isinstance(native_dtype, dict):
        return {key: nativize_tensor(observation, part) for key, part in native_dtype.items()}
    dtype, shape, offset, length = native_dtype
    if observation.dtype != dtype or observation.ndim == 2:
        part = observation.reshape(len(observation), -1)[:, offset : offset + length]
        if part.dtype != dtype:
            try:
                part = part.view(dtype)
            except RuntimeError:  # not aligned
                part = part.contiguous().view(dtype)
        return part.reshape(len(observation), *shape)
    return observation.reshape(len(observation), *shape)


def nativize_observation(observation: Tensor, emulated: Any) -> Any:
    """Return ``nativize_tensor`` of a batch, for an environment's ``emulated``."""
    return nativize_tensor(observation, nativize_dtype(emulated))


def flattened_tensor_size(native_dtype: NativeDType) -> int:
    """Return the number of values in all leaves of one observation."""
    if isinstance(native_dtype, dict):
        return sum(flattened_tensor_size(part) for part in native_dtype.values())
    return int(np.prod(native_dtype[1]))


def round_to(x: float, base: int) -> int:
    """Return the smallest multiple of ``base`` that is at least ``x``."""
    return int(base * math.ceil(x / base))


def compilable_cast(u8: Tensor, dtype: torch.dtype) -> Tensor:
    """Return bytes (…, n) as values of a dtype, (…, n / itemsize)."""
    return u8.contiguous().view(dtype)


def layer_init(layer: nn.Module, std: float = math.sqrt(2), bias_const: float = 0.0) -> nn.Module:
    """Give a layer orthogonal weights of gain ``std`` and a constant bias, and return it."""
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    if weight is not None:
        nn.init.orthogonal_(weight, std)
    if bias is not None:
        nn.init.constant_(bias, bias_const)
    return layer


class LSTM(nn.LSTM):
    """An LSTM with orthogonal weights and biases 0, for inputs (steps, rows, input_size)."""

    def __init__(self, input_size: int = 128, hidden_size: int = 128, num_layers: int = 1) -> None:
        super().__init__(input_size, hidden_size, num_layers)
        for name, parameter in self.named_parameters():
            if "bias" in name:
                nn.init.constant_(parameter, 0)
            else:
                nn.init.orthogonal_(parameter)


class BatchFirstLSTM(nn.LSTM):
    """An LSTM for inputs (rows, steps, input_size), whose states are (rows, layers, hidden_size)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, batch_first=True, **kwargs)

    def forward(self, input: Tensor, hx: Any = None) -> Any:  # type: ignore[override]
        """Return outputs (rows, steps, hidden_size) and the states after the last step."""
        if hx is not None:
            hx = tuple(part.transpose(0, 1).contiguous() for part in hx)
        hidden, states = super().forward(input, hx)
        return hidden, tuple(part.transpose(0, 1) for part in states)


def cycle_selector(sample_idx: int, num_policies: int) -> int:
    """Return the policy of a sample, if the policies take turns."""
    return sample_idx % num_policies


def log_prob(logits: Tensor, value: Tensor) -> Tensor:
    """Return the logarithm of the probability of each row's value. logits: (rows, n). value: (rows,)."""
    normalized = logits.log_softmax(-1)
    return normalized.gather(-1, value.long().unsqueeze(-1)).squeeze(-1)


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each row's distribution. logits: (…, n), normalized or not."""
    normalized = logits.log_softmax(-1)
    return entropy_probs(normalized, normalized.exp())


def entropy_probs(logits: Tensor, probs: Tensor) -> Tensor:
    """Return the entropy of each row's distribution. logits: the logarithms of probs, (…, n)."""
    return -(logits.clamp(min=torch.finfo(logits.dtype).min) * probs).sum(-1)


def sample_logits(
    logits: Any, action: Tensor | None = None, is_continuous: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Sample actions, or take given ones; return (actions, logprobs, entropies).

    logits: (rows, n) for one discrete action, whose actions are (rows,); a list or tuple of these for several, whose
        actions are (rows, k); or a Normal of shape (rows, d), whose actions are (rows, d). Logprobs and entropies are
        (rows,), summed over the actions of a row.
    action: actions to take instead, of the same number of elements. is_continuous: accepted; a Normal tells.

    Sampled discrete actions are int32, or int64 in programs for versions 1 and 2.
    """
    if isinstance(logits, Normal):
        taken = logits.sample() if action is None else action.view(logits.loc.shape)
        return taken, logits.log_prob(taken).sum(-1), logits.entropy().sum(-1)
    alone = isinstance(logits, Tensor)
    parts = [logits] if alone else list(logits)
    normalized = [part.float().log_softmax(-1) for part in parts]
    rows = normalized[0].shape[:-1]
    if action is None:
        probs = [torch.nan_to_num(part.exp(), nan=1e-8, posinf=1e-8, neginf=1e-8) for part in normalized]
        samples = [torch.multinomial(part.reshape(-1, part.shape[-1]), 1).reshape(rows) for part in probs]
        chosen = torch.stack(samples, -1)
    else:
        chosen = action.reshape(*rows, len(parts)).long()
    logprobs = sum(part.gather(-1, chosen[..., i : i + 1]).squeeze(-1) for i, part in enumerate(normalized))
    entropies = sum(entropy_probs(part, part.exp()) for part in normalized)
    if action is None:
        action = chosen if version_of_program() in (1, 2) else chosen.int()
    else:
        action = action.reshape(*rows, len(parts))
    return action.squeeze(-1) if alone else action, logprobs, entropies  # type: ignore[return-value]
