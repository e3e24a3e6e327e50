"""Compute small networks in NumPy, bit for bit equal to ``cuda_ext/layers.cuh``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda_ext.references.exponentials import hyperbolic_tangent

__all__ = ["Layer", "activated", "forward"]

Floats = NDArray[np.float32]
Layer = tuple[Any, Any, str]  # weights (outputs, inputs), biases (outputs,); then "linear", "tanh" or "relu"


def forward(inputs: Floats, layers: Sequence[Layer]) -> Floats:
    """Return a network's outputs, float32 (rows, outputs), for inputs, float32 (rows, inputs).

    Each sum begins with the bias and adds the weighted inputs in order.
    """
    for weights, biases, activation in layers:
        sums = np.broadcast_to(np.asarray(biases, np.float32), (len(inputs), len(biases)))
        for i in range(inputs.shape[1]):
            sums = sums + inputs[:, i : i + 1] * np.asarray(weights, np.float32)[:, i]
        inputs = activated(sums, activation)
    return inputs


def activated(sums: Floats, activation: str) -> Floats:
    """Return a layer's outputs, given its sums. activation: as in ``Layer``."""
    if activation == "tanh":
        return hyperbolic_tangent(sums)
    if activation == "relu":
        return np.where(sums < 0, np.float32(0), sums)
    return sums
