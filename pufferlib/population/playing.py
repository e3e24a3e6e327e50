"""Play episodes: of a mixture, to measure returns or to watch the play, or the episodes that a payoff table lacks.

Episodes are played in lots. All episodes of a lot have the same matchup and are counted together. ``_Schedule`` is the
matchmaker that assigns lots to environments. On a coordinator's workers, an ``Evaluator``'s tasks call ``play_lots``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.population.matchmaking import Matchmaker, Matchup, Mixture, Seat, seats_of
from pufferlib.population.payoff import EpisodePlan, Lot, PayoffTable, pairwise_wins
from pufferlib.population.pool import PolicyPool
from pufferlib.population.router import Router
from pufferlib.population.task_queue import Coordinator
from pufferlib.population.tasks import Task, seed_of
from pufferlib.util.annotations import Array
from pufferlib.vectorization import VecEnv

__all__ = ["ConfidenceInterval", "Evaluator", "PlayedEpisodes", "play", "play_lots", "watch"]


FILL = 4  # episodes per environment in a task: several, as environments that finish early wait for the task's end
ROUND_TASKS = 8  # planned together from the intervals, although one may be enough


class ConfidenceInterval(NamedTuple):
    """A mean with its confidence interval. low, high: the interval's bounds; -inf and inf for a single episode."""

    mean: float
    low: float
    high: float


class PlayedEpisodes(NamedTuple):
    """The result of ``play``.

    matchups: the matchup of each episode. returns: each seat's return in each episode, (episodes, num_seats).
    """

    matchups: list[Matchup]
    returns: Array

    def mean_returns(self, confidence: float = 0.95) -> list[ConfidenceInterval]:
        """Return ConfidenceIntervals of the seats' mean returns. confidence: the level of the confidence intervals."""
        return [_estimate(values, confidence) for values in self.returns.T]

    def win_rates(self, confidence: float = 0.95) -> list[ConfidenceInterval]:
        """Return ConfidenceIntervals of the seats' win rates against the other seats.

        In each episode, a seat wins against every seat with a lower return; a draw counts as half a win. The rate is
        averaged over the other seats. confidence: the level of the confidence intervals.
        """
        num_seats = self.returns.shape[1]
        wins = (pairwise_wins(self.returns).sum(2) - 0.5) / max(1, num_seats - 1)  # 0.5: a seat draws with itself
        return [_estimate(values, confidence) for values in wins.T]


def play(
    vec: VecEnv,
    pool: PolicyPool,
    mixture: Mixture,
    num_episodes: int,
    *,
    seats: Sequence[Seat] | None = None,
    greedy: bool = False,
    seed: int | None = None,
) -> PlayedEpisodes:
    """Play episodes, each with policies drawn from a mixture at its beginning; return their matchups and returns.

    The first ``num_episodes`` episodes to begin are counted, and ``play`` waits until they have ended: counting the
    first episodes to end would favour short ones. An episode that fails is replaced by another with the same matchup.
    vec: a VecEnv, which is reset. pool: the pool of the mixture's policies. seats, greedy: see ``Router``. seed: the
    seed of the draws, the actions and the environments. Raises PlanError if num_episodes is below 1, and the errors of
    ``Router`` and its ``act``.
    """
    played: list[tuple[Lot, Array]] = []
    for _ in _play_mixture(vec, pool, mixture, num_episodes, played, seed, seats=seats, greedy=greedy):
        pass
    return PlayedEpisodes([lot.matchup for lot, _ in played], np.concatenate([returns for _, returns in played]))


def watch(
    vec: VecEnv,
    pool: PolicyPool,
    mixture: Mixture,
    num_episodes: int,
    *,
    seats: Sequence[Seat] | None = None,
    greedy: bool = False,
    seed: int | None = None,
) -> Iterator[str]:
    """Play episodes in one environment, and yield texts that describe them.

    The texts of an episode are a line with its number and policies, each rendered step, and a line with the returns.
    vec: a VecEnv of one environment with ``render_mode="ansi"``. Other arguments: see ``play``. Raises PlanError if the
    environment renders no text, and the errors of ``play``.
    """
    played: list[tuple[Lot, Array]] = []
    num_done, num_begun = 0, 0
    for router, schedule in _play_mixture(vec, pool, mixture, num_episodes, played, seed, seats=seats, greedy=greedy):
        names = [seat.name for seat in router.seats]
        if len(played) > num_done:
            num_done = len(played)
            payments = zip(names, played[-1][1][0], strict=True)
            yield ", ".join(f"{name} gets {value:g}" for name, value in payments)
            if num_done == num_episodes:
                return
        if schedule.num_begun > num_begun:
            num_begun = schedule.num_begun
            matchup = router.matchup(0)
            assert matchup is not None  # an episode has begun
            roles = (f"{name} is {policy}" for name, policy in zip(names, matchup, strict=True))
            yield f"episode {num_done + 1}: {', '.join(roles)}"
        (text,) = vec.render(env_ids=[0])
        if not isinstance(text, str):
            raise PlanError(
                'the environment renders no text; give it a render() that returns str for render_mode="ansi"'
            )
        yield text


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

    Raises PlanError for invalid counts, for a ``half_width`` that is below 0 or is passed without ``max_episodes``,
    for a ``confidence`` that is not between 0 and 1, and for a coordinator with another pool.
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
        if not 0 < confidence < 1 or not (half_width is None or half_width >= 0):  # NaN fails, too
            raise PlanError(f"{confidence=}, {half_width=}: confidence must be between 0 and 1, half_width at least 0")
        if isinstance(vec, Coordinator) and vec.pool is not pool:
            raise PlanError("the coordinator's workers play the policies of another pool; pass the same pool to both")
        self._vec, self._pool, self._lot_episodes = vec, pool, task_episodes
        self._new_plan = partial(
            EpisodePlan,
            lot_episodes=task_episodes,
            # A single episode has no interval.
            min_episodes=min_episodes if half_width is None else max(min_episodes, min(2, max_episodes or 1)),
            max_episodes=max_episodes or min_episodes,
            half_width=half_width,
            confidence=confidence,
        )
        self._settings: dict[str, Any] = {"block_size": task_episodes, "seats": seats, "greedy": greedy}
        self._seeds = np.random.SeedSequence(seed)

    def __call__(self, table: PayoffTable, weights: Array | None = None) -> int:
        """Play until the table is complete; return the number of newly counted episodes.

        weights: factors for the cells' half widths, (n_0, n_1, …); cells with larger factors, such as those in a
        mixture's support, become more precise. Raises PlanError, or WorkerError with a coordinator, if the environments
        and the table differ in their numbers of seats; also raises the errors of ``Router`` or ``Coordinator.run``.
        """
        num_before = int(table.counts.sum())
        plan, settings = self._new_plan(table, weights), {**self._settings, "num_seats": table.num_seats}
        if isinstance(self._vec, Coordinator):
            self._coordinate(self._vec, plan, settings)
        else:
            # A block of environments that becomes free plays the cell that needs episodes most.
            seed = int(self._seeds.spawn(1)[0].generate_state(1)[0])
            for _ in _play(self._vec, self._pool, plan.next, plan.count, seed=seed, reset_seed=None, **settings):
                pass
        return int(table.counts.sum()) - num_before

    def _coordinate(self, coordinator: Coordinator, plan: EpisodePlan, settings: Mapping[str, Any]) -> None:
        """Play on the coordinator's workers.

        A task's lots and seed must not depend on which results have arrived so far.
        """
        lots_per_task = max(1, round(FILL * coordinator.num_envs / self._lot_episodes))

        def tasks(next_lot: Callable[[], Lot | None]) -> Iterator[Task]:
            while True:
                counts = plan.counts()
                lots = list(islice(iter(next_lot, None), lots_per_task))
                if not lots:
                    return
                cell = plan.table.cell(lots[0].matchup)
                # No two tasks start at the same episode of a cell, even if a table is continued, except after
                # ``clear``, which also sets the cell's count to 0.
                sequence = np.random.SeedSequence(self._seeds.entropy, spawn_key=(*cell, int(counts[cell])))
                call = partial(play_lots, lots=lots, seed=seed_of(sequence), **settings)
                policies = sorted({policy for lot in lots for policy in lot.matchup})
                yield Task(f"evaluation of {lots[0].matchup} and {len(lots) - 1} more", call, policies)

        next_tasks: Iterable[Task] = tasks(plan.next_few)
        while next_tasks:
            for _, results in coordinator.run(next_tasks):
                for lot, returns in results:
                    plan.count(lot, returns)
            next_tasks = list(islice(tasks(plan.next), ROUND_TASKS))


def play_lots(
    vec: VecEnv, pool: PolicyPool, *, lots: Sequence[Lot], seed: int, **settings: Any
) -> list[tuple[Lot, Array]]:
    """Play lots, and return (lot, returns) for each, in order; the returns are (episodes, num_seats).

    All randomness of policies and environments comes from the seed. settings: further arguments of ``_play``.
    """
    returns_by_lot: dict[Lot, Array] = {}
    source = iter(lots)
    count = returns_by_lot.__setitem__
    for _ in _play(vec, pool, lambda: next(source, None), count, seed=seed, reset_seed=seed, **settings):
        pass
    return [(lot, returns_by_lot[lot]) for lot in lots]


@dataclass(eq=False)
class _OpenLot:
    """A lot in play: how many of its episodes have started, and the returns of those that have ended."""

    lot: Lot
    num_started: int = 0
    returns: list[Array] = field(default_factory=list)


class _Schedule(Matchmaker):
    """A matchmaker that assigns lots to blocks of environments.

    next_lot: a function that returns the next lot, or None if none is needed for now. count: a function that is called
    with each complete lot and its episodes' returns. block_size: the number of environments in a block. num_begun: how
    many episodes have begun.
    """

    def __init__(
        self, next_lot: Callable[[], Lot | None], count: Callable[[Lot, Array], None], block_size: int
    ) -> None:
        self.num_begun = 0
        self._next_lot, self._count, self._block_size = next_lot, count, block_size
        self._num_open = 0
        self._retries: deque[_OpenLot] = deque()  # lots not started, or with a lost episode
        self._by_env: dict[int, _OpenLot | None] = {}  # None: the episode is not counted
        self._last_matchup: Matchup | None = None
        self._by_block: dict[int, _OpenLot | None] = {}  # by block of environments

    def is_over(self) -> bool:
        """Return whether the schedule is over. If no lot is open but one is needed, open it and return False."""
        if not self._num_open and (lot := self._open()) is not None:
            self._retries.append(lot)
        return not self._num_open

    def assign(self, env_ids: Sequence[int]) -> list[Matchup]:
        return [self._assign(env_id) for env_id in env_ids]

    def _assign(self, env_id: int) -> Matchup:
        self.num_begun += 1
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


def _play(
    vec: VecEnv,
    pool: PolicyPool,
    next_lot: Callable[[], Lot | None],
    count: Callable[[Lot, Array], None],
    *,
    block_size: int,
    seats: Sequence[Seat] | None,
    greedy: bool,
    seed: int,
    reset_seed: int | None,
    num_seats: int | None = None,
) -> Iterator[tuple[Router, _Schedule]]:
    """Play lots until no more are needed; yield the router and the schedule after each batch, before actions are sent.

    next_lot, count, block_size: see ``_Schedule``. seats, greedy, seed: see ``Router``. reset_seed: the environments'
    seed; with None, their random streams continue. num_seats: the number of seats in the payoff table, if there is one.
    Raises PlanError if the environments have another number of seats.
    """
    seats = seats or seats_of(vec)
    if num_seats not in (None, len(seats)):
        raise PlanError(f"the table has {num_seats} seats, the environments {len(seats)}")
    schedule = _Schedule(next_lot, count, block_size)
    if schedule.is_over():
        return
    router = Router(pool, vec, schedule, seats=seats, greedy=greedy, seed=seed)
    vec.async_reset(seed=reset_seed)
    while not schedule.is_over():
        actions = router.act(vec.recv())
        yield router, schedule
        if not schedule.is_over():
            vec.send(actions)


def _play_mixture(
    vec: VecEnv,
    pool: PolicyPool,
    mixture: Mixture,
    num_episodes: int,
    played: list[tuple[Lot, Array]],
    seed: int | None,
    **settings: Any,
) -> Iterator[tuple[Router, _Schedule]]:
    """Play episodes of a mixture, each as a lot of its own; yield what ``_play`` yields.

    played: a list to which each lot is appended, with its returns, when its episode has ended. settings: further
    arguments of ``_play``. Raises PlanError if num_episodes is below 1.
    """
    if num_episodes < 1:
        raise PlanError(f"num_episodes={num_episodes} leaves nothing to play; use 1 or more")
    mixture_seed, router_seed, env_seed = np.random.SeedSequence(seed).generate_state(3).tolist()
    rng = np.random.default_rng(mixture_seed)
    lots = (Lot(mixture.sample(rng), str(number), 1) for number in range(num_episodes))

    def count(lot: Lot, returns: Array) -> None:
        played.append((lot, returns))

    settings.update(block_size=1, seed=router_seed, reset_seed=env_seed)
    return _play(vec, pool, lambda: next(lots, None), count, **settings)


def _estimate(values: Array, confidence: float) -> ConfidenceInterval:
    mean = float(values.mean())
    if len(values) < 2:
        return ConfidenceInterval(mean, float("-inf"), float("inf"))
    half_width = NormalDist().inv_cdf((1 + confidence) / 2) * float(values.std(ddof=1) / np.sqrt(len(values)))
    return ConfidenceInterval(mean, mean - half_width, mean + half_width)
