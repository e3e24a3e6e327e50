"""Small networks in NumPy: ``cuda_ext/layers.cuh`` is equal to them, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda_ext.references.exponentials import hyperbolic_tangent

__all__ = ["Layer", "forward"]

Floats = NDArray[np.float32]
Layer = tuple[Any, Any, str]  # weights (outputs, inputs), biases (outputs,); then "linear", "tanh" or "relu"


def forward(inputs: Floats, layers: Sequence[Layer]) -> Floats:
    """Return the outputs of the last layer, float32 (rows, outputs), for inputs (rows, inputs).

    A sum begins with the bias and adds the inputs in their order.
    """
    for weights, biases, activation in layers:
        sums = np.broadcast_to(np.asarray(biases, np.float32), (len(inputs), len(biases)))
        for i in range(inputs.shape[1]):
            sums = sums + inputs[:, i : i + 1] * np.asarray(weights, np.float32)[:, i]
        inputs = sums
        if activation == "tanh":
            inputs = hyperbolic_tangent(sums)
        if activation == "relu":
            inputs = np.where(sums < 0, np.float32(0), sums)
    return inputs
