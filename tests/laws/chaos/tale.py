"""What a row of the chaos suite says: eight words, from which the next row of the same agent follows.

The environments write them one by one, and the checker works them out for whole batches: every function here takes ints
and int64 arrays alike. No product leaves 63 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["WORDS", "check_of", "checks_of", "first_chain", "is_told", "is_truncation", "length_of", "next_chain",
           "reward_of"]  # fmt: skip

WORDS = 8
ENV, AGENT_INDEX, LIFE, EPISODE, TICK, ACTION, CHAIN, CHECK = range(WORDS)  # further words of a row repeat CHECK
MASK = (1 << 31) - 1
KEYS = (7_368_787, 611_953, 15_485_863, 32_452_843, 49_979_687, 67_867_967, 86_028_121)
_KEYS = np.array(KEYS, np.int64)


def check_of(*words: Any) -> Any:
    """Return the last word of a row, given the other seven."""
    return sum(key * word for key, word in zip(KEYS, words, strict=True))


def checks_of(rows: Any) -> Any:
    """Return the last word of each row of an array (n, 8 or more)."""
    return rows[:, :CHECK] @ _KEYS


def first_chain(life: Any, episode: Any, agent_index: Any) -> Any:
    """Return the chain word of an episode's first row. life: the seed that the environment was made with."""
    return (life * 1_103_515_245 + episode * 69_069 + agent_index * 7_919 + 1) & MASK


def next_chain(chain: Any, action: Any, tick: Any) -> Any:
    """Return the chain word of a step: it depends on all actions of the episode so far, in their order."""
    return (chain * 1_103_515_245 + action * 8_191 + tick + 12_345) & MASK


def length_of(life: Any, episode: Any) -> Any:
    """Return how many steps an episode has."""
    return 3 + (life % 65_537 * 40_503 + episode * 30_103) // 16 % 90


def is_truncation(life: Any, episode: Any) -> Any:
    """Return whether an episode is cut off at its end, rather than ends."""
    return (life + episode) % 2 == 1


def reward_of(chain: Any) -> Any:
    """Return the reward of a step, which float32 holds exactly."""
    return (chain >> 8) % 256 / 256


def is_told(chain: Any) -> Any:
    """Return whether an info comes with a step, where the environment has any."""
    return (chain >> 16) % 16 == 0
