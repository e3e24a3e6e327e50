"""Sine and cosine of our own: near the exact ones, and the same to the bit for NumPy and for kernels."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from kernel_functions import compiled

from cuda_ext.references.trigonometry import HALF_PI, MOST_ANGLE, TWO_PI, sine_cosine, without_turns, wrapped

pytestmark = pytest.mark.beside

HARNESS = """
#define __device__
#define __forceinline__ inline
#include "trigonometry.cuh"
#include "trigonometry.cuh"

extern "C" void play(const float* angles, long count, float* sines, float* cosines, float* inside,
                     float* turned) {
    for (long i = 0; i < count; i++) {
        const SineCosine found = sine_cosine(angles[i]);
        sines[i] = found.sine;
        cosines[i] = found.cosine;
        inside[i] = wrapped(angles[i]);
        turned[i] = without_turns(angles[i]);
    }
}

extern "C" float constants(int which) { return which ? HALF_PI : TWO_PI; }
"""


def angles(most: float, count: int = 1_000_000) -> np.ndarray:
    """Random angles up to ``most``, either sign, and those around quarter turns, where quadrants change."""
    quarters = np.arange(-int(most / HALF_PI), int(most / HALF_PI) + 1).repeat(9) * np.pi / 4
    near = (quarters.astype(np.float32).view(np.int32) + np.tile(np.arange(-4, 5), len(quarters) // 9)).astype(np.int32)
    drawn = np.random.default_rng(0).uniform(-most, most, count).astype(np.float32)
    values = np.concatenate([drawn, near.view(np.float32), np.float32([0.0, -0.0, most, -most, 1e-30])])
    return values[np.abs(values) <= most]


@pytest.mark.parametrize("most", [np.pi / 4, float(TWO_PI), MOST_ANGLE])
def test_near_the_exact_ones(most: float) -> None:
    for part in np.array_split(angles(most), 4):
        exact = part.astype(np.float64)
        sine, cosine = sine_cosine(part)
        assert sine.dtype == cosine.dtype == np.float32
        assert np.abs(sine - np.sin(exact)).max() < 1e-7
        assert np.abs(cosine - np.cos(exact)).max() < 1e-7
        assert max(np.abs(sine).max(), np.abs(cosine).max()) <= 1


def test_right_angles_lead_along_the_axes() -> None:
    sine, cosine = sine_cosine(np.arange(4, dtype=np.float32) * HALF_PI)
    assert (sine[0], cosine[0], sine[1], cosine[2], sine[3]) == (0, 1, 1, -1, -1)
    assert max(np.abs(cosine[[1, 3]]).max(), abs(sine[2])) < 1e-7


def test_a_direction_stays_below_a_turn() -> None:
    inputs = angles(2 * float(TWO_PI))
    inputs = inputs[inputs >= -TWO_PI]
    actual = wrapped(inputs)
    assert actual.dtype == np.float32 and actual.min() == 0 and actual.max() < TWO_PI
    turned = (inputs.astype(np.float64) - actual) / float(TWO_PI)
    assert np.abs(turned - turned.round()).max() < 1e-7 and set(turned.round()) == {-1, 0, 1, 2}
    inside = (inputs >= 0) & (inputs < TWO_PI)
    np.testing.assert_array_equal(actual[inside], inputs[inside])
    corners = np.float32([TWO_PI, 2 * TWO_PI, -TWO_PI, -1e-30, 0])
    assert wrapped(corners).tolist() == [0] * 5


def test_whole_turns_are_subtracted() -> None:
    for most, error in ((float(TWO_PI), 1e-6), (MOST_ANGLE, 1e-3)):
        inputs = angles(most, 10_000)
        actual = without_turns(inputs)
        assert actual.dtype == np.float32 and np.abs(actual).max() < np.pi + error
        turned = (inputs.astype(np.float64) - actual) / float(TWO_PI)
        assert np.abs(turned - turned.round()).max() < error


@pytest.mark.parametrize("level", [pytest.param("-O0", marks=pytest.mark.long), "-O3"])
def test_kernels_compute_the_same(level: str, tmp_path: Path) -> None:
    library = compiled(HARNESS, tmp_path, level)
    library.constants.restype = ctypes.c_float
    assert (library.constants(0), library.constants(1)) == (TWO_PI, HALF_PI)

    for most in (2 * float(TWO_PI), MOST_ANGLE):
        inputs = angles(most)
        results = np.empty((4, len(inputs)), np.float32)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (inputs, *results)]
        library.play(pointers[0], ctypes.c_long(len(inputs)), *pointers[1:])
        for ours, theirs in zip(results, (*sine_cosine(inputs), wrapped(inputs), without_turns(inputs)), strict=True):
            np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
