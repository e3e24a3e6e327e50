"""Philox: random words as a function of the agent, the step and the purpose of the draw.

No state is kept between draws, so neither their order nor the number of threads matters, and a kernel draws what its
reference draws: ``cuda_ext/philox.cuh`` is the same function, bit for bit.

The function is Philox4x32-10 with the key (seed, purpose) and the counter (agent, step, episode, block).
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from operator import index
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["below", "episode_of", "philox", "philox_array", "uniform"]

NUM_ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
LOW = 0xFFFFFFFF  # the low 32 bits


def philox(seed: int, episode: int, step: int, agent: int, purpose: int, block: int = 0) -> tuple[int, int, int, int]:
    """Return four words, each uniform over 0 to 2**32 - 1.

    purpose: a number that the environment chooses for each use of the words, so that two uses never share words.
    block: 1, 2 and so on give four more words each. Raises ValueError for a number that is not a uint32.
    """
    numbers = tuple(map(index, (seed, episode, step, agent, purpose, block)))
    if min(numbers) < 0 or max(numbers) > LOW:
        raise ValueError(f"{_named(numbers)}: each must be from 0 to 2**32 - 1")
    return _rounds(*numbers)


def philox_array(
    seed: ArrayLike, episode: ArrayLike, step: ArrayLike, agent: ArrayLike, purpose: ArrayLike, block: ArrayLike = 0
) -> NDArray[np.uint32]:
    """Return the words of ``philox`` for integers that are broadcast against each other: uint32 (4, *shape)."""
    arrays = [np.asarray(array) for array in (seed, episode, step, agent, purpose, block)]
    for name, array in _named(arrays).items():
        if array.dtype.kind not in "iu":
            raise ValueError(f"{name} is of {array.dtype}; use integers from 0 to 2**32 - 1")
        if array.size and (int(array.min()) < 0 or int(array.max()) > LOW):
            raise ValueError(f"{name} has numbers from {array.min()} to {array.max()}; use 0 to 2**32 - 1")
    # 64 bits hold a product of two words. Stacked in rows, because NumPy 1 would turn scalars into floats.
    wide = np.stack(np.broadcast_arrays(*(array.astype(np.uint64) for array in arrays)))
    words = np.stack(_rounds(*wide.reshape(6, -1)))
    return words.astype(np.uint32).reshape(4, *wide.shape[1:])


@overload
def below(word: int, n: int) -> int: ...
@overload
def below(word: NDArray[np.uint32], n: ArrayLike) -> NDArray[np.int64]: ...
def below(word: Any, n: Any) -> Any:
    """Return a number from 0 to n - 1 for each word: an int, or int64 for an array; 1 <= n <= 2**32.

    2**32 / n words, rounded up or down, give each number, so probabilities differ by less than a share of n / 2**32.
    """
    if isinstance(word, int):
        return (word * n) >> 32
    product = np.asarray(word).astype(np.uint64) * np.asarray(n).astype(np.uint64)
    return (product >> np.uint64(32)).astype(np.int64)


@overload
def uniform(word: int) -> np.float32: ...
@overload
def uniform(word: NDArray[np.uint32]) -> NDArray[np.float32]: ...
def uniform(word: Any) -> Any:
    """Return a float32 in [0, 1) for each word, a multiple of 2**-24: a float32 holds 24 bits exactly."""
    return (np.asarray(word, np.uint32) >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


def episode_of(seed: int | None, last_seed: int | None, last_episode: int) -> tuple[int, int]:
    """Return the seed and the episode that ``reset(seed)`` begins: episode 0 of ``seed`` or, if that is None, the next.

    last_seed: None before the first reset, which then draws a seed. Raises ValueError unless seed is a uint32.
    """
    if seed is not None and not 0 <= seed <= LOW:
        raise ValueError(f"seed={seed} is no uint32; use 0 to 2**32 - 1")
    if seed is None and last_seed is not None:
        return last_seed, last_episode + 1
    return int(np.random.SeedSequence().generate_state(1)[0] if seed is None else seed), 0


def _rounds(seed: Any, episode: Any, step: Any, agent: Any, purpose: Any, block: Any) -> tuple[Any, Any, Any, Any]:
    """Return the four words, as ints or uint64 arrays."""
    keys = seed, purpose
    words = agent, step, episode, block
    for _ in range(NUM_ROUNDS):
        first, second = MULTIPLIERS[0] * words[0], MULTIPLIERS[1] * words[2]
        words = (second >> 32) ^ words[1] ^ keys[0], second & LOW, (first >> 32) ^ words[3] ^ keys[1], first & LOW
        keys = (keys[0] + KEY_STEPS[0]) & LOW, (keys[1] + KEY_STEPS[1]) & LOW
    return words


def _named(values: Any) -> dict[str, Any]:
    return dict(zip(("seed", "episode", "step", "agent", "purpose", "block"), values, strict=True))
