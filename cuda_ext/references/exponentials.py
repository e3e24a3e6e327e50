"""Compute exp, log and tanh in float32, bit for bit equal to ``cuda_ext/exponentials.cuh``, which kernels include.

Math libraries differ in the last bit, so these functions use only IEEE operations, in the order written here. They take
and return float32 arrays of at least one dimension; NaN remains NaN.
Source: the reductions are from Cody and Waite, "Software Manual for the Elementary Functions", 1980; the polynomials
minimize the greatest relative error, and were fitted for this file.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST_POWER", "MOST_POWER", "exponential", "hyperbolic_tangent", "logarithm"]

Floats = NDArray[np.float32]

LEAST_POWER, MOST_POWER = np.float32(-87.33654022216797), np.float32(88.72283172607422)
ONE_OVER_LOG_2 = np.float32(1.4426950216293335)
LOG_2 = np.array([0.693359375, -0.00021219444170128554], np.float32)  # in parts: multiples of the first are exact
ROUNDER = np.float32(1.5 * 2**23)  # adding it to a number rounds that to an integer
LEAST_NORMAL = np.float32(2.0**-126)
ROOT_BITS = 0x3F3504F3  # of sqrt(1/2)
POWER = np.array(
    [0.4999999403953552, 0.1666652113199234, 0.04166826233267784, 0.00836867094039917, 0.001382104237563908], np.float32
)
LOGARITHM = np.array(
    [
        0.3333333134651184, -0.2500081956386566, 0.2000124305486679, -0.1662341058254242, 0.14201539754867554,
        -0.13159550726413727, 0.12762485444545746, -0.07636940479278564,
    ],
    np.float32,
)  # fmt: skip
TANGENT = np.array(
    [-0.3333328068256378, 0.1333140879869461, -0.05373691767454147, 0.02062983624637127, -0.005694468040019274],
    np.float32,
)


def exponential(x: Floats) -> Floats:
    """Return exp(x), with a relative error below 1e-7.

    The result is infinite for x above MOST_POWER. For x below LEAST_POWER it is 0 instead of a subnormal number, since
    results that are subnormal depend on the processor's settings.
    """
    inside = (x >= LEAST_POWER) & (x <= MOST_POWER)
    power = np.where(inside, x, np.float32(0))
    number = (power * ONE_OVER_LOG_2 + ROUNDER) - ROUNDER  # of doublings
    rest = (power - number * LOG_2[0]) - number * LOG_2[1]  # at most log(2) / 2
    result = 1 + (rest + rest * rest * _polynomial(POWER, rest))
    doublings = number.astype(np.int32)
    half = doublings >> 1  # in two factors: 2 to the 128 is no float32
    result = result * _power_of_2(half) * _power_of_2(doublings - half)
    return np.where(inside, result, np.where(np.isnan(x), x, np.where(x < 0, np.float32(0), np.float32(np.inf))))


def logarithm(x: Floats) -> Floats:
    """Return the natural logarithm of x, with a relative error below 1e-7; -inf for 0, NaN for negative numbers."""
    normal = (x > 0) & (x < np.inf)
    subnormal = normal & (x < LEAST_NORMAL)
    bits = np.where(normal, np.where(subnormal, x * np.float32(2**23), x), np.float32(1)).view(np.int32)
    doublings = (bits - np.int32(ROOT_BITS)) >> 23
    f = (bits - (doublings << 23)).view(np.float32) - 1  # of a number from sqrt(1/2) to sqrt(2)
    number, square = np.where(subnormal, doublings - 23, doublings).astype(np.float32), f * f
    tail = f * square * _polynomial(LOGARITHM, f)
    result = (f + ((tail + number * LOG_2[1]) - np.float32(0.5) * square)) + number * LOG_2[0]
    others = np.where(x == 0, np.float32(-np.inf), np.where(x < 0, np.float32(np.nan), x))
    return np.where(normal, result, others)


def hyperbolic_tangent(x: Floats) -> Floats:
    """Return tanh(x), a value from -1 to 1, with a relative error below 1.5e-7."""
    size = np.abs(x)
    near = np.where(size < np.float32(0.625), x, np.float32(0))
    square = near * near
    far = 1 - 2 / (exponential(size + size) + 1)
    signed = np.where(np.isnan(x), x, np.where(x < 0, -far, far))
    return np.where(size < np.float32(0.625), near + near * square * _polynomial(TANGENT, square), signed)


def _polynomial(factors: Floats, x: Floats) -> Floats:
    result = np.full_like(x, factors[-1])
    for factor in factors[-2::-1]:
        result = factor + x * result
    return result


def _power_of_2(number: NDArray[np.int32]) -> Floats:
    return ((number + 127) << 23).view(np.float32)
