"""Sine and cosine in float32, bit for bit equal to those of ``cuda_ext/trigonometry.cuh``, which kernels include.

Math libraries differ in the last bit, so these functions use only IEEE additions and multiplications, in the order
written here.
Source: the range reduction is from Cody and Waite, "Software Manual for the Elementary Functions", 1980; the
polynomials were fitted for this file to minimize the maximum error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["HALF_PI", "MOST_ANGLE", "TWO_PI", "sine_cosine", "without_turns", "wrapped"]

Floats = NDArray[np.float32]

HALF_PI, TWO_PI = np.float32(np.pi / 2), np.float32(2 * np.pi)
MOST_ANGLE = 8192.0
TWO_OVER_PI, INVERSE_TWO_PI = np.float32(2 / np.pi), np.float32(1 / (2 * np.pi))
ONE, HALF = np.float32(1), np.float32(0.5)
ROUNDER = np.float32(1.5 * 2**23)  # adding it to a number rounds that to an integer
# pi / 2 in parts: multiples of the first two are exact up to 2**13.
PARTS = np.array([1.5703125, 4.837512969970703e-4, 7.549790126404332e-8], np.float32)
SINE = np.array([-0.16666650772094727, 0.008331975899636745, -0.00019495293963700533], np.float32)
COSINE = np.array([0.04166664555668831, -0.0013887364184483886, 2.443809171381872e-5], np.float32)


def sine_cosine(angle: Floats) -> tuple[Floats, Floats]:
    """Return the sines and the cosines of angles from -MOST_ANGLE to MOST_ANGLE, in radians.

    Both are float32, from -1 to 1, and within 1e-7 of the exact values.
    """
    number = (angle * TWO_OVER_PI + ROUNDER) - ROUNDER  # of quarter turns
    rest = ((angle - number * PARTS[0]) - number * PARTS[1]) - number * PARTS[2]  # at most pi / 4
    square = rest * rest
    sine = rest + rest * square * (SINE[0] + square * (SINE[1] + square * SINE[2]))
    cosine = (ONE - square * HALF) + square * square * (COSINE[0] + square * (COSINE[1] + square * COSINE[2]))
    quarter = number.astype(np.int32)
    odd = quarter % 2 == 1
    return (
        _signed(np.where(odd, cosine, sine), quarter & 2),
        _signed(np.where(odd, sine, cosine), (quarter + 1) & 2),
    )


def wrapped(angle: Floats) -> Floats:
    """Wrap angles in [-TWO_PI, 2 * TWO_PI] into [0, TWO_PI), where TWO_PI is 2 pi as a float32."""
    angle = np.where(angle >= TWO_PI, angle - TWO_PI, angle)
    angle = np.where(angle < 0, angle + TWO_PI, angle)
    return np.where(angle >= TWO_PI, np.float32(0), angle)  # the sum may have been rounded up


def without_turns(angle: Any) -> Any:
    """Subtract whole turns from angles in [-MOST_ANGLE, MOST_ANGLE], float32 as the result.

    At most half a turn is left, up to rounding.
    """
    return angle - ((angle * INVERSE_TWO_PI + ROUNDER) - ROUNDER) * TWO_PI


def _signed(values: Floats, negative: NDArray[Any]) -> Floats:
    return np.where(negative != 0, -values, values)
