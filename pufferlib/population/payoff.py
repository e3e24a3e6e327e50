"""PayoffTable: each seat's mean return in each matchup, with the variances and the numbers of episodes.

An ``EpisodePlan`` decides which cells of a table get more episodes.
"""

from __future__ import annotations

import json
import os
import uuid
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from pufferlib.errors import CheckpointError, PlanError
from pufferlib.population.matchmaking import Matchup
from pufferlib.util.annotations import Array
from pufferlib.util.files import written_whole

__all__ = ["EpisodePlan", "Lot", "PayoffTable", "pairwise_wins"]

DAMAGE = (OSError, EOFError, zipfile.BadZipFile, zlib.error)  # raised when a damaged file is read
FORMAT = "pufferlib payoff table 2"


class PayoffTable:
    """A table of the returns of episodes, with a cell for each combination of policies, one policy per seat.

    populations: policy ids, one list per seat; ``add`` extends them, and new cells are empty. means: (num_seats, n_0,
    n_1, …) float64, NaN in empty cells. counts: (n_0, n_1, …) int64, the numbers of episodes. wins: (num_seats,
    num_seats, n_0, n_1, …) float64, the share of episodes in which the first seat got more than the second, with draws
    counted as half; NaN if unknown. exact: (n_0, n_1, …) bool, True for cells that were computed rather than sampled.
    Raises PlanError if num_seats is below 1, if populations are passed but not one per seat, or if a seat has a policy
    twice.
    """

    def __init__(self, num_seats: int, populations: Sequence[Sequence[int]] = ()) -> None:
        if num_seats < 1 or len(populations) not in (0, num_seats):
            raise PlanError(f"{len(populations)} populations do not fit {num_seats} seats")
        self.populations: list[list[int]] = [[] for _ in range(num_seats)]
        empty = (0,) * num_seats
        self.means = np.full((num_seats, *empty), np.nan)
        self._squares = np.zeros((num_seats, *empty))  # sums of squared differences from the mean
        self.wins = np.full((num_seats, num_seats, *empty), np.nan)
        self.counts = np.zeros(empty, np.int64)
        self.exact = np.zeros(empty, np.bool_)
        self._indices_by_seat: list[dict[int, int]] = [{} for _ in range(num_seats)]
        self._counted_batches: set[tuple[Matchup, str]] = set()
        for seat, ids in enumerate(populations):
            for policy in ids:
                self.add(seat, policy)

    @property
    def num_seats(self) -> int:
        """The number of seats of an environment."""
        return len(self.populations)

    def add(self, seat: int, policy: int) -> None:
        """Add a policy to a seat's population.

        Raises PlanError if the population already contains it, or if the table has no such seat.
        """
        indices = self._indices(seat)
        if policy in indices:
            raise PlanError(f"policy {policy} is already in the population of seat {seat}")
        indices[policy] = len(self.populations[seat])
        self.populations[seat].append(policy)
        padding = [(0, int(axis == seat)) for axis in range(self.num_seats)]
        self.means = np.pad(self.means, [(0, 0), *padding], constant_values=np.nan)
        self._squares = np.pad(self._squares, [(0, 0), *padding])
        self.wins = np.pad(self.wins, [(0, 0), (0, 0), *padding], constant_values=np.nan)
        self.counts = np.pad(self.counts, padding)
        self.exact = np.pad(self.exact, padding)

    def replace(self, seat: int, policy: int, other: int) -> None:
        """Replace a policy in a seat's population, such as a learner with its frozen copy.

        The cells keep their values, and their batches stay counted.
        Raises PlanError if ``policy`` is not in the population, or ``other`` already is.
        """
        index, indices = self._index(seat, policy), self._indices(seat)
        if other in indices:
            raise PlanError(f"policy {other} is already in the population of seat {seat}")
        del indices[policy]
        indices[other] = index
        self.populations[seat][index] = other
        self._counted_batches = {
            ((*matchup[:seat], other, *matchup[seat + 1 :]) if matchup[seat] == policy else matchup, batch_id)
            for matchup, batch_id in self._counted_batches
        }

    def clear(self, seat: int, policy: int) -> None:
        """Empty the cells of a seat's policy, for example because a learner's weights have changed.

        Their batches are forgotten: a batch with an earlier batch_id is new.
        Raises PlanError if the policy is not in the seat's population.
        """
        index = self._index(seat, policy)
        cells = tuple(index if axis == seat else slice(None) for axis in range(self.num_seats))
        self.means[(slice(None), *cells)] = np.nan
        self._squares[(slice(None), *cells)] = 0
        self.wins[(slice(None), slice(None), *cells)] = np.nan
        self.counts[cells] = 0
        self.exact[cells] = False
        self._counted_batches = {
            (matchup, batch_id) for matchup, batch_id in self._counted_batches if matchup[seat] != policy
        }

    def _indices(self, seat: int) -> dict[int, int]:
        """Return the index of each policy of a seat, by policy id. Raises PlanError if the table has no such seat."""
        if seat not in range(self.num_seats):
            raise PlanError(f"seat {seat!r} is not in this table; use 0 to {self.num_seats - 1}")
        return self._indices_by_seat[seat]

    def _index(self, seat: int, policy: int) -> int:
        """Return the index of a seat's policy. Raises PlanError if the policy is not in the seat's population."""
        indices = self._indices(seat)
        if policy not in indices:
            raise PlanError(f"policy {policy} is not in the population of seat {seat}")
        return indices[policy]

    def cell(self, matchup: Matchup) -> tuple[int, ...]:
        """Return the indices of a matchup's cell. Raises PlanError if a policy is not in its seat's population."""
        try:
            return tuple(indices[policy] for indices, policy in zip(self._indices_by_seat, matchup, strict=True))
        except (KeyError, ValueError):
            raise PlanError(f"matchup {matchup} is not in the populations {self.populations}") from None

    def matchup(self, cell: Sequence[int]) -> Matchup:
        """Return the policies of a cell."""
        return tuple(ids[index] for ids, index in zip(self.populations, cell, strict=True))

    def missing(self, min_episodes: int = 1) -> list[Matchup]:
        """Return the matchups whose cells are not exact and have fewer than ``min_episodes`` episodes.

        They are in the table's order.
        """
        return [self.matchup(cell) for cell in np.argwhere(~self.exact & (self.counts < min_episodes)).tolist()]

    def update(self, matchup: Matchup, batch_id: str, returns: Any) -> bool:
        """Add a batch of episodes to a matchup's cell; return whether the batch is new, and do nothing if it is not.

        batch_id: a string that identifies the batch in this cell. returns: an array (episodes, num_seats). An exact
        cell keeps its values. Raises PlanError for returns of another shape, for values that are not finite, and for a
        matchup that is not in the table.
        """
        values = np.asarray(returns, np.float64)
        if values.ndim != 2 or values.shape[1] != self.num_seats or not np.isfinite(values).all():
            raise PlanError(f"returns of shape {values.shape} are not finite numbers, (episodes, {self.num_seats})")
        cell, key = self.cell(matchup), (tuple(matchup), batch_id)
        if key in self._counted_batches:
            return False
        self._counted_batches.add(key)
        if self.exact[cell] or not len(values):
            return True
        # Merge two sets of samples without cancellation. Source: Chan, Golub & LeVeque, 1979.
        mean, count, num_new = values.mean(0), int(self.counts[cell]), len(values)
        mean_index: Any = (slice(None), *cell)
        old_means = self.means[mean_index] if count else mean
        step = mean - old_means
        self.means[mean_index] = old_means + step * (num_new / (count + num_new))
        self._squares[mean_index] += ((values - mean) ** 2).sum(0) + step**2 * (count * num_new / (count + num_new))
        win_index: Any = (slice(None), slice(None), *cell)
        win_rates = pairwise_wins(values).mean(0)
        old_wins = self.wins[win_index] if count else win_rates
        self.wins[win_index] = old_wins + (win_rates - old_wins) * (num_new / (count + num_new))
        self.counts[cell] = count + num_new
        return True

    def fill(self, means: Array, wins: Array | None = None) -> None:
        """Set all cells to computed values. means, wins: shaped like the table's; by default, wins are unknown.

        Raises PlanError for other shapes.
        """
        for name, values, column in (("means", means, self.means), ("wins", wins, self.wins)):
            if values is not None and values.shape != column.shape:
                raise PlanError(f"{name} of shape {values.shape} do not fit a table of {column.shape}")
        self.means = np.array(means, np.float64)
        self.wins = np.full_like(self.wins, np.nan) if wins is None else np.array(wins, np.float64)
        self._squares[:] = 0
        self.exact[:] = True

    def variances(self) -> Array:
        """Return the variances of returns, (num_seats, n_0, n_1, …).

        They are 0 in exact cells, and NaN in other cells with fewer than two episodes.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            sampled = np.where(self.counts > 1, self._squares / (self.counts - 1), np.nan)
        return np.where(self.exact, 0.0, sampled)

    def half_widths(self, confidence: float = 0.95) -> Array:
        """Return half the width of each cell's widest confidence interval among the seats' means, (n_0, n_1, …).

        confidence: the confidence level; the intervals assume that means are normally distributed. The result is 0 in
        exact cells, and infinite in other cells with fewer than two episodes.
        """
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        widths = z * np.sqrt(self.variances() / np.maximum(self.counts, 1)).max(0)
        return np.where(np.isnan(widths), np.inf, widths)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a file (.npz, without pickles), replacing an existing file atomically."""
        header = {"format": FORMAT, "populations": self.populations, "seen": sorted(self._counted_batches)}
        with written_whole(path) as part, open(part, "wb") as file:
            np.savez(
                file,
                told=np.array(json.dumps(header)),
                means=self.means,
                squares=self._squares,
                wins=self.wins,
                counts=self.counts,
                exact=self.exact,
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PayoffTable:
        """Read a table that ``save`` wrote. Raises CheckpointError if the file is missing, damaged or not a table."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                header = json.loads(str(arrays["told"]))
                if header["format"] != FORMAT:
                    raise ValueError(f"its format is {header['format']!r}")
                table = cls(len(header["populations"]), header["populations"])
                columns = {name: name for name in ("means", "wins", "counts", "exact")} | {"squares": "_squares"}
                for name, attribute in columns.items():
                    if arrays[name].shape != getattr(table, attribute).shape:
                        raise ValueError(f"{name} has shape {arrays[name].shape}")
                    setattr(table, attribute, arrays[name])
                table._counted_batches = {(tuple(matchup), batch_id) for matchup, batch_id in header["seen"]}
        except (*DAMAGE, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} holds no {FORMAT} ({error!r})") from error
        return table


class Lot(NamedTuple):
    """A number of episodes of one matchup that are counted together.

    batch_id: an id that is unique within the matchup's cell of a table.
    """

    matchup: Matchup
    batch_id: str
    num_episodes: int


@dataclass
class EpisodePlan:
    """The episodes that a payoff table lacks, planned in lots of at most ``lot_episodes`` episodes.

    table: the table, to which ``count`` adds the returns. weights: factors for the cells' half widths, or None.
    min_episodes, max_episodes, half_width, confidence: see ``Evaluator``.
    """

    table: PayoffTable
    weights: Array | None
    lot_episodes: int
    min_episodes: int
    max_episodes: int
    half_width: float | None
    confidence: float

    def __post_init__(self) -> None:
        self._planned = np.zeros_like(self.table.counts)  # episodes that are not counted yet, by cell

    def counts(self) -> Array:
        """Return how many episodes of each cell have been counted or planned, (n_0, n_1, …)."""
        return np.asarray(self.table.counts + self._planned)

    def next(self) -> Lot | None:
        """Plan and return a lot for the cell that needs episodes most; return None if no cell needs any."""
        lot = self.next_few()
        if lot is not None or self.half_width is None:
            return lot
        # Episodes that are running will narrow the intervals as well.
        counts = self.counts()
        open_cells = (counts < self.max_episodes) & (self.table.counts > 1)
        widths = np.where(open_cells, self.table.half_widths(self.confidence), 0)
        widths *= np.sqrt(self.table.counts / np.maximum(counts, 1))
        if self.weights is not None:
            widths = widths * self.weights
        cell = tuple(np.unravel_index(widths.argmax(), widths.shape))
        if widths[cell] <= self.half_width:
            return None
        return self._lot(cell, self.max_episodes - int(counts[cell]))

    def next_few(self) -> Lot | None:
        """Plan and return a lot for the first cell with too few episodes; return None if every cell has the minimum."""
        counts = self.counts()
        missing = ~self.table.exact & (counts < self.min_episodes)
        if not missing.any():
            return None
        cell = tuple(np.argwhere(missing)[0].tolist())
        return self._lot(cell, self.min_episodes - int(counts[cell]))

    def _lot(self, cell: tuple[Any, ...], limit: int) -> Lot:
        # Not a number: an interrupted evaluation may have counted later batches but not earlier ones.
        lot = Lot(self.table.matchup(cell), uuid.uuid4().hex, min(self.lot_episodes, limit))
        self._planned[cell] += lot.num_episodes
        return lot

    def count(self, lot: Lot, returns: Array) -> None:
        """Count the episodes of a planned lot. returns: their returns, (episodes, num_seats)."""
        self.table.update(lot.matchup, lot.batch_id, returns)
        self._planned[self.table.cell(lot.matchup)] -= lot.num_episodes


def pairwise_wins(returns: Array) -> Array:
    """Return 1 where a seat's return is higher than another seat's, 0.5 where both are equal, and 0 where it is lower.

    returns: (episodes, num_seats). The result is (episodes, seat, other seat).
    """
    first, second = returns[:, :, None], returns[:, None, :]
    wins: Array = (first > second) + 0.5 * (first == second)
    return wins
