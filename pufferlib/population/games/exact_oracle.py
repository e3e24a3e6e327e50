"""ExactOracle: best responses, payoffs and NashConv of a game that is small enough to enumerate."""

from __future__ import annotations

import numpy as np
import torch

from pufferlib.errors import PlanError
from pufferlib.layout import observation_layout
from pufferlib.models import Origin
from pufferlib.population.games.game_env import GameEnv
from pufferlib.population.games.sequence_form import MAX_NODES, SequenceForm
from pufferlib.population.games.trees import Game, decisions_of, load_game
from pufferlib.population.matchmaking import Mixture
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.pool import PolicyPool
from pufferlib.population.response_oracles import ImprovingOracle, Oracle
from pufferlib.util.annotations import Array

__all__ = ["ExactOracle"]

TABULAR = Origin("pufferlib.population.games.tabular:Tabular")


class ExactOracle(Oracle, ImprovingOracle):
    """An oracle that computes best responses, payoffs and NashConv in a game that is small enough to enumerate.

    game: a Game, or its name for ``load_game``. pool: the pool for the policies; by default, a new one in memory. rate:
    the weight of the best response that ``improve`` mixes into a learner, above 0 and at most 1. max_nodes: see
    ``SequenceForm``. observation: "index", or "tensor" if the pool's learnt policies read the game's tensors; see
    ``GameEnv``.

    New policies are ``Tabular``, so they can also play in a ``GameEnv``; a seat's first policy plays all legal actions
    with equal probability. Seats are the game's players, named player_0, player_1, … in the pool. Only a mixture's
    marginals are used. The pool may also hold other policies, such as learnt ones: any stateless policy that plays in
    ``GameEnv(game, observation=observation)`` is evaluated exactly, from its action probabilities in each information
    state.

    Raises PlanError for an invalid rate, and the errors of ``load_game``, ``SequenceForm`` and ``GameEnv``.
    """

    def __init__(
        self,
        game: str | Game,
        pool: PolicyPool | None = None,
        *,
        rate: float = 1.0,
        max_nodes: int = MAX_NODES,
        observation: str = "index",
    ) -> None:
        if not 0 < rate <= 1:
            raise PlanError(f"rate={rate} is out of range; use a number above 0 and at most 1")
        self._game = load_game(game) if isinstance(game, str) else game
        self.form = SequenceForm(self._game, max_nodes=max_nodes)
        self.pool = PolicyPool() if pool is None else pool
        self.rate = rate
        # With indices, it enumerates the game again, so it is made only if a policy needs it.
        self._env = None if observation == "index" else GameEnv(self._game, observation)
        self._rows: Array | None = None  # the observations in all information states, computed when first needed
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
        env = self._env = self._env or GameEnv(self._game, "index")
        layout = observation_layout(env.observation_space("player_0"))
        if self._rows is None:
            self._rows = np.zeros((self.form.num_states, *layout.shape), layout.dtype)
            for player, state in decisions_of(self._game):
                index = self.form.index[player, state.information_state_string(player)]
                self._rows[index] = layout.flatten(env.observation_of(state, player))
        with torch.inference_mode():
            actor = self.pool.actor(policy, layout, env.action_space("player_0"))
            distribution, _, _ = actor(torch.from_numpy(self._rows))
        chances = distribution.log_probs[0].double().exp().numpy() * self.form.legal
        return np.asarray(chances / chances.sum(1, keepdims=True))
