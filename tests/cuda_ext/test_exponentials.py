"""exp, log and tanh of our own: near the exact ones, and the same to the bit for NumPy and for kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kernel_functions import compiled

from cuda_ext.references.exponentials import LEAST_POWER, MOST_POWER, exponential, hyperbolic_tangent, logarithm

pytestmark = pytest.mark.beside

FUNCTIONS = (exponential, logarithm, hyperbolic_tangent)
HARNESS = """
#include "host.h"
#include "exponentials.cuh"
#include "exponentials.cuh"

extern "C" void play(const float* given, long count, float* exps, float* logs, float* tanhs) {
    for (long i = 0; i < count; i++) {
        exps[i] = exponential(given[i]);
        logs[i] = logarithm(given[i]);
        tanhs[i] = hyperbolic_tangent(given[i]);
    }
}
"""


def floats() -> np.ndarray:
    """Every 3989th float32 there is, numbers of every size up to 100, and those around which something changes."""
    all_sizes = np.arange(0, 2**32, 3989, dtype=np.uint32).view(np.float32)
    drawn = np.random.default_rng(0).uniform(-100, 100, 1_000_000).astype(np.float32)
    near = np.float32([0.0, 0.625, 1.0, 2**-126, LEAST_POWER, MOST_POWER, np.sqrt(0.5), np.sqrt(2), np.log(2) / 2])
    around = (near.view(np.int32)[:, np.newaxis] + np.arange(-4, 5)).astype(np.int32).view(np.float32).ravel()
    special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38])
    return np.concatenate([all_sizes, drawn, around, -around, special])


FLOATS = floats()


@pytest.mark.parametrize(
    ("ours", "theirs", "most"),
    [(exponential, np.exp, 1e-7), (logarithm, np.log, 1e-7), (hyperbolic_tangent, np.tanh, 1.5e-7)],
    ids=["exp", "log", "tanh"],
)
def test_near_the_exact_ones(ours: Callable[..., np.ndarray], theirs: Callable[..., np.ndarray], most: float) -> None:
    with np.errstate(all="ignore"):
        actual, exact = ours(FLOATS), theirs(FLOATS.astype(np.float64))
        error = np.abs(actual - exact) / np.abs(exact)
    assert actual.dtype == np.float32
    normal = (np.abs(exact) > 2.0**-125) & (np.abs(exact) < np.finfo(np.float32).max)
    assert normal.sum() > 100_000 and error[normal].max() < most
    if ours is exponential:
        assert (actual[FLOATS < LEAST_POWER] == 0).all() and (actual[FLOATS > MOST_POWER] == np.inf).all()
        assert np.isfinite(actual[FLOATS <= MOST_POWER]).all()


def test_ends_of_their_ranges() -> None:
    ends = np.float32([-np.inf, -88, 0, -0.0, 89, np.inf])
    assert exponential(ends).tolist() == [0, 0, 1, 1, np.inf, np.inf]
    assert hyperbolic_tangent(ends).tolist() == [-1, -1, 0, 0, 1, 1]
    assert logarithm(np.float32([0, -0.0, 1, np.inf])).tolist() == [-np.inf, -np.inf, 0, np.inf]
    assert np.isnan(logarithm(np.float32([-1, -1e-45, -np.inf]))).all()
    assert all(np.isnan(function(np.float32([np.nan]))).all() for function in FUNCTIONS)


@pytest.mark.parametrize("level", [pytest.param("-O0", marks=pytest.mark.long), "-O3"])
def test_kernels_compute_the_same(level: str, tmp_path: Path) -> None:
    library = compiled(HARNESS, tmp_path, level)
    results = np.empty((3, len(FLOATS)), np.float32)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (FLOATS, *results)]
    library.play(pointers[0], ctypes.c_long(len(FLOATS)), *pointers[1:])
    for ours, function in zip(results, FUNCTIONS, strict=True):
        with np.errstate(all="ignore"):
            theirs = function(FLOATS)
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
