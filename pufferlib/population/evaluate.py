"""Evaluator: fills the cells of a payoff table by playing episodes in VecEnvs; episodes may finish in any order."""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.population.matchmaking import Matchup, Seat, seats_of
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.pool import PolicyPool
from pufferlib.population.router import Router
from pufferlib.population.task_queue import Coordinator
from pufferlib.population.tasks import Task, seed_of
from pufferlib.vectorization import VecEnv

__all__ = ["Evaluator", "Lot", "play_lots"]

Array = np.ndarray[Any, Any]

FILL = 4  # episodes per environment in a task: several, as environments that finish early wait for the task's end
ROUND_TASKS = 8  # planned together from the intervals, although one may be enough


class Lot(NamedTuple):
    """A number of episodes of one cell that are counted together. batch_id: an id that is unique within the cell."""

    matchup: Matchup
    batch_id: str
    num_episodes: int


class Evaluator:
    """A callable that plays the episodes that a payoff table lacks.

    First, each cell that is not exact gets ``min_episodes``. Then, if ``half_width`` is passed, the cell with the
    widest confidence interval gets more episodes, until no cell with fewer than ``max_episodes`` has an interval whose
    half width exceeds ``half_width``.

    The episodes to count are chosen when they start, and each of them is awaited: stopping after a number of finished
    episodes would favour short ones. Blocks of adjacent environments play the same cell. The rows of a policy are
    therefore mostly adjacent in a batch, and few have to be copied together.

    vec: a VecEnv, which each call resets; or a coordinator with the same pool, each of whose tasks plays one or a few
        cells. With a coordinator, the results depend only on ``seed`` and the table, and not on the number or the
        failures of workers. This requires that the environments obey the laws of ``VecEnv`` and that each batch
        contains all of a worker's environments (``batch_size == num_envs``).
    pool: the pool of the table's policies. seats, greedy, seed: see ``Router``. task_episodes: how many of a cell's
        episodes are counted together, and how many environments form a block. confidence: the confidence level.

    Raises PlanError for invalid counts, for ``half_width`` without ``max_episodes``, and for a coordinator with another
    pool.
    """

    def __init__(
        self,
        vec: VecEnv | Coordinator,
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
            raise PlanError(
                f"{min_episodes=}, {max_episodes=}, {task_episodes=}: use at least 1, and max_episodes of at least "
                "min_episodes"
            )
        if half_width is not None and max_episodes is None:
            raise PlanError("half_width needs max_episodes, because a cell's interval may never become that narrow")
        if isinstance(vec, Coordinator) and vec.pool is not pool:
            raise PlanError("the coordinator's workers play the policies of another pool; pass the same pool to both")
        self._vec, self._pool, self._seats, self._greedy = vec, pool, seats, greedy
        self._min, self._max, self._half_width = min_episodes, max_episodes or min_episodes, half_width
        self._confidence = confidence
        self._lot_episodes = task_episodes
        self._seeds = np.random.SeedSequence(seed)

    def __call__(self, table: PayoffTable, weights: Array | None = None) -> int:
        """Play until the table is complete; return the number of newly counted episodes.

        weights: factors for the cells' half widths, (n_0, n_1, …); cells with larger factors, such as those in a
        mixture's support, become more precise. Raises PlanError, or WorkerError with a coordinator, if the environments
        and the table differ in their numbers of seats; also raises the errors of ``Router`` or ``Coordinator.run``.
        """
        num_before = int(table.counts.sum())
        if isinstance(self._vec, Coordinator):
            self._coordinate(self._vec, table, weights)
        else:
            self._play(self._vec, table, weights)
        return int(table.counts.sum()) - num_before

    def _play(self, vec: VecEnv, table: PayoffTable, weights: Array | None) -> None:
        """Play in the Evaluator's VecEnv; a block that becomes free plays the cell that needs episodes most."""
        planned: Counter[Matchup] = Counter()

        def count(lot: Lot, returns: Array) -> None:
            _count(table, planned, lot, returns)

        schedule = _Schedule(lambda: self._next(table, planned, weights), count, self._lot_episodes)
        seed = int(self._seeds.spawn(1)[0].generate_state(1)[0])
        _play_out(vec, self._pool, schedule, table.num_seats, self._seats, self._greedy, seed)

    def _coordinate(self, coordinator: Coordinator, table: PayoffTable, weights: Array | None) -> None:
        """Play on the coordinator's workers.

        A task's lots and seed must not depend on which results have arrived so far.
        """
        lots_per_task = max(1, round(FILL * coordinator.num_envs / self._lot_episodes))
        planned: Counter[Matchup] = Counter()

        def tasks(next_lot: Callable[[], Lot | None]) -> Iterator[Task]:
            while True:
                counts = table.counts + _by_cell(table, planned)
                lots = list(islice(iter(next_lot, None), lots_per_task))
                if not lots:
                    return
                cell = table.cell(lots[0].matchup)
                # No two tasks start at the same episode of a cell, even if a table is continued, except after
                # ``clear``, which also sets the cell's count to 0.
                sequence = np.random.SeedSequence(self._seeds.entropy, spawn_key=(*cell, int(counts[cell])))
                call = partial(
                    play_lots,
                    lots=lots,
                    block_size=self._lot_episodes,
                    num_seats=table.num_seats,
                    seats=self._seats,
                    greedy=self._greedy,
                    seed=seed_of(sequence),
                )
                policies = sorted({policy for lot in lots for policy in lot.matchup})
                yield Task(f"evaluation of {lots[0].matchup} and {len(lots) - 1} more", call, policies)

        def do(new_tasks: Iterator[Task]) -> bool:
            """Run tasks and count their episodes; return whether there were any tasks."""
            any_done = False
            for _, results in coordinator.run(new_tasks):
                for lot, returns in results:
                    _count(table, planned, lot, returns)
                any_done = True
            return any_done

        do(tasks(lambda: self._next_few(table, planned)))
        while do(iter(list(islice(tasks(lambda: self._next(table, planned, weights)), ROUND_TASKS)))):
            pass

    def _next(self, table: PayoffTable, planned: Counter[Matchup], weights: Array | None) -> Lot | None:
        """Plan and return a lot for the cell that needs episodes most; return None if no cell needs any."""
        lot = self._next_few(table, planned)
        if lot is not None or self._half_width is None:
            return lot
        # Episodes that are running will narrow the intervals as well.
        counts = table.counts + _by_cell(table, planned)
        open_cells = (counts < self._max) & (table.counts > 1)
        widths = np.where(open_cells, table.half_widths(self._confidence), 0)
        widths *= np.sqrt(table.counts / np.maximum(counts, 1))
        if weights is not None:
            widths = widths * weights
        cell = tuple(np.unravel_index(widths.argmax(), widths.shape))
        if widths[cell] <= self._half_width:
            return None
        return self._plan(table, planned, cell, self._max - int(counts[cell]))

    def _next_few(self, table: PayoffTable, planned: Counter[Matchup]) -> Lot | None:
        """Plan and return a lot for the first cell with too few episodes; return None if every cell has the minimum."""
        counts = table.counts + _by_cell(table, planned)
        # A single episode has no interval.
        fewest = self._min if self._half_width is None else max(self._min, min(2, self._max))
        missing = ~table.exact & (counts < fewest)
        if not missing.any():
            return None
        cell = tuple(np.argwhere(missing)[0].tolist())
        return self._plan(table, planned, cell, fewest - int(counts[cell]))

    def _plan(self, table: PayoffTable, planned: Counter[Matchup], cell: tuple[Any, ...], limit: int) -> Lot:
        # Not a number: an interrupted evaluation may have counted later batches but not earlier ones.
        lot = Lot(table.matchup(cell), uuid.uuid4().hex, min(self._lot_episodes, limit))
        planned[lot.matchup] += lot.num_episodes
        return lot


def play_lots(
    vec: VecEnv,
    pool: PolicyPool,
    lots: Sequence[Lot],
    *,
    block_size: int,
    num_seats: int,
    seats: Sequence[Seat] | None,
    greedy: bool,
    seed: int,
) -> list[tuple[Lot, Array]]:
    """Play lots, and return (lot, returns) for each, in order; the returns are (episodes, num_seats).

    Each block of environments plays one lot at a time. block_size: the number of environments in a block. All
    randomness of policies and environments comes from the seed. Raises PlanError if the number of seats is not
    num_seats.
    """
    returns_by_lot: dict[Lot, Array] = {}
    source = iter(lots)
    schedule = _Schedule(lambda: next(source, None), returns_by_lot.__setitem__, block_size)
    _play_out(vec, pool, schedule, num_seats, seats, greedy, seed, reset_seed=seed)
    return [(lot, returns_by_lot[lot]) for lot in lots]


def _play_out(
    vec: VecEnv,
    pool: PolicyPool,
    schedule: _Schedule,
    num_seats: int,
    seats: Sequence[Seat] | None,
    greedy: bool,
    seed: int,
    reset_seed: int | None = None,
) -> None:
    """Play until a schedule is over.

    seed: the seed for the router. reset_seed: the environments' seed; by default, their random streams continue. Raises
    PlanError if the number of seats is not num_seats.
    """
    seats = seats or seats_of(vec)
    if num_seats != len(seats):
        raise PlanError(f"the table has {num_seats} seats, the environments {len(seats)}")
    if schedule.is_over():
        return
    router = Router(pool, vec, schedule, seats=seats, greedy=greedy, seed=seed)
    vec.async_reset(seed=reset_seed)
    while not schedule.is_over():
        actions = router.act(vec.recv())
        if not schedule.is_over():
            vec.send(actions)


@dataclass(eq=False)
class _OpenLot:
    """A lot in play: how many of its episodes have started, and the returns of those that have ended."""

    lot: Lot
    num_started: int = 0
    returns: list[Array] = field(default_factory=list)


class _Schedule:
    """The matchmaker of an evaluation, which assigns lots to blocks of environments.

    next_lot: a function that returns the next lot, or None if none is needed for now. count: a function that is called
    with each complete lot and its episodes' returns. block_size: the number of environments in a block.
    """

    def __init__(
        self, next_lot: Callable[[], Lot | None], count: Callable[[Lot, Array], None], block_size: int
    ) -> None:
        self._next_lot, self._count, self._block_size = next_lot, count, block_size
        self._num_open = 0
        self._retries: deque[_OpenLot] = deque()  # lots not started, or with a lost episode
        self._by_env: dict[int, _OpenLot | None] = {}  # None: the episode is not counted
        self._last_matchup: Matchup | None = None
        self._by_block: dict[int, _OpenLot | None] = {}  # by block of environments

    def is_over(self) -> bool:
        """Return whether the evaluation is over. If no lot is open but one is needed, open it and return False."""
        if not self._num_open and (lot := self._open()) is not None:
            self._retries.append(lot)
        return not self._num_open

    def assign(self, env_ids: Sequence[int]) -> list[Matchup]:
        return [self._assign(env_id) for env_id in env_ids]

    def _assign(self, env_id: int) -> Matchup:
        block = env_id // self._block_size
        lot = self._by_block.get(block)
        if lot is None or lot.num_started == lot.lot.num_episodes:
            lot = self._by_block[block] = self._retries.popleft() if self._retries else self._open()
        self._by_env[env_id] = lot
        if lot is not None:
            lot.num_started += 1
            self._last_matchup = lot.lot.matchup
        assert self._last_matchup is not None  # is_over() has opened a lot before the first call
        return self._last_matchup

    def _open(self) -> _OpenLot | None:
        lot = self._next_lot()
        if lot is None:
            return None
        self._num_open += 1
        return _OpenLot(lot)

    def report(self, env_id: int, matchup: Matchup, returns: Array | None) -> None:
        lot = self._by_env.pop(env_id, None)
        if lot is None:
            return
        if returns is None:
            lot.num_started -= 1
            if lot not in self._retries and lot not in self._by_block.values():
                self._retries.append(lot)
            return
        lot.returns.append(returns)
        if len(lot.returns) == lot.lot.num_episodes:
            self._num_open -= 1
            self._count(lot.lot, np.array(lot.returns))


def _count(table: PayoffTable, planned: Counter[Matchup], lot: Lot, returns: Array) -> None:
    table.update(lot.matchup, lot.batch_id, returns)
    planned[lot.matchup] -= lot.num_episodes
    if not planned[lot.matchup]:
        del planned[lot.matchup]


def _by_cell(table: PayoffTable, planned: Counter[Matchup]) -> Array:
    counts = np.zeros_like(table.counts)
    for matchup, num_episodes in planned.items():
        counts[table.cell(matchup)] += num_episodes
    return counts
