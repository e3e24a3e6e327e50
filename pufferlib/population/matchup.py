"""Matchups (the policies that play an episode, one per seat) and mixtures (distributions over matchups)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pufferlib.errors import PlanError

__all__ = ["Matchup", "Mixture", "product"]

Array = np.ndarray[Any, Any]
Matchup = tuple[int, ...]  # one policy id per seat

TOLERANCE = 1e-6  # of the sum of probabilities


@dataclass(frozen=True)
class Mixture:
    """A distribution over matchups, in which each seat draws a policy from its population.

    populations: policy ids, one tuple per seat. marginals: each seat's probabilities, one per policy. joint: the
    probabilities of all combinations, (n_0, n_1, …); None if the seats draw independently.
    Raises PlanError if shapes do not fit the populations, or if values are negative or do not sum to 1; NaN is not
    detected.
    """

    populations: tuple[tuple[int, ...], ...]
    marginals: tuple[Array, ...]
    joint: Array | None = None

    def __post_init__(self) -> None:
        sizes = tuple(map(len, self.populations))
        shapes = tuple(marginal.shape for marginal in self.marginals)
        if shapes != tuple((size,) for size in sizes):
            raise PlanError(f"populations of {sizes} policies need marginals of these lengths, not of shapes {shapes}")
        if self.joint is not None and self.joint.shape != sizes:
            raise PlanError(f"populations of {sizes} policies need a joint of this shape, not of {self.joint.shape}")
        for values in (*self.marginals, *(() if self.joint is None else (self.joint,))):
            if not values.size or values.min() < 0 or abs(values.sum() - 1) > TOLERANCE:
                raise PlanError(f"{values} are not probabilities, which are at least 0 and sum to 1")

    @classmethod
    def of_joint(cls, populations: Sequence[Sequence[int]], joint: Array) -> Mixture:
        """Return the mixture with a joint distribution, (n_0, n_1, …), over combinations of policies.

        populations: policy ids, one sequence per seat. Raises the errors of ``Mixture``.
        """
        seats = range(joint.ndim)
        marginals = [joint.sum(tuple(other for other in seats if other != seat)) for seat in seats]
        return cls(tuple(map(tuple, populations)), tuple(marginals), joint)

    def sample(self, rng: np.random.Generator) -> Matchup:
        """Draw a matchup. rng: the source of randomness."""
        if self.joint is None:
            indices = [_draw(marginal, rng) for marginal in self.marginals]
        else:
            indices = [int(index) for index in np.unravel_index(_draw(self.joint.reshape(-1), rng), self.joint.shape)]
        return tuple(ids[index] for ids, index in zip(self.populations, indices, strict=True))

    def support(self, seat: int) -> dict[int, float]:
        """Return the probabilities of the policies that a seat plays with a probability above 0, by policy id."""
        ids, marginal = self.populations[seat], self.marginals[seat]
        return {policy: float(share) for policy, share in zip(ids, marginal, strict=True) if share > 0}


def product(populations: Sequence[Sequence[int]], marginals: Sequence[Any]) -> Mixture:
    """Return the mixture in which the seats draw independently.

    populations: policy ids, one sequence per seat. marginals: each seat's probabilities, one per policy. Raises the
    errors of ``Mixture``.
    """
    return Mixture(tuple(map(tuple, populations)), tuple(np.asarray(marginal, np.float64) for marginal in marginals))


def _draw(probabilities: Array, rng: np.random.Generator) -> int:
    edges = probabilities.cumsum()
    return int(min(edges.searchsorted(rng.random() * edges[-1], "right"), np.flatnonzero(probabilities)[-1]))
