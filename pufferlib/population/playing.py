"""Play episodes with policies drawn from a mixture, either to measure returns or to watch the play."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.population.matchmaking import Matchup, Mixture, Sampled, Seat
from pufferlib.population.payoff import pairwise_wins
from pufferlib.population.pool import PolicyPool
from pufferlib.population.router import Router
from pufferlib.vectorization import VecEnv

__all__ = ["Estimate", "PlayedEpisodes", "play", "watch"]

Array = np.ndarray[Any, Any]


class Estimate(NamedTuple):
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

    def mean_returns(self, confidence: float = 0.95) -> list[Estimate]:
        """Return Estimates of the seats' mean returns. confidence: the level of the confidence intervals."""
        return [_estimate(values, confidence) for values in self.returns.T]

    def win_rates(self, confidence: float = 0.95) -> list[Estimate]:
        """Return Estimates of the seats' win rates against the other seats.

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
    tally, router = _start(vec, pool, mixture, num_episodes, seed, seats=seats, greedy=greedy)
    while len(tally.returns) < num_episodes:
        actions = router.act(vec.recv())
        if len(tally.returns) < num_episodes:
            vec.send(actions)
    return PlayedEpisodes(tally.matchups, np.array(tally.returns))


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
    tally, router = _start(vec, pool, mixture, num_episodes, seed, seats=seats, greedy=greedy)
    num_done, num_begun = 0, -1
    while True:
        batch = vec.recv()
        actions = router.act(batch)
        if len(tally.returns) > num_done:
            num_done = len(tally.returns)
            payments = zip((seat.name for seat in router.seats), tally.returns[-1], strict=True)
            yield ", ".join(f"{name} gets {value:g}" for name, value in payments)
            if num_done == num_episodes:
                return
        if tally.num_begun > num_begun:
            num_begun = tally.num_begun
            roles = (
                f"{seat.name} is {policy}" for seat, policy in zip(router.seats, _current_matchup(router), strict=True)
            )
            yield f"episode {num_done + 1}: {', '.join(roles)}"
        (text,) = vec.render(env_ids=[0])
        if not isinstance(text, str):
            raise PlanError(
                'the environment renders no text; give it a render() that returns str for render_mode="ansi"'
            )
        yield text
        vec.send(actions)


def _current_matchup(router: Router) -> Matchup:
    matchup = router.matchup(0)
    assert matchup is not None  # an episode has begun
    return matchup


def _start(
    vec: VecEnv, pool: PolicyPool, mixture: Mixture, num_episodes: int, seed: int | None, **settings: Any
) -> tuple[_Tally, Router]:
    """Reset a VecEnv; return a tally and a router for it.

    settings: further arguments of the router. Raises the errors of ``play``.
    """
    if num_episodes < 1:
        raise PlanError(f"num_episodes={num_episodes} leaves nothing to play; use 1 or more")
    tally_seed, router_seed, env_seed = np.random.SeedSequence(seed).generate_state(3).tolist()
    tally = _Tally(mixture, num_episodes, tally_seed)
    router = Router(pool, vec, tally, seed=router_seed, **settings)
    vec.async_reset(seed=env_seed)
    return tally, router


class _Tally(Sampled):
    """A matchmaker that samples matchups from a mixture, and records the first ``num_episodes`` episodes to begin.

    matchups, returns: the matchup and the seats' returns of each recorded episode, in the order in which the episodes
    were reported. If one of these episodes fails, it is not recorded, and its matchup is assigned again.
    """

    def __init__(self, mixture: Mixture, num_episodes: int, seed: int) -> None:
        super().__init__(mixture, seed)
        self.matchups: list[Matchup] = []
        self.returns: list[Array] = []
        self.num_begun = 0
        self._num_left = num_episodes
        self._retries: list[Matchup] = []
        self._counted_envs: set[int] = set()

    def assign(self, env_ids: Sequence[int]) -> list[Matchup]:
        return [self._assign(env_id) for env_id in env_ids]

    def _assign(self, env_id: int) -> Matchup:
        self.num_begun += 1
        if self._retries:
            self._counted_envs.add(env_id)
            return self._retries.pop()
        if self._num_left:
            self._counted_envs.add(env_id)
            self._num_left -= 1
        (matchup,) = super().assign([env_id])
        return matchup

    def report(self, env_id: int, matchup: Matchup, returns: Array | None) -> None:
        if env_id not in self._counted_envs:
            return
        self._counted_envs.remove(env_id)
        if returns is None:
            self._retries.append(matchup)
        else:
            self.matchups.append(matchup)
            self.returns.append(returns)


def _estimate(values: Array, confidence: float) -> Estimate:
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(mean, float("-inf"), float("inf"))
    half_width = NormalDist().inv_cdf((1 + confidence) / 2) * float(values.std(ddof=1) / np.sqrt(len(values)))
    return Estimate(mean, mean - half_width, mean + half_width)
