"""Matchmaking: which policies play in the seats of an environment in its next episode.

A matchup names one policy per seat, and a mixture is a distribution over matchups. A matchmaker assigns a matchup to
each episode that begins in an environment.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.util.annotations import Array
from pufferlib.vectorization import VecEnv

__all__ = [
    "Capped",
    "Fixed",
    "Matchmaker",
    "Matchup",
    "Mixture",
    "Prioritized",
    "Sampled",
    "Seat",
    "even",
    "hard",
    "policies_of",
    "product",
    "random_pairs",
    "seats_of",
]

Matchup = tuple[int, ...]  # one policy id per seat

TOLERANCE = 1e-6  # of the sum of probabilities


@dataclass(frozen=True)
class Mixture:
    """A distribution over matchups, in which each seat draws a policy from its population.

    populations: policy ids, one tuple per seat. marginals: each seat's probabilities, one per policy. joint: the
    probabilities of all combinations, (n_0, n_1, …); None if the seats draw independently.
    Raises PlanError if shapes do not fit the populations, or if values are negative or NaN, or do not sum to 1.
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
            if not (values.size and values.min() >= 0 and abs(values.sum() - 1) <= TOLERANCE):  # NaN fails all
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


@dataclass(frozen=True)
class Seat:
    """A role in an environment: one player, or a team."""

    name: str  # of the agent, or of the role that agents share
    places: tuple[int, ...]  # the agent indices that its policy plays


def seats_of(vec: VecEnv, role: Callable[[str], str] | None = None) -> tuple[Seat, ...]:
    """Return the seats of a VecEnv's environments: one per agent, or one per role.

    vec: the VecEnv, which is not stepped. role: a function that maps an agent's name to its seat's name; agents with
    the same seat name share a seat. Seats are ordered by their first agent index. Raises PlanError if ``role`` is
    passed for environments whose agents may change their indices. Also raises PlanError for environments that are
    themselves vectorized, because the rows of such an environment are independent copies.
    """
    if vec.copies_per_env > 1:
        raise PlanError(
            f"each environment is itself vectorized, with {vec.copies_per_env} copies, each of which would need a "
            "matchup of its own; make environments with one copy each"
        )
    if not vec.agent_names and vec.agents_per_env > 1 and role is not None:
        raise PlanError("agents may change their indices here, so their roles are unknown; pass Seats instead of roles")
    names = vec.agent_names or tuple(f"place_{agent_index}" for agent_index in range(vec.agents_per_env))
    agent_indices: dict[str, list[int]] = {}
    for agent_index, name in enumerate(names):
        agent_indices.setdefault(name if role is None else role(name), []).append(agent_index)
    return tuple(Seat(name, tuple(indices)) for name, indices in agent_indices.items())


class Matchmaker(Protocol):
    """The interface of a matchmaker."""

    def assign(self, env_ids: Sequence[int]) -> Sequence[Matchup]:
        """Return a matchup for the episode that begins in each of these environments."""

    def report(self, env_id: int, matchup: Matchup, returns: Array | None) -> None:
        """Receive the result of an episode that has ended, before the environment's next episode is assigned.

        returns: (num_seats,) float64, each seat's return, summed over the seat's agents; None if the episode does not
        count because a failure or the user's reset cut it off.
        """

    # It may also have ``policies() -> set[int] | None``, all policies that it can seat, for ``LearnerView``.


class Fixed(Matchmaker):
    """A matchmaker that assigns the same matchup to all episodes of an environment.

    matchups: the matchups of environments 0, 1, …; they are repeated cyclically if there are more environments. Raises
    PlanError if there are no matchups.
    """

    def __init__(self, matchups: Sequence[Matchup]) -> None:
        self._matchups = [tuple(matchup) for matchup in matchups]
        if not self._matchups:
            raise PlanError("matchups is empty; pass at least one matchup")

    def assign(self, env_ids: Sequence[int]) -> list[Matchup]:
        return [self._matchups[env_id % len(self._matchups)] for env_id in env_ids]

    def policies(self) -> set[int]:
        """Return the ids of all policies in the matchups."""
        return {policy for matchup in self._matchups for policy in matchup}

    def report(self, env_id: int, matchup: Matchup, returns: Array | None) -> None:
        pass


class Sampled(Matchmaker):
    """A matchmaker that draws each episode's matchup from ``mixture``, which may be replaced at any time."""

    def __init__(self, mixture: Mixture, seed: int | None = None) -> None:
        self.mixture = mixture
        self._rng = np.random.default_rng(seed)

    def assign(self, env_ids: Sequence[int]) -> list[Matchup]:
        return [self.mixture.sample(self._rng) for _ in env_ids]

    def policies(self) -> set[int]:
        """Return the ids of the policies that the mixture plays with a probability above 0."""
        return {policy for seat in range(len(self.mixture.populations)) for policy in self.mixture.support(seat)}

    def report(self, env_id: int, matchup: Matchup, returns: Array | None) -> None:
        pass


def random_pairs(policies: Sequence[int], num_seats: int = 2, seed: int | None = None) -> Sampled:
    """Return a matchmaker that draws a different policy for each seat, uniformly, as for population-based training.

    policies: the ids of the policies, each of which can play any seat. num_seats: the number of seats of an
    environment. If there are fewer policies than seats, a policy may play in several seats; a matchup of one policy in
    all seats does not show which policy is better. Raises PlanError if there are no policies.
    """
    shape = (len(policies),) * num_seats
    joint = np.ones(shape)
    if len(policies) >= num_seats:
        indices = np.indices(shape).reshape(num_seats, -1)
        distinct = [len(set(column)) == num_seats for column in indices.T.tolist()]
        joint = np.array(distinct, np.float64).reshape(shape)
    return Sampled(Mixture.of_joint([tuple(policies)] * num_seats, joint / joint.sum()), seed)


def hard(win_rates: Array) -> Array:
    """Return the weights (1 - x)² for win rates x. They favour opponents against which the learner loses.

    See ``Prioritized``.
    """
    weights: Array = (1 - win_rates) ** 2
    return weights


def even(win_rates: Array) -> Array:
    """Return the weights x (1 - x) for win rates x. They favour opponents of equal strength. See ``Prioritized``."""
    weights: Array = win_rates * (1 - win_rates)
    return weights


class Prioritized(Matchmaker):
    """A matchmaker for prioritised fictitious self-play, which draws a learner's opponents by its win rates.

    seat, learner: the learner's seat and id. opponents: policy ids, one sequence per other seat, in the order of the
    seats. weight: a function that maps the learner's win rates, in [0, 1], to the opponents' weights, such as ``hard``
    or ``even``. If all weights are 0, opponents are drawn uniformly. memory: the number of further episodes with an
    opponent after which a result's weight has fallen to 1/e.

    A win is a return above the mean of the opponents' returns; a draw counts as half a win. Each win rate includes one
    fictitious draw, so it is 1/2 for an opponent that the learner has never met. Raises PlanError if a seat has no
    opponents, if there is no such seat, and for a memory that is not above 0.
    Source: Vinyals et al., "Grandmaster level in StarCraft II", Nature 575, 2019.
    """

    def __init__(
        self,
        seat: int,
        learner: int,
        opponents: Sequence[Sequence[int]],
        *,
        weight: Callable[[Array], Array] = hard,
        memory: float = 100.0,
        seed: int | None = None,
    ) -> None:
        if not opponents or not all(opponents):
            raise PlanError(f"opponents={opponents!r} leaves a seat without any; each other seat needs one at least")
        if seat not in range(len(opponents) + 1):
            raise PlanError(f"seat={seat!r} is not one of {len(opponents) + 1} seats; use 0 to {len(opponents)}")
        if not memory > 0:  # NaN fails, too
            raise PlanError(f"memory={memory} is not a number of episodes; use more than 0")
        self._seat, self._learner, self._weight = seat, learner, weight
        self._opponents = [list(ids) for ids in opponents]
        self._decay = np.exp(-1 / memory)
        self._results: dict[tuple[int, int], list[float]] = {}  # by seat and opponent: wins and episodes, both decayed
        self._rng = np.random.default_rng(seed)

    def add(self, other_seat: int, policy: int) -> None:
        """Add an opponent. other_seat: the index of its seat among the seats other than the learner's."""
        self._opponents[other_seat].append(policy)

    def win_rates(self, other_seat: int = 0) -> Mapping[int, float]:
        """Return the learner's win rate against each opponent in a seat, by policy id. other_seat: see ``add``."""
        return {policy: self._rate(other_seat, policy) for policy in self._opponents[other_seat]}

    def _rate(self, other_seat: int, policy: int) -> float:
        wins, episodes = self._results.get((other_seat, policy), (0.0, 0.0))
        return (wins + 0.5) / (episodes + 1.0)  # as if each opponent had been met once, with a draw

    def assign(self, env_ids: Sequence[int]) -> list[Matchup]:
        marginals = []
        for other_seat, ids in enumerate(self._opponents):
            weights = self._weight(np.array([self._rate(other_seat, policy) for policy in ids]))
            marginals.append(weights / weights.sum() if weights.sum() > 0 else np.full(len(ids), 1 / len(ids)))
        mixture = product(self._opponents, marginals)
        samples = [list(mixture.sample(self._rng)) for _ in env_ids]
        return [(*others[: self._seat], self._learner, *others[self._seat :]) for others in samples]

    def policies(self) -> set[int]:
        """Return the ids of the learner and all of its opponents."""
        return {self._learner, *(policy for ids in self._opponents for policy in ids)}

    def report(self, env_id: int, matchup: Matchup, returns: Array | None) -> None:
        if returns is None:
            return
        others = [policy for seat, policy in enumerate(matchup) if seat != self._seat]
        learner_return, opponents_return = returns[self._seat], np.delete(returns, self._seat).mean()
        win = 0.5 if learner_return == opponents_return else float(learner_return > opponents_return)
        for other_seat, policy in enumerate(others):
            wins, episodes = self._results.get((other_seat, policy), (0.0, 0.0))
            self._results[other_seat, policy] = [wins * self._decay + win, episodes * self._decay + 1]


class Capped(Matchmaker):
    """A matchmaker that limits how many different matchups of another matchmaker run at once.

    The limit saves time, because each policy in a batch costs a forward pass. maker: the other matchmaker. most: the
    largest number of matchups that run at once. episodes: how many episodes of a matchup are scheduled, in any
    environments, each time it is drawn from the other matchmaker.

    A matchup is over once all of its scheduled episodes have begun and no environment plays it any more; then a new
    matchup is drawn. Until then, free environments play the other matchups, if necessary more often than scheduled.
    Such extra episodes are deducted when the matchup is drawn again, so in the long run the length of episodes does not
    affect how often each matchup is played. Raises PlanError if episodes is below 1, or if most is below 2, which could
    leave an environment without a matchup to begin.
    """

    def __init__(self, maker: Matchmaker, most: int, episodes: int) -> None:
        if most < 2 or episodes < 1:
            raise PlanError(f"most={most} has to be at least 2, and episodes={episodes} at least 1")
        self._maker, self._most, self._episodes = maker, most, episodes
        self._remaining: Counter[Matchup] = Counter()  # episodes that are due; below 0 if more were played
        self._open: deque[Matchup] = deque()  # with episodes remaining, the next one first
        self._num_running: dict[Matchup, int] = {}  # running episodes, oldest matchup first
        self._by_env: dict[int, Matchup] = {}

    def assign(self, env_ids: Sequence[int]) -> list[Matchup]:
        return [self._assign(env_id) for env_id in env_ids]

    def policies(self) -> set[int] | None:
        """Return the ids of the other matchmaker's policies and of current matchups' policies.

        Returns None if the other matchmaker does not list its policies.
        """
        policies: set[int] | None = policies_of(self._maker)
        if policies is None:
            return None
        return policies | {policy for matchup in self._open_or_running() for policy in matchup}

    def _assign(self, env_id: int) -> Matchup:
        previous = self._by_env.pop(env_id, None)
        if previous is not None:
            self._num_running[previous] -= 1
            if not self._num_running[previous]:
                del self._num_running[previous]
        while len(self._open) < self._most > len(self._open_or_running()) and not self._has_enough():
            (new_matchup,) = self._maker.assign([env_id])
            self._remaining[new_matchup] += self._episodes
            if self._remaining[new_matchup] > 0 and new_matchup not in self._open:
                self._open.append(new_matchup)
        matchup = self._open[0] if self._open else self._running_matchup()
        self._remaining[matchup] -= 1
        self._open.rotate(-1)
        if self._remaining[matchup] <= 0 and matchup in self._open:
            self._open.remove(matchup)
        self._num_running[matchup] = self._num_running.get(matchup, 0) + 1
        self._by_env[env_id] = matchup
        return matchup

    def _open_or_running(self) -> set[Matchup]:
        return {*self._open, *self._num_running}

    def _has_enough(self) -> bool:
        """Return whether so many episodes are scheduled that no more matchups need to be drawn.

        Without this limit, a matchmaker with only one matchup would be asked for it endlessly.
        """
        return sum(self._remaining[matchup] for matchup in self._open) >= self._most * self._episodes

    def _running_matchup(self) -> Matchup:
        """Return the matchup with the fewest running episodes, excluding the oldest one, which should end next."""
        _, *others = self._num_running
        return min(others, key=lambda matchup: self._num_running[matchup])

    def report(self, env_id: int, matchup: Matchup, returns: Array | None) -> None:
        self._maker.report(env_id, matchup, returns)


def policies_of(maker: Matchmaker) -> set[int] | None:
    """Return the ids of the policies that a matchmaker can seat from now on; None if it does not list them."""
    policies: Callable[[], set[int] | None] | None = getattr(maker, "policies", None)
    return None if policies is None else policies()


def _draw(probabilities: Array, rng: np.random.Generator) -> int:
    edges = probabilities.cumsum()
    return int(min(edges.searchsorted(rng.random() * edges[-1], "right"), np.flatnonzero(probabilities)[-1]))
