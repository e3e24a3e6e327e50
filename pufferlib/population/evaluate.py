"""Evaluator: fills the cells of a payoff table by playing in a VecEnv, whichever environments finish first."""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.population.matchup import Matchup
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.pool import PolicyPool
from pufferlib.population.router import Router
from pufferlib.population.seat import Seat, seats_of
from pufferlib.vectorization import VecEnv

__all__ = ["Evaluator", "Task"]

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class Task:
    """Some episodes of one cell, counted in the table together. batch_id: unique within the cell."""

    matchup: Matchup
    batch_id: str
    num_episodes: int
    num_started: int = 0
    returns: list[Array] = field(default_factory=list)


class Evaluator:
    """Plays the episodes that a payoff table lacks.

    First each cell gets ``min_episodes``. Then, with ``half_width``, the cell whose mean may be off by most gets more,
    until none is off by more, or each has ``max_episodes``.
    Episodes are counted as they start, and every one that was started for a cell is waited for: stopping at the number
    that has finished would prefer short ones. Blocks of neighbouring environments play the same cell, so that each
    policy has one part of a batch, and little has to be gathered.

    vec: is reset by each call. seats, greedy, seed: as ``Router`` has them. task_episodes: how many of a cell's
    episodes are counted together, and the environments of a block. confidence: of the intervals.
    """

    def __init__(
        self,
        vec: VecEnv,
        pool: PolicyPool,
        *,
        min_episodes: int = 100,
        max_episodes: int | None = None,
        half_width: float | None = None,
        confidence: float = 0.95,
        task_episodes: int = 20,
        seats: Sequence[Seat] | None = None,
        greedy: bool = False,
        seed: int | None = None,
    ) -> None:
        if min_episodes < 1 or task_episodes < 1 or (max_episodes or min_episodes) < min_episodes:
            raise PlanError(f"{min_episodes=}, {max_episodes=}, {task_episodes=}: at least 1, and in this order")
        if half_width is not None and max_episodes is None:
            raise PlanError("half_width needs max_episodes, for a cell may never be so sure")
        self._vec, self._pool, self._seats, self._greedy = vec, pool, seats or seats_of(vec), greedy
        self._min, self._max, self._half_width = min_episodes, max_episodes or min_episodes, half_width
        self._confidence = confidence
        self.block_size = self._task_episodes = task_episodes
        self._seeds = np.random.SeedSequence(seed)

    def __call__(self, table: PayoffTable, weights: Array | None = None) -> int:
        """Play until the table has what it should, and return how many episodes were counted.

        weights: of cells, (n_0, n_1, …): those that weigh more may be off by less, as the support of a mixture.
        """
        if table.num_seats != len(self._seats):
            raise PlanError(f"the table has {table.num_seats} seats, the environments {len(self._seats)}")
        before = int(table.counts.sum())
        schedule = _Schedule(self, table, weights)
        if schedule.is_over():
            return 0
        seed = int(self._seeds.spawn(1)[0].generate_state(1)[0])
        router = Router(self._pool, self._vec, schedule, seats=self._seats, greedy=self._greedy, seed=seed)
        self._vec.async_reset()
        while not schedule.is_over():
            actions = router.act(self._vec.recv())
            if not schedule.is_over():
                self._vec.send(actions)
        return int(table.counts.sum()) - before

    def _next(self, table: PayoffTable, planned: Counter[Matchup], weights: Array | None) -> tuple[Matchup, int] | None:
        """Return the cell that needs episodes most, and how many of them to play together; None where none does."""
        counts = table.counts + _by_cell(table, planned)
        # A single episode has no interval.
        fewest = self._min if self._half_width is None else max(self._min, min(2, self._max))
        few = ~table.exact & (counts < fewest)
        if few.any():
            cell = tuple(np.argwhere(few)[0].tolist())
            return table.matchup(cell), min(self._task_episodes, fewest - int(counts[cell]))
        if self._half_width is None:
            return None
        # What is under way will narrow the intervals as well.
        open_cells = (counts < self._max) & (table.counts > 1)
        widths = np.where(open_cells, table.half_widths(self._confidence), 0)
        widths *= np.sqrt(table.counts / np.maximum(counts, 1))
        if weights is not None:
            widths = widths * weights
        cell = tuple(np.unravel_index(widths.argmax(), widths.shape))
        if widths[cell] <= self._half_width:
            return None
        return table.matchup(cell), min(self._task_episodes, self._max - int(counts[cell]))


class _Schedule:
    """The matchmaker of an evaluation: which cell each environment plays next."""

    def __init__(self, evaluator: Evaluator, table: PayoffTable, weights: Array | None) -> None:
        self._evaluator, self._table, self._weights = evaluator, table, weights
        self._planned: Counter[Matchup] = Counter()  # episodes of open tasks
        self._again: deque[Task] = deque()  # tasks of which an episode was lost
        self._playing: dict[int, Task | None] = {}  # by environment; None counts for nothing
        self._last: Matchup | None = None
        self._tasks: dict[int, Task | None] = {}  # by block of environments

    def is_over(self) -> bool:
        """Whether nothing is under way, and nothing needed."""
        return not self._planned and self._evaluator._next(self._table, self._planned, self._weights) is None

    def assign(self, env_ids: Sequence[int]) -> list[Matchup]:
        return [self._assign(env_id) for env_id in env_ids]

    def _assign(self, env_id: int) -> Matchup:
        block = env_id // self._evaluator.block_size
        task = self._tasks.get(block)
        if task is None or task.num_started == task.num_episodes:
            task = self._tasks[block] = self._again.popleft() if self._again else self._open()
        self._playing[env_id] = task
        if task is not None:
            task.num_started += 1
            self._last = task.matchup
        assert self._last is not None  # nobody asks before there is something to do
        return self._last

    def _open(self) -> Task | None:
        wanted = self._evaluator._next(self._table, self._planned, self._weights)
        if wanted is None:
            return None
        matchup, num_episodes = wanted
        self._planned[matchup] += num_episodes
        # A name of its own, also where an evaluation that was broken off has left batches behind the next ones.
        return Task(matchup, uuid.uuid4().hex, num_episodes)

    def report(self, env_id: int, matchup: Matchup, returns: Array | None) -> None:
        task = self._playing.pop(env_id, None)
        if task is None:
            return
        if returns is None:
            task.num_started -= 1
            if task not in self._again and task not in self._tasks.values():
                self._again.append(task)
            return
        task.returns.append(returns)
        if len(task.returns) == task.num_episodes:
            self._table.update(matchup, task.batch_id, np.array(task.returns))
            self._planned[matchup] -= task.num_episodes
            self._planned += Counter()  # drops what is 0


def _by_cell(table: PayoffTable, planned: Counter[Matchup]) -> Array:
    counts = np.zeros_like(table.counts)
    for matchup, num_episodes in planned.items():
        counts[table.cell(matchup)] += num_episodes
    return counts
