"""Compute small networks in bfloat16 in NumPy, equal to ``cuda_ext/tensor_cores.cuh`` but for what devices leave open.

A device may round the sums of a product in any order, and approximates tanh. Fibres compute both as this file does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cuda_ext.network import PART
from cuda_ext.references.layers import Floats, Layer, activated

__all__ = ["error_bound", "forward", "rounded", "standard_error"]

ROUNDING = 2.0**-8  # the largest relative error of rounding to bfloat16, which has 8 significant bits
TANGENT = 2.0**-11  # the largest relative error of a device's tanh (PTX ISA, tanh.approx.f32)


def rounded(numbers: Floats) -> Floats:
    """Return the nearest bfloat16 numbers, ties to even, as float32. NaN stays NaN."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    nearest = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(numbers), np.float32(np.nan), nearest)


def forward(inputs: Floats, layers: Sequence[Layer]) -> Floats:
    """Return a network's outputs, float32 (rows, outputs), for inputs, float32 (rows, inputs).

    Weights and the inputs of each layer are rounded to bfloat16. A sum begins with the bias, in float32; after the
    products of each PART inputs it is rounded to float32.
    """
    for weights, biases, activation in layers:
        factors, matrix = rounded(inputs).astype(np.float64), rounded(weights).astype(np.float64)
        sums = np.broadcast_to(np.asarray(biases, np.float32), (len(inputs), len(biases)))
        for first in range(0, inputs.shape[1], PART):
            total = sums.astype(np.float64)
            for i in range(first, min(first + PART, inputs.shape[1])):
                total += factors[:, i : i + 1] * matrix[:, i]
            sums = total.astype(np.float32)
        inputs = activated(sums, activation)
    return inputs


def error_bound(inputs: Floats, layers: Sequence[Layer]) -> NDArray[np.float64]:
    """Return how far outputs in bfloat16, of fibres or a device, can be from those in float32, float64 (rows, outputs).

    A weight w and an input x whose error is at most e, both rounded, have a product that is at most
    ``|w| e + |w| (|x| + e) ((1 + ROUNDING)² - 1)`` from w x. The sum of n of them, in any order, with truncation rather
    than rounding, errs by at most 2⁻²³ of the sum of magnitudes for each addition; as much again is for float32's own
    sum. tanh and ReLU do not enlarge an error; a device's tanh adds TANGENT, and twice 2⁻²² are for that of float32.
    """
    exact, error = np.asarray(inputs, np.float64), np.zeros(inputs.shape)
    product = (1 + ROUNDING) ** 2
    for weights, biases, activation in layers:
        sizes, offsets = np.abs(np.asarray(weights, np.float64)), np.asarray(biases, np.float64)
        largest = (np.abs(exact) + error) @ sizes.T
        magnitudes = np.abs(offsets) + product * largest
        error = error @ sizes.T + (product - 1) * largest + (exact.shape[1] + 1) * 2.0**-22 * magnitudes
        exact = _activated(exact @ np.asarray(weights, np.float64).T + offsets, activation)
        if activation == "tanh":
            error = np.minimum(error, 2) + TANGENT + 2.0**-21
    return error


def standard_error(inputs: Floats, layers: Sequence[Layer]) -> NDArray[np.float64]:
    """Return the standard deviation of the same difference, float64 (rows, outputs).

    Rounding errors are taken as independent, and as uniform up to ROUNDING of a number, so that their variance is a
    third of that squared. The errors of sums in float32 are left out.
    """
    exact, variance = np.asarray(inputs, np.float64), np.zeros(inputs.shape)
    for weights, biases, activation in layers:
        matrix = np.asarray(weights, np.float64)
        variance = (variance + (exact**2 + variance) * 2 * ROUNDING**2 / 3) @ (matrix**2).T
        exact = _activated(exact @ matrix.T + biases, activation)
        if activation == "tanh":
            variance = variance + TANGENT**2 / 3
    return np.sqrt(variance)


def _activated(sums: NDArray[np.float64], activation: str) -> NDArray[np.float64]:
    if activation == "tanh":
        return np.tanh(sums)
    return np.maximum(sums, 0) if activation == "relu" else sums
