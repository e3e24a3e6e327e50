"""Oracles, which respond to a mixture with a new policy; ``ExactOracle`` computes best responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from pufferlib.errors import PlanError
from pufferlib.layout import observation_layout
from pufferlib.models import Origin
from pufferlib.population.games.game_env import GameEnv
from pufferlib.population.games.sequence_form import MAX_NODES, SequenceForm
from pufferlib.population.games.trees import Game, load_game
from pufferlib.population.matchup import Mixture
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.pool import PolicyPool

__all__ = ["ExactOracle", "ImprovingOracle", "Oracle", "improve_all", "respond_all"]

Array = np.ndarray[Any, Any]
TABULAR = Origin("pufferlib.population.games.tabular:Tabular")


class Oracle(Protocol):
    """The interface of an oracle, which creates policies and adds them to its pool."""

    def initial(self, seat: int) -> int:
        """Create a seat's first policy and return its id."""

    def respond(self, seat: int, mixture: Mixture) -> int:
        """Create a policy for a seat, and return its id.

        The policy plays as well as possible against the other seats of the mixture.
        """


class ImprovingOracle(Protocol):
    """An oracle that improves policies step by step, as learners of its pool."""

    pool: PolicyPool

    def initial(self, seat: int) -> int:
        """Create a seat's first policy, which is frozen, and return its id."""

    def begin(self, seat: int) -> int:
        """Create a learner for a seat and return its id."""

    def improve(self, seat: int, learner: int, mixture: Mixture) -> None:
        """Improve a learner for a while against the other seats of a mixture, and publish the result."""


def respond_all(oracle: Oracle, requests: Sequence[tuple[int, Mixture]]) -> list[int]:
    """Create a response to each (seat, mixture), and return the responses' ids, in the order of the requests.

    If the oracle has a method ``respond_all``, calls it once, with all requests.
    """
    batch_method = getattr(oracle, "respond_all", None)
    if batch_method is not None:
        return list(batch_method(requests))
    return [oracle.respond(seat, mixture) for seat, mixture in requests]


def improve_all(oracle: ImprovingOracle, requests: Sequence[tuple[int, int, Mixture]]) -> None:
    """Improve the learner of each (seat, learner, mixture).

    If the oracle has a method ``improve_all``, calls it once, with all requests.
    """
    batch_method = getattr(oracle, "improve_all", None)
    if batch_method is not None:
        batch_method(requests)
        return
    for seat, learner, mixture in requests:
        oracle.improve(seat, learner, mixture)


class ExactOracle(Oracle, ImprovingOracle):
    """An oracle that computes best responses, payoffs and NashConv in a game that is small enough to enumerate.

    game: a Game, or its name for ``load_game``. pool: the pool for the policies; by default, a new one in memory. rate:
    the weight of the best response that ``improve`` mixes into a learner, above 0 and at most 1. max_nodes: see
    ``SequenceForm``.

    New policies are ``Tabular``, so they can also play in a ``GameEnv``; a seat's first policy plays all legal actions
    with equal probability. Seats are the game's players, named player_0, player_1, … in the pool. Only a mixture's
    marginals are used. The pool may also hold other policies, such as learnt ones: any stateless policy that plays in
    ``GameEnv(game, observation="index")`` is evaluated exactly, from its action probabilities in each information
    state.

    Raises PlanError for an invalid rate, and the errors of ``load_game`` and ``SequenceForm``.
    """

    def __init__(
        self, game: str | Game, pool: PolicyPool | None = None, *, rate: float = 1.0, max_nodes: int = MAX_NODES
    ) -> None:
        if not 0 < rate <= 1:
            raise PlanError(f"rate={rate} is out of range; use a number above 0 and at most 1")
        self._game = load_game(game) if isinstance(game, str) else game
        self.form = SequenceForm(self._game, max_nodes=max_nodes)
        self.pool = PolicyPool() if pool is None else pool
        self.rate = rate
        self._plans: dict[tuple[int, str], Array] = {}  # by seat and digest

    def table(self) -> PayoffTable:
        """Return an empty payoff table for this game."""
        return PayoffTable(self.form.num_players)

    def initial(self, seat: int) -> int:
        return self._add(seat, self.form.uniform())

    def respond(self, seat: int, mixture: Mixture) -> int:
        _, plan = self.form.best_response(seat, self.plans(mixture))
        return self._add(seat, self.form.table(seat, plan))

    def begin(self, seat: int) -> int:
        weights = {"table": torch.from_numpy(self.form.uniform())}
        return self.pool.add_learner(weights, TABULAR, f"player_{seat}")

    def improve(self, seat: int, learner: int, mixture: Mixture) -> None:
        _, best = self.form.best_response(seat, self.plans(mixture))
        plan = (1 - self.rate) * self._plan(seat, learner) + self.rate * best
        self.pool.publish(learner, {"table": torch.from_numpy(self.form.table(seat, plan))})

    def evaluate(self, table: PayoffTable) -> None:
        """Fill a table with exact payoffs and win rates, which an ``Evaluator`` would only estimate."""
        populations = [
            np.stack([self._plan(seat, policy) for policy in ids]) for seat, ids in enumerate(table.populations)
        ]
        table.fill(self.form.payoffs(populations), self.form.wins(populations))

    def nash_conv(self, mixture: Mixture) -> float:
        """Return a mixture's NashConv, the sum of what each player could gain by deviating alone to a best response."""
        return self.form.nash_conv(self.plans(mixture))

    def plans(self, mixture: Mixture) -> list[Array]:
        """Return a plan per player, equivalent to drawing a policy from the player's marginal in each episode."""
        return [
            sum((share * self._plan(seat, policy) for policy, share in mixture.support(seat).items()), np.zeros(1))
            for seat in range(self.form.num_players)
        ]

    def _add(self, seat: int, table: Array) -> int:
        return self.pool.add({"table": torch.from_numpy(table)}, TABULAR, f"player_{seat}")

    def _plan(self, seat: int, policy: int) -> Array:
        digest = self.pool[policy].digest
        if not digest:  # a learning actor, whose weights may change at any time
            return self.form.plan(seat, self._table(policy))
        key = (seat, digest)
        if key not in self._plans:
            self._plans[key] = self.form.plan(seat, self._table(policy))
        return self._plans[key]

    def _table(self, policy: int) -> Array:
        """Return a policy's action probabilities, (num_states, num_actions).

        A policy that is not ``Tabular`` is evaluated in every information state.
        """
        if self.pool.origin(policy).policy == TABULAR.policy:
            return self.pool.weights(policy)["table"].numpy()
        env = GameEnv(self._game, "index")
        layout = observation_layout(env.observation_space("player_0"))
        states = enumerate(self.form.legal.astype(np.int64))
        rows = np.stack([layout.flatten({"action_mask": legal, "state": state}) for state, legal in states])
        with torch.inference_mode():
            actor = self.pool.actor(policy, layout, env.action_space("player_0"))
            distribution, _, _ = actor(torch.from_numpy(rows))
        chances = distribution.log_probs[0].double().exp().numpy() * self.form.legal
        return np.asarray(chances / chances.sum(1, keepdims=True))
