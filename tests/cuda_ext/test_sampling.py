"""Choosing actions of logits: as often as they say, never what is forbidden, and the same to the bit for kernels."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_functions import compiled

from cuda_ext.network import CHUNK
from cuda_ext.references.layers import forward
from cuda_ext.references.sampling import POLICY, sampled, sampled_numbers, words_of
from pufferlib.models.distributions import Decisions
from pufferlib.util.philox import philox, uniform

pytestmark = pytest.mark.beside

MOST_WORD = 2**32 - 1
HARNESS = """
#include "host.h"
#include "sampling.cuh"
#include "layers.cuh"

template <int... COUNTS> Choice choose_known(const float* logits, const unsigned char* masks, int n, unsigned word,
                                             bool greedy) {
    Choice found = {-1, 0.0f, 0.0f};
    ((n == COUNTS ? (found = choose_option<COUNTS>(logits, masks, n, word, greedy), 0) : 0), ...);
    return found;
}

// Returns the choice, or the option -1 where the compiler's knowledge of n changes a bit of it.
static Choice choose_both(const float* logits, const unsigned char* masks, int n, unsigned word, bool greedy) {
    Choice found = choose_option(logits, masks, n, word, greedy);
    const Choice known = choose_known<1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>(logits, masks, n, word, greedy);
    if (n <= 12 && memcmp(&found, &known, sizeof found)) found.option = -1;
    return found;
}

extern "C" void choose(long rows, int num_choices, const int* nvec, const float* logits, const unsigned char* masks,
                       const unsigned* words, int greedy, long long* options, float* log_probs, float* entropies) {
    for (long row = 0; row < rows; ++row) {
        for (int k = 0; k < num_choices; ++k) {
            const Choice found = choose_both(logits, masks, nvec[k], *words++, greedy);
            *options++ = found.option;
            log_probs[row] += found.log_prob;
            entropies[row] += found.entropy;
            logits += nvec[k];
            if (masks != nullptr) masks += nvec[k];
        }
    }
}

extern "C" void draw(long rows, int num_continuous, const float* means, const float* log_std, const unsigned* words,
                     int greedy, float* numbers, float* log_probs, float* entropies) {
    for (long row = 0; row < rows; ++row, words += num_continuous + num_continuous % 2) {
        for (int k = 0; k < num_continuous; ++k) {
            const unsigned* const pair = words + k / 2 * 2;
            const Number found = draw_number(*means++, log_std[k], pair[0], pair[1], k % 2, greedy);
            *numbers++ = found.value;
            log_probs[row] += found.log_prob;
            entropies[row] += found.entropy;
        }
    }
}

extern "C" void play(long rows, int num_inputs, const float* inputs, const float* weights, const int* layers,
                     int num_layers, int num_outputs, float* outputs) {
    static float units[2 * 256];
    for (long row = 0; row < rows; ++row) {
        const float* found = forward(inputs + row * num_inputs, num_inputs, weights, layers, num_layers, units, 256);
        for (int k = 0; k < num_outputs; ++k) *outputs++ = found[k];
    }
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compiled(HARNESS, tmp_path_factory.mktemp("sampling"))


def address(array: np.ndarray | None) -> Any:
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def drawn_words(rows: int, num_choices: int, seed: int = 3) -> np.ndarray:
    """The words of so many environments and steps."""
    row = np.arange(rows)
    return words_of(seed + row % 7, row % 3, row // 21, row % 5, num_choices)


@st.composite
def cases(draw: Callable[..., Any]) -> dict[str, Any]:
    """Logits of all kinds, with masks or without."""
    nvec = draw(st.lists(st.integers(1, 12), min_size=1, max_size=6))
    rows, random = draw(st.integers(1, 40)), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (rows, sum(nvec))
    logits = (random.normal(size=shape) * draw(st.sampled_from([0.0, 1.0, 40.0, 1e37]))).astype(np.float32)
    special = draw(
        st.lists(st.sampled_from([np.inf, -np.inf, np.nan, 0.0, -0.0, 88.0, -88.0, 3e38, -3e38]), max_size=4)
    )
    for value in special:
        logits[random.random(shape) < draw(st.sampled_from([0.1, 0.9]))] = value
    masks = None
    if draw(st.booleans()):
        masks = (random.random(shape) < draw(st.sampled_from([0.05, 0.5, 0.95]))).astype(np.uint8)
        masks *= random.integers(1, 256, shape, np.uint8)
    words = random.integers(0, 2**32, (rows, len(nvec)), np.uint32)
    words[random.random(words.shape) < 0.2] = MOST_WORD
    words[random.random(words.shape) < 0.1] = 0
    return {"logits": logits, "nvec": nvec, "words": words, "masks": masks, "greedy": draw(st.booleans())}


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_kernels_choose_the_same(kernels: Any, case: dict[str, Any]) -> None:
    logits, masks, words, nvec = case["logits"], case["masks"], case["words"], np.array(case["nvec"], np.int32)
    discrete_actions = np.zeros(words.shape, np.int64)
    log_probs, entropies = np.zeros((2, len(logits)), np.float32)
    words = np.ascontiguousarray(words)
    inputs = map(address, (nvec, logits, masks, words))
    outputs = map(address, (discrete_actions, log_probs, entropies))
    kernels.choose(ctypes.c_long(len(logits)), len(nvec), *inputs, int(case["greedy"]), *outputs)
    expected = sampled(**case)
    np.testing.assert_array_equal(discrete_actions, expected[0])
    for ours, theirs in zip((log_probs, entropies), expected[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_what_must_not_be_is_never_chosen(case: dict[str, Any]) -> None:
    discrete_actions, log_probs, entropies = sampled(**case)
    first = 0
    spoiled = np.zeros(len(discrete_actions), bool)
    for k, n in enumerate(case["nvec"]):
        logits = case["logits"][:, first : first + n]
        allowed = np.ones(logits.shape, bool) if case["masks"] is None else case["masks"][:, first : first + n] != 0
        able = allowed & (logits > -np.inf)
        for row, choice in enumerate(discrete_actions[:, k]):
            assert 0 <= choice < n
            assert able[row, choice] or not able[row].any()
            assert allowed[row, choice] or not allowed[row].any()
            if case["greedy"] and able[row].any():
                assert logits[row, choice] == logits[row][able[row]].max()
        spoiled |= (np.isnan(logits) & allowed).any(axis=1)
        first += n
    np.testing.assert_array_equal(np.isnan(log_probs), spoiled)
    np.testing.assert_array_equal(np.isnan(entropies), spoiled)
    assert (log_probs[~spoiled] <= 1e-6).all() and (entropies[~spoiled] >= 0).all()


def test_forbidden_ends_are_not_reached_by_rounding() -> None:
    """Sums that round up, the largest number there is, and what is forbidden at either end."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(20_000, 40)).astype(np.float32) * 3
    masks = np.ones(logits.shape, bool)
    masks[:, [0, 1, -2, -1]] = False
    for word, end in ((MOST_WORD, 37), (0, 2)):
        discrete_actions, _, _ = sampled(logits, [40], np.full((20_000, 1), word, np.uint32), masks)
        assert 2 <= discrete_actions.min() and discrete_actions.max() <= 37
        assert (discrete_actions == end).mean() > 0.9


def test_probabilities_and_entropies_are_torchs() -> None:
    random = np.random.default_rng(1)
    nvec = [5, 21, 1, 2]
    logits = (random.normal(size=(3000, sum(nvec))) * random.choice([0.1, 1, 10], (3000, 1))).astype(np.float32)
    masks = random.random(logits.shape) < 0.6
    masks[:100] = False  # rows of agents that are not there
    for mask in (None, masks):
        discrete_actions, log_probs, entropies = sampled(logits, nvec, drawn_words(3000, len(nvec)), mask)
        decisions = Decisions(MultiDiscrete(nvec))
        allowed = None if mask is None else torch.from_numpy(mask)
        theirs = decisions.distribution(torch.from_numpy(logits).double(), allowed)
        expected = theirs.log_prob(torch.from_numpy(discrete_actions), torch.empty(3000, 0))
        np.testing.assert_allclose(log_probs, expected, rtol=1e-6, atol=2e-6)
        np.testing.assert_allclose(entropies, theirs.entropy(), rtol=1e-6, atol=2e-6)
        likeliest, _, _ = sampled(logits, nvec, drawn_words(3000, len(nvec)), mask, greedy=True)
        np.testing.assert_array_equal(likeliest, theirs.mode()[0])
    plain = torch.distributions.Categorical(logits=torch.from_numpy(logits[:, :5]).double())
    discrete_actions, log_probs, entropies = sampled(logits[:, :5], [5], drawn_words(3000, 1))
    np.testing.assert_allclose(
        log_probs, plain.log_prob(torch.from_numpy(discrete_actions[:, 0])), rtol=1e-6, atol=2e-6
    )
    np.testing.assert_allclose(entropies, plain.entropy(), rtol=1e-6, atol=2e-6)


def test_choices_are_as_frequent_as_their_probabilities() -> None:
    """Of two choices together, so that they are independent, too; draws are those of environments and steps."""
    rows = 400_000
    logits = np.float32([0.5, -1.0, 7.0, 2.0, -4.0, 1.0, 1.0, 0.0, -2.0])
    masks = np.array([1, 1, 0, 1, 1, 1, 1, 1, 1], bool)  # 4 options of 5, and 4
    every = np.broadcast_to(logits, (rows, 9)), [5, 4], drawn_words(rows, 2), np.broadcast_to(masks, (rows, 9))
    discrete_actions, _, _ = sampled(*every)
    counts = np.bincount(discrete_actions[:, 0] * 4 + discrete_actions[:, 1], minlength=20)
    weights = np.where(masks, np.exp(logits.astype(np.float64)), 0)
    expected = rows * np.outer(weights[:5] / weights[:5].sum(), weights[5:] / weights[5:].sum()).ravel()
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    assert (
        (counts - expected)[possible] ** 2 / expected[possible]
    ).sum() < 68  # 15 degrees of freedom: less than 1 in 1e8
    uneven = sampled(every[0] + np.float32([0.05] + [0] * 8), *every[1:])[0]
    counts = np.bincount(uneven[:, 0] * 4 + uneven[:, 1], minlength=20)
    assert ((counts - expected)[possible] ** 2 / expected[possible]).sum() > 68  # and it would notice 5 percent


def test_words_are_those_of_random_actions() -> None:
    words = words_of([3, 4], [0, 7], [10, 11], [1, 2], 6)
    for row, (seed, episode, t, agent) in enumerate([(3, 0, 10, 1), (4, 7, 11, 2)]):
        both = philox(seed, episode, t + 1, agent, POLICY) + philox(seed, episode, t + 1, agent, POLICY, 1)
        assert tuple(words[row]) == both[:6]
    assert uniform(MOST_WORD) < 1


# ------------------------------------------------------------------------------------------------------------- numbers


@settings(max_examples=100, deadline=None)
@given(num_continuous=st.integers(1, 7), seed=st.integers(0, 2**32 - 1), greedy=st.booleans())
def test_kernels_draw_the_same_numbers(kernels: Any, num_continuous: int, seed: int, greedy: bool) -> None:
    random, num_rows = np.random.default_rng(seed), 20
    means = random.normal(size=(num_rows, num_continuous)).astype(np.float32) * 3
    log_std = random.normal(size=num_continuous).astype(np.float32) * np.float32(random.choice([0.1, 3, 40]))
    words = random.integers(0, 2**32, (num_rows, num_continuous + num_continuous % 2), np.uint32)
    words[random.random(words.shape) < 0.1] = MOST_WORD
    words[random.random(words.shape) < 0.1] = 0
    numbers, log_probs, entropies = np.empty_like(means), *np.zeros((2, num_rows), np.float32)
    outputs = (numbers, log_probs, entropies)
    pointers = [address(array) for array in (means, log_std, words)]
    kernels.draw(ctypes.c_long(num_rows), num_continuous, *pointers, int(greedy), *map(address, outputs))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = sampled_numbers(means, log_std, words, greedy)
    for ours, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    if greedy:
        finite = np.isfinite(expected[0])
        np.testing.assert_array_equal(expected[0][finite], means[finite])


def test_numbers_are_of_the_normal_distribution() -> None:
    num_rows, log_std = 40_000, np.float32([0.0, -1.0, 0.5])
    means = np.broadcast_to(np.float32([0.0, 2.0, -3.0]), (num_rows, 3)).copy()
    numbers, log_probs, entropies = sampled_numbers(means, log_std, drawn_words(num_rows, 4))
    deviations = (numbers.astype(np.float64) - means) / np.exp(log_std)
    # Each of these is normal to a good approximation: within 5 standard errors.
    assert np.abs(deviations.mean(0)).max() < 5 / num_rows**0.5
    assert np.abs((deviations**2).mean(0) - 1).max() < 5 * (2 / num_rows) ** 0.5
    assert np.abs((deviations**4).mean(0) - 3).max() < 5 * (96 / num_rows) ** 0.5
    assert np.abs(np.corrcoef(deviations.T) - np.eye(3)).max() < 5 / num_rows**0.5
    shares = (np.abs(deviations) < 0.6745).mean(0)  # of which half lies there
    assert np.abs(shares - 0.5).max() < 2.5 / num_rows**0.5
    decisions = Decisions(Box(-1, 1, (3,)))
    outputs = decisions.outputs(torch.from_numpy(means).double(), torch.from_numpy(log_std).double())
    theirs = decisions.distribution(outputs)
    expected = theirs.log_prob(torch.empty((num_rows, 0), dtype=torch.int64), torch.from_numpy(numbers))
    np.testing.assert_allclose(log_probs, expected, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(entropies, theirs.entropy(), rtol=1e-6)


# ------------------------------------------------------------------------------------------------------------ networks


@pytest.mark.parametrize("follows", ["linear", "tanh", "relu"])
def test_kernels_play_networks_alike(kernels: Any, follows: str) -> None:
    random = np.random.default_rng(2)
    for widths in ((1, 1), (7, 5), (6, 64, 5), (21, 33, 8, 256, 17)):
        layers, packed = [], []
        for before, after in itertools.pairwise(widths):
            weights = (random.normal(size=(after, before)) / np.sqrt(before)).astype(np.float32)
            biases = random.normal(size=after).astype(np.float32)
            layers.append((weights, biases, follows))
            padded = np.zeros((before + 1, -(-after // CHUNK) * CHUNK), np.float32)
            padded[0, :after], padded[1:, :after] = biases, weights.T
            packed.append(padded.ravel())
        inputs = random.normal(size=(200, widths[0])).astype(np.float32)
        outputs = np.empty((200, widths[-1]), np.float32)
        which = ["linear", "tanh", "relu"].index(follows)
        shape = np.array([(after, which) for after in widths[1:]], np.int32)
        weights = np.concatenate(packed)
        kernels.play(
            ctypes.c_long(200),
            widths[0],
            *map(address, (inputs, weights, shape)),
            len(layers),
            widths[-1],
            address(outputs),
        )
        expected = forward(inputs, layers)
        np.testing.assert_array_equal(outputs.view(np.uint32), expected.view(np.uint32))
        exact = inputs.astype(np.float64)
        for matrix, biases, _ in layers:
            exact = exact @ matrix.T.astype(np.float64) + biases
            exact = {"linear": exact, "tanh": np.tanh(exact), "relu": np.maximum(exact, 0)}[follows]
        np.testing.assert_allclose(outputs, exact, rtol=2e-5, atol=2e-5)
