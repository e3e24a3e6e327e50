"""Divisions by steps, as a device does them: rounded as IEEE 754 says, for every number that kernels divide."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from devices import assert_same_bits
from kernel_functions import compiled
from test_exponentials import FLOATS

from cuda_ext.nvrtc import OPTIONS
from cuda_ext.references.exponentials import exponential, hyperbolic_tangent

pytestmark = pytest.mark.beside

FOLDER = Path(__file__).parents[2] / "cuda_ext"

HARNESS = """
#define DIVIDES_BY_STEPS STEPS
#include "host.h"
#include "division.cuh"

extern "C" long wrong_ratios(int first, int last, int step) {
    long wrong = 0;
    for (int denominator = first; denominator <= last; denominator += step) {
        const Divisor divisor(denominator);
        for (int number = 0; number <= 2 * denominator; number += 1 + denominator / 2000) {
            wrong += divisor.divide(number) != (float)number / (float)denominator;
            wrong += divisor.divide(-number) != (float)-number / (float)denominator;
        }
    }
    return wrong;
}

// Of the numbers from 1 to 2, whose other multiples by powers of two are rounded alike. The one just below 2 is left
// out: there the device's approximation is the nearest.
extern "C" long wrong_inverses(int units) {
    long wrong = 0;
    for (unsigned bits = 0x3F800000u; bits < 0x3FFFFFFFu; ++bits) {
        const float x = __uint_as_float(bits), approximation = __uint_as_float(__float_as_uint(1.0f / x) + units);
        wrong += twice_the_inverse(x, approximation) != 2.0f / x;
    }
    return wrong;
}
"""


def library_of(folder: Path, steps: int = 1, headers: Path | None = None) -> ctypes.CDLL:
    more = {} if headers is None else {"headers": headers}
    library = compiled(HARNESS.replace("STEPS STEPS", f"STEPS {steps}"), folder, "-O2", **more)
    library.wrong_ratios.restype = library.wrong_inverses.restype = ctypes.c_long
    return library


@pytest.mark.parametrize("steps", [0, 1])
def test_integers_are_divided_as_by_a_division(steps: int, tmp_path: Path) -> None:
    library = library_of(tmp_path, steps)
    assert library.wrong_ratios(1, 600, 1) == 0
    assert library.wrong_ratios(601, 2_000_000, 9_973) == library.wrong_ratios(2**30, 2**30 + 10**8, 10**7) == 0


@pytest.mark.parametrize("units", [-1, 0, 1])  # by which a device's instruction may err
def test_twice_the_inverse_is_that_of_a_division(units: int, tmp_path: Path) -> None:
    assert library_of(tmp_path).wrong_inverses(units) == 0


def test_a_step_less_would_show(tmp_path: Path) -> None:
    text = (FOLDER / "division.cuh").read_text()
    last = "return fmaf(inverse, fmaf(-denominator, sum, numerator), sum);"
    assert last in text
    headers = tmp_path / "headers"
    headers.mkdir()
    for file in FOLDER.glob("*.h"):
        (headers / file.name).write_text(file.read_text())
    first = "sum = fmaf(inverse, fmaf(-denominator, sum, numerator), sum);"
    (headers / "division.cuh").write_text(text.replace(first, "", 1).replace(last, "return sum + 0.0f * denominator;"))
    library = library_of(tmp_path, headers=headers)
    assert library.wrong_ratios(1, 600, 1) > 0 and library.wrong_inverses(1) > 0


ON_DEVICE = """
extern "C" __global__ void count_wrong(unsigned* wrong) {
    const unsigned bits = 0x3F800000u + blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __uint_as_float(bits);
    if (twice_the_inverse(x) != 2.0f / x) atomicAdd(wrong, 1);
    if (Divisor((int)(bits & 0xFFFFFF)).divide(77) != 77.0f / (float)(bits & 0xFFFFFF)) atomicAdd(wrong, 1);
}

extern "C" __global__ void play(const float* given, int count, float* exps, float* tanhs) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    exps[i] = exponential(given[i]);
    tanhs[i] = hyperbolic_tangent(given[i]);
}
"""


@pytest.mark.gpu
def test_a_device_divides_as_by_a_division(cuda: str) -> None:
    cupy = pytest.importorskip("cupy")
    headers = "\n".join((FOLDER / f"{name}.cuh").read_text() for name in ("division", "exponentials"))
    code = re.sub(r"#(pragma once|include .*)", "", headers) + ON_DEVICE
    with cupy.cuda.Device(torch.device(cuda).index or 0):
        module = cupy.RawModule(code=code, options=tuple(option for option in OPTIONS if "ptxas" not in option))
        wrong = cupy.zeros(1, np.uint32)
        module.get_function("count_wrong")((2**23 // 256,), (256,), (wrong,))
        assert int(wrong[0]) == 0
        numbers = FLOATS[(FLOATS == 0) | ~(np.abs(FLOATS) < 2**-126)]  # CuPy compiles so that smaller ones are 0
        exps, tanhs = cupy.zeros((2, len(numbers)), np.float32)
        module.get_function("play")(
            (-(-len(numbers) // 256),), (256,), (cupy.asarray(numbers), len(numbers), exps, tanhs)
        )
        with np.errstate(all="ignore"):
            for actual, function in ((exps, exponential), (tanhs, hyperbolic_tangent)):
                ours, theirs = cupy.asnumpy(actual), function(numbers)
                both = ~(np.isnan(ours) & np.isnan(theirs))
                assert_same_bits(ours[both], theirs[both])
