"""Random words (Philox), computed from the seed, the episode, the step, the agent and the purpose of the draw.

No state is kept between draws, so neither their order nor the number of threads matters, and a kernel draws the same
words as its reference: ``cuda_ext/philox.cuh`` computes the same function, bit for bit.

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
    """Return four random words, each uniform over 0 to 2**32 - 1.

    purpose: a number that identifies one use of random words in an environment, so that two uses never share words.
    block: 0 for the first four words, 1 for the next four, and so on. Raises ValueError for an integer outside 0 to
    2**32 - 1, and TypeError for anything but an integer.
    """
    numbers = tuple(map(index, (seed, episode, step, agent, purpose, block)))
    if min(numbers) < 0 or max(numbers) > LOW:
        raise ValueError(f"{_named(numbers)}: each must be from 0 to 2**32 - 1")
    return _rounds(*numbers)


def philox_array(
    seed: ArrayLike, episode: ArrayLike, step: ArrayLike, agent: ArrayLike, purpose: ArrayLike, block: ArrayLike = 0
) -> NDArray[np.uint32]:
    """Return the words of ``philox`` for arrays of integers, broadcast against each other: uint32 (4, *shape).

    Raises ValueError for dtypes other than integers, for numbers outside 0 to 2**32 - 1, and for shapes that do not
    broadcast.
    """
    arrays = [np.asarray(array) for array in (seed, episode, step, agent, purpose, block)]
    for name, array in _named(arrays).items():
        if array.dtype.kind not in "iu":
            raise ValueError(f"{name} is of {array.dtype}; use integers from 0 to 2**32 - 1")
        if array.size and (int(array.min()) < 0 or int(array.max()) > LOW):
            raise ValueError(f"{name} has numbers from {array.min()} to {array.max()}; use 0 to 2**32 - 1")
    # 64 bits hold a product of two words. Arrays are stacked, because NumPy 1 turns scalars into floats.
    wide = np.stack(np.broadcast_arrays(*(array.astype(np.uint64) for array in arrays)))
    words = np.stack(_rounds(*wide.reshape(6, -1)))
    return words.astype(np.uint32).reshape(4, *wide.shape[1:])


@overload
def below(word: int, n: int) -> int: ...
@overload
def below(word: NDArray[np.uint32], n: ArrayLike) -> NDArray[np.int64]: ...
def below(word: Any, n: Any) -> Any:
    """Map each random word to an integer from 0 to n - 1; n is from 1 to 2**32.

    Returns an int if ``word`` is an int, else an int64 array. Each integer results from 2**32 / n of the possible
    words, rounded up or down, so its probability has a relative error below n / 2**32.
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
    """Map each random word to a float32 in [0, 1), a multiple of 2**-24, because float32 holds 24 bits exactly."""
    if isinstance(word, int):
        return np.float32((word >> 8) * 2.0**-24)
    return (np.asarray(word, np.uint32) >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


def episode_of(seed: int | None, last_seed: int | None, last_episode: int) -> tuple[int, int]:
    """Return the seed and the index of the episode that ``reset(seed)`` begins.

    With a seed, it is episode 0 of that seed. If seed is None, it is the episode of last_seed that follows
    last_episode. If last_seed is None too, as before the first reset, it is episode 0 of a random seed. Raises
    ValueError for a seed outside 0 to 2**32 - 1.
    """
    if seed is not None and not 0 <= seed <= LOW:
        raise ValueError(f"seed={seed} is no uint32; use 0 to 2**32 - 1")
    if seed is None and last_seed is not None:
        return last_seed, last_episode + 1
    return int(np.random.SeedSequence().generate_state(1)[0] if seed is None else seed), 0


def _rounds(seed: Any, episode: Any, step: Any, agent: Any, purpose: Any, block: Any) -> tuple[Any, Any, Any, Any]:
    """Compute the rounds of Philox and return the four words, as ints or uint64 arrays."""
    keys = seed, purpose
    words = agent, step, episode, block
    for _ in range(NUM_ROUNDS):
        first, second = MULTIPLIERS[0] * words[0], MULTIPLIERS[1] * words[2]
        words = (second >> 32) ^ words[1] ^ keys[0], second & LOW, (first >> 32) ^ words[3] ^ keys[1], first & LOW
        keys = (keys[0] + KEY_STEPS[0]) & LOW, (keys[1] + KEY_STEPS[1]) & LOW
    return words


def _named(values: Any) -> dict[str, Any]:
    return dict(zip(("seed", "episode", "step", "agent", "purpose", "block"), values, strict=True))
