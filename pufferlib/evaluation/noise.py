"""The random numbers of sampled actions: functions of an episode's seed, the step and the agent, and of nothing else.

No generator is shared, so the actions drawn in one episode do not depend on the other episodes that are played, on
their order, or on where they are played.
"""

from __future__ import annotations

import numpy as np

from pufferlib.util.annotations import Array
from pufferlib.util.philox import philox_array

__all__ = ["MAX_SEED", "gumbels", "normals", "uniforms"]

PURPOSE = 0xAC7105  # of the words of ``philox``: no environment uses this number
MAX_SEED = 2**32 - 1


def uniforms(seeds: Array, steps: Array, agents: Array, num: int) -> Array:
    """Return uniform random numbers in the open interval (0, 1), float64 (rows, num).

    seeds, steps, agents: the seed of each row's episode, the number of its steps so far, and the row's agent index;
    integers (rows,) from 0 to 2**32 - 1. num: how many numbers to draw for each row.
    """
    blocks = np.arange(-(-num // 4))
    words = philox_array(seeds[:, None], 0, steps[:, None], agents[:, None], PURPOSE, blocks)  # (4, rows, blocks)
    return (words.transpose(1, 2, 0).reshape(len(seeds), -1)[:, :num] + 0.5) * 2.0**-32


def gumbels(numbers: Array) -> Array:
    """Convert uniform random numbers to the standard Gumbel distribution.

    Of logits to which such numbers are added, the largest is a draw from their softmax.
    """
    converted: Array = -np.log(-np.log(numbers))
    return converted


def normals(numbers: Array) -> Array:
    """Convert uniform random numbers, (rows, 2 * n), to the standard normal distribution, (rows, n) (Box-Muller)."""
    radii, angles = np.split(numbers, 2, axis=1)
    converted: Array = np.sqrt(-2 * np.log(radii)) * np.cos(2 * np.pi * angles)
    return converted
