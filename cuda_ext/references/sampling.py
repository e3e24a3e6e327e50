"""Draw actions from logits, in NumPy: equal to ``cuda_ext/sampling.cuh`` and ``policy.cuh``, bit for bit.

An action has one or several choices, each with a number of options. The logits of a row are those of all options of the
first choice, then of the second, and so on.

Rule         The weight of an option is exp(logit - the greatest logit). With u uniform in [0, 1), a multiple of 2**-24,
             and total the sum of weights, the first option is chosen at which the sum of weights so far is above
             u * total. An option of weight 0 does not increase that sum, and u * total is below total in float32 too,
             so such an option is never chosen, however sums are rounded. Greedy: the first of the greatest logits.
Never        Options that a mask forbids, logits of -inf, logits so far below the greatest (87.3) that their weight is
             0, and NaN are never chosen. If all allowed options are of these kinds, each of them is equally likely; if
             a mask allows nothing, as in rows of absent agents, any option may be chosen. Options of +inf share all
             probability.
NaN          A NaN among the allowed logits of a row makes its log-probability and entropy NaN, so that a learner shows
             it.
Draws        u of choice k is word k % 4 of block k / 4 of ``philox(seed, episode, t + 1, agent, POLICY)``, the words
             that random actions of the next step use. Sampling twice before a step gives the same actions.
Exactness    float32, sums in the order of the options, so the error of a probability is up to 2**-24 for each option.
             Inverting sums takes one random number a choice; the Gumbel maximum takes one, and two logarithms, an
             option, and would need further tests to exclude forbidden options whatever the rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cuda_ext.references.exponentials import exponential, logarithm
from pufferlib.util.philox import philox_array, uniform

__all__ = ["POLICY", "sampled", "words_of"]

Floats = NDArray[np.float32]
POLICY = 100  # the purpose of draws that choose actions, in kernel.cuh too


def words_of(
    seed: ArrayLike, episode: ArrayLike, t: ArrayLike, agent: ArrayLike, num_choices: int
) -> NDArray[np.uint32]:
    """Return the words that choose the action after step t, (rows, num_choices). agent: its index."""
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
    """Return discrete actions, (rows, num_choices), and the log-probabilities and entropies of actions, (rows,).

    logits: (rows, sum of nvec). masks: of their shape, true for allowed options. nvec: the number of options of each
    choice.
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


def _chosen(
    logits: Floats, allowed: NDArray[np.bool_], words: NDArray[np.uint32], greedy: bool
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return one choice for each row, its log-probability and its entropy."""
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
