"""Oracles: who answers a mixture with a policy that does better against it. Here the exact one, for games in full."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from pufferlib.models import Origin
from pufferlib.population.games.sequence_form import SequenceForm
from pufferlib.population.games.trees import Game, load_game
from pufferlib.population.matchup import Mixture
from pufferlib.population.payoff import PayoffTable
from pufferlib.population.pool import PolicyPool

__all__ = ["ExactOracle", "Oracle"]

Array = np.ndarray[Any, Any]
TABULAR = Origin("pufferlib.population.games.tabular:Tabular")


class Oracle(Protocol):
    """What a loop asks for policies; it adds them to its pool."""

    def initial(self, seat: int) -> int:
        """Return the id of a seat's first policy."""

    def respond(self, seat: int, mixture: Mixture) -> int:
        """Return the id of a new policy for a seat, as good as may be where the other seats play a mixture."""


class ExactOracle:
    """Best responses, payoffs and NashConv of a game that can be enumerated, computed and not sampled.

    game: as ``load_game`` takes it, or a Game. Policies are tables, ``Tabular``, which also play in a ``GameEnv``; the
    first one plays all legal actions alike. Seats are the game's players, called player_0, player_1, … in the pool. Of
    a joint mixture its marginals count.
    """

    def __init__(self, game: str | Game, pool: PolicyPool | None = None) -> None:
        self.form = SequenceForm(load_game(game) if isinstance(game, str) else game)
        self.pool = PolicyPool() if pool is None else pool
        self._plans: dict[tuple[int, int], Array] = {}  # by seat and policy

    def table(self) -> PayoffTable:
        """Return an empty payoff table for this game."""
        return PayoffTable(self.form.num_players)

    def initial(self, seat: int) -> int:
        return self._add(seat, self.form.uniform())

    def respond(self, seat: int, mixture: Mixture) -> int:
        _, plan = self.form.best_response(seat, self.plans(mixture))
        return self._add(seat, self.form.table(seat, plan))

    def evaluate(self, table: PayoffTable) -> None:
        """Fill a table with exact payoffs; what an ``Evaluator`` estimates."""
        populations = [
            np.stack([self._plan(seat, policy) for policy in ids]) for seat, ids in enumerate(table.populations)
        ]
        table.fill(self.form.payoffs(populations))

    def nash_conv(self, mixture: Mixture) -> float:
        """Return what all players could gain against a mixture by best responses, in sum."""
        return self.form.nash_conv(self.plans(mixture))

    def plans(self, mixture: Mixture) -> list[Array]:
        """Return each player's plan that is as good as drawing a policy from its marginal before each episode."""
        return [
            sum((share * self._plan(seat, policy) for policy, share in mixture.support(seat).items()), np.zeros(1))
            for seat in range(self.form.num_players)
        ]

    def _add(self, seat: int, table: Array) -> int:
        return self.pool.add({"table": torch.from_numpy(table)}, TABULAR, f"player_{seat}")

    def _plan(self, seat: int, policy: int) -> Array:
        if (seat, policy) not in self._plans:
            self._plans[seat, policy] = self.form.plan(seat, self.pool.weights(policy)["table"].numpy())
        return self._plans[seat, policy]
