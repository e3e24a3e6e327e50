"""Numbers whose sums are stored in a binary tree, to draw from in proportion to them."""

from __future__ import annotations

import numpy as np

__all__ = ["SumTree"]


class SumTree:
    """A vector of ``size`` numbers that are not negative, at first zeros. Changes and draws take O(log size) each.

    An inner node holds the sum of its two children, computed again at each change, so rounding errors do not add up.
    Source: Schaul et al., arXiv:1511.05952, appendix B.2.1.
    """

    def __init__(self, size: int) -> None:
        self._num_leaves = 1 << max(0, size - 1).bit_length()
        self._nodes = np.zeros(2 * self._num_leaves)  # the root is node 1, the children of node i are 2 i and 2 i + 1

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(self._nodes[1])

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """Return the numbers at these indices, float64 (rows,)."""
        values: np.ndarray = self._nodes[self._num_leaves + indices]
        return values

    def __setitem__(self, indices: np.ndarray, values: np.ndarray | float) -> None:
        """Store numbers at these indices, int64 (rows,). Of several values for one index, the last one is stored."""
        nodes = self._num_leaves + indices
        self._nodes[nodes] = values
        while len(nodes) and nodes[0] > 1:  # all nodes are on one level
            nodes = np.unique(nodes >> 1)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, masses: np.ndarray) -> np.ndarray:
        """Return the index in whose share of the total each mass lies, int64 (rows,); a number of 0 has no share.

        masses: float64 (rows,), each from 0 to less than ``total``: the first share begins at 0, the others follow in
        the order of the indices.
        """
        nodes, masses = np.ones(len(masses), np.int64), masses.copy()
        while nodes.size and nodes[0] < self._num_leaves:
            left = 2 * nodes
            # Rounding may leave a mass as large as both children: then the one that is not 0.
            goes_right = (masses >= self._nodes[left]) & (self._nodes[left + 1] > 0)
            masses -= np.where(goes_right, self._nodes[left], 0.0)
            nodes = left + goes_right
        indices: np.ndarray = nodes - self._num_leaves
        return indices
