"""Sample actions from a policy's outputs in NumPy, bit for bit equal to ``cuda_ext/sampling.cuh`` and ``policy.cuh``.

An action consists of one or several choices, each with a number of options, or of numbers. A row's logits are those of
all options of the first choice, then of the second, and so on. Numbers have a mean each, and standard deviations that
all rows share.

Rule         An option's weight is exp(logit - greatest logit), and ``total`` is the sum of the weights. A random number
             u, a multiple of 2**-24, is drawn uniformly from [0, 1). The chosen option is the first at which the
             running sum of weights exceeds u * total. An option of weight 0 does not increase that sum, and u * total
             is below total in float32 as well. So an option of weight 0 is never chosen, however sums are rounded.
             With ``greedy``, the first option with the greatest logit is chosen instead.
Never        An option is never chosen if a mask forbids it, or if its logit is -inf, NaN, or so far below the greatest
             (by more than 87.3) that its weight is 0. There are two exceptions. If the logits of all allowed options
             are -inf or NaN, these options are equally likely. If a mask allows no option, as in the rows of absent
             agents, any option may be chosen. Options with logits of +inf share all probability.
NaN          A NaN among a row's allowed logits makes the row's log-probability and entropy NaN, so that the learner's
             results reveal it.
Draws        u of choice k comes from word k % 4 of block k // 4 of ``philox(seed, episode, t + 1, agent, POLICY)``.
             Random actions of the next step use the same words. Sampling twice before a step gives the same actions.
Exactness    float32, with sums in the order of the options, so a probability's error is up to 2**-24 per option.
             This method takes one random number per choice. The Gumbel-max trick would take a random number and two
             logarithms per option, and extra checks so that rounding never leads to a forbidden option.
Numbers      A number is mean + exp(log_std) * z, with z = sqrt(-2 log(1 - u)) cos(2 pi v) or the same with the sine, as
             Box and Muller draw two standard normal numbers from two uniform ones. u and v of numbers k and k + 1, k
             even, come from words k % 4 and k % 4 + 1 of the block above. |z| is at most 5.77, since u is a multiple of
             2**-24. With ``greedy``, z is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cuda_ext.references.exponentials import exponential, logarithm
from cuda_ext.references.trigonometry import TWO_PI, sine_cosine
from pufferlib.util.philox import philox_array, uniform

__all__ = ["POLICY", "sampled", "sampled_numbers", "words_of"]

Floats = NDArray[np.float32]
POLICY = 100  # the purpose of draws that choose actions, as in kernel.cuh
HALF_LOG_2_PI, HALF_LOG_2_PI_E = np.float32(np.log(2 * np.pi) / 2), np.float32(np.log(2 * np.pi) / 2 + 0.5)


def words_of(
    seed: ArrayLike, episode: ArrayLike, t: ArrayLike, agent: ArrayLike, num_choices: int
) -> NDArray[np.uint32]:
    """Return the random words that choose the actions after step t, (rows, num_choices). agent: the agents' indices."""
    step = np.asarray(t, np.int64) + 1
    blocks = [philox_array(seed, episode, step, agent, POLICY, block) for block in range(-(-num_choices // 4))]
    return np.concatenate(blocks)[:num_choices].T


def sampled(
    logits: Floats,
    nvec: Sequence[int],
    words: NDArray[np.uint32],
    masks: NDArray[Any] | None = None,
    greedy: bool = False,
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the chosen options, (rows, num_choices), and the actions' log-probabilities and entropies, (rows,).

    logits: (rows, sum of nvec). nvec: the number of options of each choice. words: from ``words_of``. masks: true for
    allowed options, in the shape of logits; None allows all. greedy: choose the likeliest options.
    """
    discrete_actions = np.zeros((len(logits), len(nvec)), np.int64)
    log_probs, entropies = np.zeros((2, len(logits)), np.float32)
    first = 0
    for k, n in enumerate(nvec):
        part = slice(first, first + n)
        allowed = np.ones((len(logits), n), bool) if masks is None else masks[:, part].astype(bool)
        discrete_actions[:, k], log_prob, entropy = _chosen(logits[:, part], allowed, words[:, k], greedy)
        log_probs += log_prob
        entropies += entropy
        first += n
    return discrete_actions, log_probs, entropies


def sampled_numbers(
    means: Floats, log_std: Floats, words: NDArray[np.uint32], greedy: bool = False
) -> tuple[Floats, Floats, Floats]:
    """Return numbers, (rows, num_continuous), and the actions' log-probabilities and entropies, (rows,).

    means: (rows, num_continuous). log_std: (num_continuous,). words: from ``words_of``, for num_continuous choices
    rounded up to an even number. greedy: return the means.
    """
    numbers = np.zeros_like(means)
    log_probs, entropies = np.zeros((2, len(means)), np.float32)
    for k, log in enumerate(log_std):
        first, second = words[:, k - k % 2], words[:, k - k % 2 + 1]
        sine, cosine = sine_cosine(uniform(second) * TWO_PI)
        radius = np.sqrt(np.float32(-2) * logarithm(1 - uniform(first)))
        normals = np.zeros_like(radius) if greedy else radius * (sine if k % 2 else cosine)
        numbers[:, k] = means[:, k] + exponential(log_std[k : k + 1]) * normals
        log_probs += np.float32(-0.5) * (normals * normals) - log - HALF_LOG_2_PI
        entropies += log + HALF_LOG_2_PI_E
    return numbers, log_probs, entropies


def _chosen(
    logits: Floats, allowed: NDArray[np.bool_], words: NDArray[np.uint32], greedy: bool
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the chosen option of each row, its log-probability, and the entropy of the choice, (rows,) each."""
    spoiled = (np.isnan(logits) & allowed).any(axis=1)
    plain = np.where(allowed & ~np.isnan(logits), logits, np.float32(-np.inf))
    most = plain.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", over="ignore"):  # the greatest is not subtracted from itself
        distances = np.where(plain == most, np.float32(0), plain - most)
    nothing = ~allowed.any(axis=1, keepdims=True)
    distances = np.where(nothing, np.float32(0), np.where(allowed, distances, np.float32(-np.inf)))
    weights = exponential(distances)
    passed = np.add.accumulate(weights, axis=1)
    total = passed[:, -1]
    terms = np.where(weights > 0, weights, np.float32(0)) * np.where(weights > 0, distances, np.float32(0))
    summed = np.add.accumulate(terms, axis=1)[:, -1]
    drawn = distances == 0 if greedy else passed > (uniform(words) * total)[:, np.newaxis]
    options = drawn.argmax(axis=1)
    spoil = np.where(spoiled, np.float32(np.nan), np.float32(0))
    log_total = logarithm(total)
    log_probs = np.take_along_axis(distances, options[:, np.newaxis], axis=1)[:, 0] - log_total
    return options, spoil + log_probs, spoil + (log_total - np.divide(summed, total))
