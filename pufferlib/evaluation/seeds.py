"""The seeds of an evaluation's episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.evaluation.noise import MAX_SEED
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.plan import checked_count, checked_seed

__all__ = ["derived_seeds", "episode_seeds"]


def episode_seeds(seeds: Iterable[int] | None, episodes: int | None, seed: int) -> Array:
    """Return the episodes' seeds, int64 (episodes,). Raises PlanError unless they are distinct and possible."""
    if (seeds is None) == (episodes is None):
        raise PlanError(f"seeds={seeds!r:.80} and episodes={episodes}; pass one of them")
    if episodes is not None:
        return derived_seeds(seed, checked_count("episodes", episodes))
    assert seeds is not None
    try:
        listed = [item if isinstance(item, bool) else checked_seed(item) for item in seeds]
    except TypeError:
        raise PlanError(f"seeds={seeds!r:.80} are no seeds; pass a sequence of integers, or episodes=n") from None
    wrong = [item for item in listed if item is None or isinstance(item, bool) or item > MAX_SEED]
    if wrong or not listed:
        problem = f"has {wrong[:8]}" if wrong else "is empty"
        raise PlanError(f"seeds {problem}; use one or more integers from 0 to 2**32 - 1")
    twice = [item for item, count in Counter(listed).items() if count > 1]
    if twice:
        raise PlanError(f"seeds names {twice[:8]} more than once, which would play the same episodes; name each once")
    return np.array(listed, np.int64)


def derived_seeds(seed: int, num: int) -> Array:
    """Return distinct seeds of 31 bits for a number of episodes, int64 (num,).

    The lowest eight bits of the seeds count, so that the episodes' places in a policy's batch are all equally frequent.
    seed: from which they are derived. Raises PlanError if it is no seed, or None.
    """
    if seed is None:
        raise PlanError("seed=None gives other episodes each time; use 0 or more")
    generator, counts = np.random.default_rng(checked_seed(seed)), np.arange(num) % 256
    seeds: Array = counts + (generator.integers(0, 2**23, num) << 8)
    while True:
        _, firsts = np.unique(seeds, return_index=True)
        again = np.setdiff1d(np.arange(num), firsts)
        if not len(again):
            return seeds
        seeds[again] = counts[again] + (generator.integers(0, 2**23, len(again)) << 8)
