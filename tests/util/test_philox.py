"""Philox: the published answers, one function in three forms, and words that look like chance."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_functions import compiled
from numpy.lib.stride_tricks import sliding_window_view

from pufferlib.util.philox import below, philox, philox_array, uniform

pytestmark = pytest.mark.beside

MOST = 2**32 - 1
NAMES = ("seed", "episode", "step", "agent", "purpose", "block")
NUMBERS = st.tuples(*[st.sampled_from([0, 1, MOST]) | st.integers(0, MOST)] * len(NAMES))
# Words and what becomes of them, for rows of six numbers.
HARNESS = """
#define __device__
#define __forceinline__ inline
#include "philox.cuh"
#include "philox.cuh"

extern "C" void play(const unsigned* numbers, unsigned n, long rows, unsigned* words, unsigned* drawn, float* floats) {
  for (long i = 0; i < rows; i++, numbers += 6) {
    const Words found = philox(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]);
    for (int k = 0; k < 4; k++) {
      words[4 * i + k] = found.w[k];
      drawn[4 * i + k] = below(found.w[k], n);
      floats[4 * i + k] = uniform(found.w[k]);
    }
  }
}

extern "C" unsigned first_of_block_0() { return philox(1, 2, 3, 4, 5).w[0]; }
"""


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_published_answers(counter: str, key: str, words: str) -> None:
    """Those of Philox4x32-10 in the file of known answers that comes with Random123."""
    agent, step, episode, block = (int(word, 16) for word in counter.split())
    seed, purpose = (int(word, 16) for word in key.split())
    expected = tuple(int(word, 16) for word in words.split())
    assert philox(seed, episode, step, agent, purpose, block) == expected


@given(st.lists(NUMBERS, min_size=1, max_size=5), st.integers(1, 2**32))
def test_arrays_give_what_ints_give(rows: list[tuple[int, ...]], n: int) -> None:
    columns = np.array(rows, np.uint32).T
    words = philox_array(*columns)
    assert words.dtype == np.uint32
    expected = [philox(*row) for row in rows]
    assert words.T.tolist() == [list(row) for row in expected]
    assert below(words, n).T.tolist() == [[below(word, n) for word in row] for row in expected]
    assert uniform(words).T.tolist() == [[uniform(word) for word in row] for row in expected]


def test_arrays_are_broadcast() -> None:
    words = philox_array(np.array([[1], [2]], np.int64), 3, 4, np.arange(5, dtype=np.int8), MOST)
    assert words.shape == (4, 2, 5)
    assert tuple(words[:, 1, 3]) == philox(2, 3, 4, 3, MOST)
    assert philox_array(1, 2, 3, 4, 5).tolist() == list(philox(1, 2, 3, 4, 5, 0))
    assert philox_array(1, 2, 3, np.empty((0, 2), int), 5).shape == (4, 0, 2)


def test_numbers_of_numpy_are_ints_too() -> None:
    assert philox(*np.full(6, MOST, np.uint32)) == philox(*[MOST] * 6)
    assert below(np.uint32(MOST), 10) == below(MOST, 10) == 9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, 2**32])
def test_what_is_no_uint32_is_refused(name: str, value: int) -> None:
    numbers = {**dict.fromkeys(NAMES, 0), name: value}
    with pytest.raises(ValueError, match=rf"'{name}': {value}.*0 to 2\*\*32 - 1"):
        philox(**numbers)
    with pytest.raises(ValueError, match=rf"{name} has numbers from {value} to {value}; use 0 to"):
        philox_array(**numbers)
    with pytest.raises(ValueError, match=f"{name} is of float64; use integers"):
        philox_array(**{**numbers, name: 1.0})


def test_bounds() -> None:
    for n in (1, 2, 3, 10, 2**31 + 1, 2**32):
        assert (below(0, n), below(MOST, n)) == (0, n - 1)
    assert (uniform(0), uniform(255), uniform(256)) == (0, 0, 2**-24)
    assert uniform(MOST) == 1 - 2**-24 and uniform(MOST).dtype == np.float32


def test_each_word_counts_towards_the_share_of_its_number() -> None:
    """Of all words, seen at the limits: number k begins at the word ceil(k * 2**32 / n)."""
    for n in (3, 7, 1000, 2**31 - 1):
        for k in (1, n // 2, n - 1):
            first = -(-k * 2**32 // n)
            assert (below(first - 1, n), below(first, n)) == (k - 1, k)


def test_kernels_draw_the_same(tmp_path: Path) -> None:
    library = compiled(HARNESS, tmp_path)
    library.first_of_block_0.restype = ctypes.c_uint
    assert library.first_of_block_0() == philox(1, 2, 3, 4, 5)[0]

    rng = np.random.default_rng(1)
    corners = np.stack(np.meshgrid(*[[0, MOST]] * 6), axis=-1).reshape(-1, 6)
    numbers = np.concatenate([corners, rng.integers(0, 2**32, (5000, 6))]).astype(np.uint32)
    for n in (1, 11, 101, MOST):
        words, drawn = np.empty((2, len(numbers), 4), np.uint32)
        floats = np.empty((len(numbers), 4), np.float32)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (numbers, words, drawn, floats)]
        library.play(pointers[0], ctypes.c_uint(n), ctypes.c_long(len(numbers)), *pointers[1:])
        expected = philox_array(*numbers.T).T
        np.testing.assert_array_equal(words, expected)
        np.testing.assert_array_equal(drawn, below(expected, n))
        np.testing.assert_array_equal(floats, uniform(expected))


def chi_square(counts: np.ndarray) -> float:
    """By how many standard deviations, nearly, counts differ more than chance has them differ."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("name", NAMES)
def test_words_are_uniform_and_neighbours_know_nothing_of_each_other(name: str) -> None:
    """Neighbours in any of the six numbers, words of one draw, and both at once; the draws are always the same."""
    numbers = {**dict.fromkeys(NAMES, 3), name: np.arange(40_000)}
    drawn = below(philox_array(**numbers), 10).T  # (draws, 4)
    windows = sliding_window_view(drawn.ravel(), 6)  # a word, the three next to it, and the same word of the next draw
    for other in (1, 2, 3, 4, 5):
        counts = np.bincount(10 * windows[:, 0] + windows[:, other], minlength=100)
        assert abs(chi_square(counts)) < 5
    assert abs(chi_square(np.bincount(drawn.ravel(), minlength=10))) < 5
