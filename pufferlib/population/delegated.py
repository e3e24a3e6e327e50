"""Oracles whose work is done by a coordinator's workers, that of several seats and levels at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from pufferlib.population.coordinator import Coordinator
from pufferlib.population.matchup import Mixture
from pufferlib.population.oracle import ImprovingOracle, Oracle
from pufferlib.population.pool import Content, PolicyPool
from pufferlib.population.station import Task
from pufferlib.vectorization import VecEnv

__all__ = ["Delegated"]

Make = Callable[[VecEnv, PolicyPool, int], Any]  # of an oracle


class Delegated(Oracle, ImprovingOracle):
    """An oracle for loops, each of whose answers is a task.

    make: of a worker's VecEnv, its copy of the pool, and a seed, an oracle that is asked one thing there: an Oracle
    for ``psro``, an ImprovingOracle for ``pipeline_psro``. It has the policies of the mixture's populations. Where it
    takes all chance from the seed, answers do not depend on who gives them. What else it has, such as the state of an
    optimiser, ends with the answer.
    """

    def __init__(self, coordinator: Coordinator, make: Make, *, seed: int | None = None) -> None:
        self.pool, self._coordinator, self._make = coordinator.pool, coordinator, make
        self._seeds = np.random.SeedSequence(seed)

    def initial(self, seat: int) -> int:
        ((content, name),) = self._run([(f"first policy of seat {seat}", partial(_made, asked=("initial", seat)), ())])
        return self._add(content, name)

    def respond(self, seat: int, mixture: Mixture) -> int:
        return self.respond_all([(seat, mixture)])[0]

    def respond_all(self, wanted: Sequence[tuple[int, Mixture]]) -> list[int]:
        """Return the ids of responses, which are made at the same time. wanted: for each its seat and mixture."""
        asked = [
            (f"response of seat {seat}", partial(_made, asked=("respond", seat, mixture)), _policies(mixture))
            for seat, mixture in wanted
        ]
        return [self._add(content, name) for content, name in self._run(asked)]

    def begin(self, seat: int) -> int:
        ((content, name),) = self._run([(f"learner of seat {seat}", partial(_made, asked=("begin", seat)), ())])
        return self.pool.add_learner(content[1], content[0], name)

    def improve(self, seat: int, learner: int, mixture: Mixture) -> None:
        self.improve_all([(seat, learner, mixture)])

    def improve_all(self, wanted: Sequence[tuple[int, int, Mixture]]) -> None:
        """Have learners improve, all from what they are now. wanted: for each its seat, its id, and the mixture."""
        asked = [
            (
                f"training of learner {learner}",
                partial(_improved, seat=seat, learner=learner, mixture=mixture),
                (learner, *_policies(mixture)),
            )
            for seat, learner, mixture in wanted
        ]
        for (_, learner, _), weights in zip(wanted, self._run(asked), strict=True):
            self.pool.publish(learner, weights)

    def _run(self, asked: Sequence[tuple[str, Callable[..., Any], Sequence[int]]]) -> list[Any]:
        """Return the results of calls, each with a name and the policies that it needs."""
        tasks = [
            Task(name, partial(call, make=self._make, seed=int(seeds.generate_state(1)[0]) & 0x7FFFFFFF), policies)
            for (name, call, policies), seeds in zip(asked, self._seeds.spawn(len(asked)), strict=True)
        ]
        return [result for _, result in self._coordinator.run(tasks)]

    def _add(self, content: Content, seat: str | None) -> int:
        return self.pool.add(content[1], content[0], seat)


def _made(
    vec: VecEnv, pool: PolicyPool, *, asked: tuple[Any, ...], make: Make, seed: int
) -> tuple[Content, str | None]:
    """Return what a policy is that an oracle makes, and its seat. asked: a method's name, and what it is asked."""
    method, *arguments = asked
    policy = getattr(make(vec, pool, seed), method)(*arguments)
    return (pool.origin(policy), _weights(pool, policy)), pool[policy].seat


def _improved(
    vec: VecEnv, pool: PolicyPool, *, seat: int, learner: int, mixture: Mixture, make: Make, seed: int
) -> dict[str, Tensor]:
    """Return the weights of a learner that an oracle has improved."""
    make(vec, pool, seed).improve(seat, learner, mixture)
    return _weights(pool, learner)


def _policies(mixture: Mixture) -> tuple[int, ...]:
    return tuple(dict.fromkeys(policy for ids in mixture.populations for policy in ids))


def _weights(pool: PolicyPool, policy: int) -> dict[str, Tensor]:
    """Return weights as they can be sent."""
    return {name: value.detach().cpu() for name, value in pool.weights(policy).items()}
