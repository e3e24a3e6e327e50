"""RemoteOracle and RemoteTraining: compute responses and train learners in parallel, on a coordinator's workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from pufferlib.population.coordinator import Coordinator
from pufferlib.population.matchmaking import Mixture
from pufferlib.population.pbt import Member
from pufferlib.population.pool import Content, PolicyPool
from pufferlib.population.response_oracles import ImprovingOracle, Oracle
from pufferlib.population.task_runner import Task, seed_of
from pufferlib.vectorization import VecEnv

__all__ = ["RemoteOracle", "RemoteTraining"]

OracleCreator = Callable[[VecEnv, PolicyPool, int], Any]  # returns an oracle
TrainFunction = Callable[[VecEnv, PolicyPool, Member, int], float]


class RemoteOracle(Oracle, ImprovingOracle):
    """An oracle that computes each of its answers as a task on a coordinator's workers.

    coordinator: the coordinator, whose pool receives the policies. make: a function that is called on a worker with the
    worker's VecEnv and copy of the pool, and a seed; it returns an oracle that answers one request there: an Oracle for
    ``psro``, an ImprovingOracle for ``pipeline_psro``. seed: the seed from which the tasks' seeds are derived.

    The copy of the pool has the weights of all policies of the mixture's populations and, in ``improve``, of the
    learner. If all randomness comes from the seed, answers do not depend on the worker. The oracle on the worker is
    discarded after its answer. The training state that its ``improve`` publishes, such as an optimiser's, is kept: it
    is returned with the weights, and is in the worker's copy of the pool when the learner is improved again.
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
        """Compute responses in parallel, add them to the pool, and return their ids.

        wanted: a (seat, mixture) for each response.
        """
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
        """Improve learners in parallel, and publish their new weights and states.

        Each learner is trained against the others' weights as they were before this call. wanted: a (seat, learner id,
        mixture) for each learner.
        """
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
    """A callable that trains members for ``population_based_training``, a whole generation in parallel.

    coordinator: the coordinator, whose pool contains the learners. train: a function that is called on a worker with
    the worker's VecEnv and copy of the pool, a member and a seed; it trains the member's learner, publishes the new
    weights and state in the copy, and returns the score. If all randomness comes from the seed, scores do not depend on
    the worker. others: the ids of further policies whose weights the copy needs, such as opponents; the weights of all
    members of the generation, as they were before training, are always in the copy. seed: the seed from which the
    tasks' seeds are derived.
    """

    def __init__(
        self, coordinator: Coordinator, train: TrainFunction, *, others: Sequence[int] = (), seed: int | None = None
    ) -> None:
        self._coordinator, self._train, self._others = coordinator, train, tuple(others)
        self._seeds = np.random.SeedSequence(seed)

    def __call__(self, member: Member) -> float:
        return self.train_all([member])[0]

    def train_all(self, members: Sequence[Member]) -> list[float]:
        """Train members in parallel, publish their new weights and states, and return their scores."""
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


Request = tuple[str, Callable[..., Any], Sequence[int]]  # a task's name, its call without the seed, and its policies


def _results(coordinator: Coordinator, requests: Sequence[Request], seeds: np.random.SeedSequence) -> list[Any]:
    """Run each request as a task with its own seed, and return the results in the order of the requests."""
    tasks = [
        Task(name, partial(call, seed=seed_of(sequence)), policies)
        for (name, call, policies), sequence in zip(requests, seeds.spawn(len(requests)), strict=True)
    ]
    return [result for _, result in coordinator.run(tasks)]


def _training_result(
    vec: VecEnv, pool: PolicyPool, *, member: Member, state: Any, train: TrainFunction, seed: int
) -> tuple[float, dict[str, Tensor], Any]:
    """Train a member; return its score, and its learner's new weights and state.

    state: the state that was last published for the learner.
    """
    pool.publish(member.learner, state=state)
    score = float(train(vec, pool, member, seed))
    return score, _weights(pool, member.learner), pool.state(member.learner)


def _new_policy(
    vec: VecEnv, pool: PolicyPool, *, query: tuple[Any, ...], make: OracleCreator, seed: int
) -> tuple[Content, str | None]:
    """Create a policy with an oracle; return the policy's content and seat.

    query: the name of the oracle's method to call, followed by the method's arguments.
    """
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
    """Improve a learner with an oracle; return the learner's new weights and state.

    state: the state that was last published for the learner.
    """
    pool.publish(learner, state=state)
    make(vec, pool, seed).improve(seat, learner, mixture)
    return _weights(pool, learner), pool.state(learner)


def _policies(mixture: Mixture) -> tuple[int, ...]:
    return tuple(dict.fromkeys(policy for ids in mixture.populations for policy in ids))


def _weights(pool: PolicyPool, policy: int) -> dict[str, Tensor]:
    """Return a policy's weights on the CPU, so that they can be sent to another process."""
    return {name: value.detach().cpu() for name, value in pool.weights(policy).items()}
