"""Oracles and trainings whose work is done by a coordinator's workers, that of several learners at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from pufferlib.population.coordinator import Coordinator
from pufferlib.population.matchup import Mixture
from pufferlib.population.oracle import ImprovingOracle, Oracle
from pufferlib.population.pbt import Member
from pufferlib.population.pool import Content, PolicyPool
from pufferlib.population.task_runner import Task, seed_of
from pufferlib.vectorization import VecEnv

__all__ = ["RemoteOracle", "RemoteTraining"]

OracleCreator = Callable[[VecEnv, PolicyPool, int], Any]  # of an oracle
TrainFunction = Callable[[VecEnv, PolicyPool, Member, int], float]


class RemoteOracle(Oracle, ImprovingOracle):
    """An oracle for loops, each of whose answers is a task.

    make: of a worker's VecEnv, its copy of the pool, and a seed, an oracle that is asked one thing there: an Oracle
    for ``psro``, an ImprovingOracle for ``pipeline_psro``. It has the policies of the mixture's populations. Where it
    takes all chance from the seed, answers do not depend on who gives them. What else it has ends with the answer, but
    for what it publishes as a learner's state, such as that of an optimiser: that comes back with the weights, and
    goes along when the learner improves again.
    """

    def __init__(self, coordinator: Coordinator, make: OracleCreator, *, seed: int | None = None) -> None:
        self.pool, self._coordinator, self._make = coordinator.pool, coordinator, make
        self._seeds = np.random.SeedSequence(seed)

    def initial(self, seat: int) -> int:
        ((content, name),) = self._run(
            [(f"first policy of seat {seat}", partial(_new_policy, query=("initial", seat)), ())]
        )
        return self._add(content, name)

    def respond(self, seat: int, mixture: Mixture) -> int:
        return self.respond_all([(seat, mixture)])[0]

    def respond_all(self, wanted: Sequence[tuple[int, Mixture]]) -> list[int]:
        """Return the ids of responses, which are made at the same time. wanted: for each its seat and mixture."""
        requests: list[Request] = [
            (f"response of seat {seat}", partial(_new_policy, query=("respond", seat, mixture)), _policies(mixture))
            for seat, mixture in wanted
        ]
        return [self._add(content, name) for content, name in self._run(requests)]

    def begin(self, seat: int) -> int:
        ((content, name),) = self._run([(f"learner of seat {seat}", partial(_new_policy, query=("begin", seat)), ())])
        return self.pool.add_learner(content[1], content[0], name)

    def improve(self, seat: int, learner: int, mixture: Mixture) -> None:
        self.improve_all([(seat, learner, mixture)])

    def improve_all(self, wanted: Sequence[tuple[int, int, Mixture]]) -> None:
        """Improve learners, all from what they are now. wanted: for each its seat, its id, and the mixture."""
        requests: list[Request] = [
            (
                f"training of learner {learner}",
                partial(_improvement, seat=seat, learner=learner, mixture=mixture, state=self.pool.state(learner)),
                (learner, *_policies(mixture)),
            )
            for seat, learner, mixture in wanted
        ]
        for (_, learner, _), (weights, state) in zip(wanted, self._run(requests), strict=True):
            self.pool.publish(learner, weights, state)

    def _run(self, requests: Sequence[Request]) -> list[Any]:
        calls = [(name, partial(call, make=self._make), policies) for name, call, policies in requests]
        return _results(self._coordinator, calls, self._seeds)

    def _add(self, content: Content, seat: str | None) -> int:
        return self.pool.add(content[1], content[0], seat)


class RemoteTraining:
    """What trains the members of ``population_based_training``, all of a generation at the same time.

    train: of a worker's VecEnv, its copy of the pool, a member and a seed: trains the member's learner there, publishes
    what becomes of its weights and state, and returns its score. Where it takes all chance from the seed, who does it
    changes nothing. The copy has all members of the generation, as they were when it began, and ``others``, such as
    opponents.
    """

    def __init__(
        self, coordinator: Coordinator, train: TrainFunction, *, others: Sequence[int] = (), seed: int | None = None
    ) -> None:
        self._coordinator, self._train, self._others = coordinator, train, tuple(others)
        self._seeds = np.random.SeedSequence(seed)

    def __call__(self, member: Member) -> float:
        return self.train_all([member])[0]

    def train_all(self, members: Sequence[Member]) -> list[float]:
        """Train members, publish what they have become, and return their scores."""
        pool = self._coordinator.pool
        policies = (*(member.learner for member in members), *self._others)
        requests: list[Request] = [
            (
                f"training of learner {member.learner}",
                partial(_training_result, member=member, state=pool.state(member.learner), train=self._train),
                policies,
            )
            for member in members
        ]
        results = _results(self._coordinator, requests, self._seeds)
        for member, (_, weights, state) in zip(members, results, strict=True):
            pool.publish(member.learner, weights, state)
        return [score for score, _, _ in results]


Request = tuple[str, Callable[..., Any], Sequence[int]]  # a task's name, its call but for a seed, and its policies


def _results(coordinator: Coordinator, requests: Sequence[Request], seeds: np.random.SeedSequence) -> list[Any]:
    """Return the results of calls, each of which is given a seed of its own."""
    tasks = [
        Task(name, partial(call, seed=seed_of(sequence)), policies)
        for (name, call, policies), sequence in zip(requests, seeds.spawn(len(requests)), strict=True)
    ]
    return [result for _, result in coordinator.run(tasks)]


def _training_result(
    vec: VecEnv, pool: PolicyPool, *, member: Member, state: Any, train: TrainFunction, seed: int
) -> tuple[float, dict[str, Tensor], Any]:
    """Return a member's score, and the weights and the state of its learner."""
    pool.publish(member.learner, state=state)
    score = float(train(vec, pool, member, seed))
    return score, _weights(pool, member.learner), pool.state(member.learner)


def _new_policy(
    vec: VecEnv, pool: PolicyPool, *, query: tuple[Any, ...], make: OracleCreator, seed: int
) -> tuple[Content, str | None]:
    """Return what a policy is that an oracle makes, and its seat. query: a method's name and arguments."""
    method, *arguments = query
    policy = getattr(make(vec, pool, seed), method)(*arguments)
    return (pool.origin(policy), _weights(pool, policy)), pool[policy].seat


def _improvement(
    vec: VecEnv,
    pool: PolicyPool,
    *,
    seat: int,
    learner: int,
    mixture: Mixture,
    state: Any,
    make: OracleCreator,
    seed: int,
) -> tuple[dict[str, Tensor], Any]:
    """Return the weights of a learner that an oracle has improved, and its state."""
    pool.publish(learner, state=state)
    make(vec, pool, seed).improve(seat, learner, mixture)
    return _weights(pool, learner), pool.state(learner)


def _policies(mixture: Mixture) -> tuple[int, ...]:
    return tuple(dict.fromkeys(policy for ids in mixture.populations for policy in ids))


def _weights(pool: PolicyPool, policy: int) -> dict[str, Tensor]:
    """Return weights as they can be sent."""
    return {name: value.detach().cpu() for name, value in pool.weights(policy).items()}
