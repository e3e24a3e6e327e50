"""The sequence form of a game tree: exact payoffs, best responses and NashConv, in NumPy.

A sequence is the list of a player's own actions on the way to a node. A plan (realization plan) is an array of the
probabilities of a player's sequences. A table (behaviour strategy) is an array of the probabilities of each action in
each information state.
Payoffs are linear in each player's plan, so a mixture of policies is equivalent to the weighted average of their plans.
Source: von Stengel, "Efficient computation of behavior strategies", Games and Economic Behavior 14, 1996.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pufferlib.errors import PlanError
from pufferlib.population.games.trees import Game
from pufferlib.population.payoff import pairwise_wins
from pufferlib.util.annotations import Array

__all__ = ["SequenceForm"]

ROOT = 0  # the empty sequence
NOT_LEGAL = -1
MAX_NODES = 1_000_000  # of a tree: up to half a minute and some hundred megabytes
PROBES = 64
# The estimate from one random line of play is unbiased, so by Markov's inequality it exceeds the true size by this
# factor in at most one line in four; a tree is refused if more than half of the probes exceed the limit by this factor.
MARGIN = 4


@dataclass
class _Level:
    """The information states that a player reaches after the same number of the player's own actions."""

    states: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)  # the sequence that leads to each
    sequences: list[list[int]] = field(default_factory=list)  # (states, num_actions), NOT_LEGAL for illegal actions


class SequenceForm:
    """The sequence form of a game with perfect recall, for any number of players.

    num_states: the number of information states of all players together. num_actions: the number of distinct actions.
    index: a mapping from (player, information state) to a row of tables. num_sequences: each player's number of
    sequences. legal: bool (num_states, num_actions), the legal actions.

    max_nodes: the largest number of nodes that the game's tree may have. Raises PlanError for a larger tree, for a game
    in which a player forgets earlier actions, and for max_nodes below 1. If random play shows that the tree is too
    large, it is not enumerated.
    """

    def __init__(self, game: Game, *, max_nodes: int = MAX_NODES) -> None:
        if max_nodes < 1:
            raise PlanError(f"max_nodes={max_nodes} is too small; use 1 or more")
        self._max_nodes, self._num_nodes = max_nodes, 0
        _require_small(game, max_nodes)
        self.num_players, self.num_actions = game.num_players(), game.num_distinct_actions()
        self.index: dict[tuple[int, str], int] = {}
        self.num_sequences = [1] * self.num_players
        self._rows: list[list[int]] = []  # each information state's sequences, by action
        self._parents: list[int] = []
        self._levels: list[list[_Level]] = [[] for _ in range(self.num_players)]
        self._depth = [[0] for _ in range(self.num_players)]  # of each sequence
        leaves: list[tuple[int, ...]] = []
        ends: list[tuple[float, ...]] = []
        self._walk(game.new_initial_state(), (ROOT,) * self.num_players, 1.0, leaves, ends)
        self.num_states = len(self._rows)
        self.legal = np.array(self._rows).reshape(-1, self.num_actions) != NOT_LEGAL
        self._leaves = np.ascontiguousarray(np.array(leaves, np.int64).T)  # (num_players, leaves): sequences
        self._chances, *returns = np.ascontiguousarray(np.array(ends).T)  # (leaves,) each
        self._returns = np.array(returns)  # (num_players, leaves)
        self._weighted_returns = self._chances * self._returns
        self._zero_sum = self.num_players == 2 and bool(np.allclose(self._weighted_returns.sum(0), 0, atol=1e-12))
        self._arrays = [
            [(np.array(level.states), np.array(level.parents), np.array(level.sequences)) for level in levels]
            for levels in self._levels
        ]

    def _walk(self, state: Any, sequences: tuple[int, ...], chance: float, leaves: Any, ends: Any) -> None:
        self._num_nodes += 1
        if self._num_nodes > self._max_nodes:
            raise _too_large(self._max_nodes)
        if state.is_terminal():
            leaves.append(sequences)
            ends.append((chance, *state.returns()))
            return
        if state.is_chance_node():
            for outcome, probability in state.chance_outcomes():
                self._walk(state.child(outcome), sequences, chance * probability, leaves, ends)
            return
        player, legal = state.current_player(), state.legal_actions()
        row = self._row(player, state.information_state_string(player), sequences[player], legal)
        for action in legal:
            next_sequences = (*sequences[:player], row[action], *sequences[player + 1 :])
            self._walk(state.child(action), next_sequences, chance, leaves, ends)

    def _row(self, player: int, information_state: str, parent: int, legal: Sequence[int]) -> list[int]:
        number = self.index.get((player, information_state))
        if number is not None:
            if self._parents[number] != parent:
                raise PlanError(
                    f"player {player} forgets its own earlier actions: different ones lead to {information_state!r}"
                )
            return self._rows[number]
        self.index[player, information_state] = number = len(self._rows)
        row = [NOT_LEGAL] * self.num_actions
        depth = self._depth[player][parent]
        for action in legal:
            row[action] = self.num_sequences[player]
            self.num_sequences[player] += 1
            self._depth[player].append(depth + 1)
        if depth == len(self._levels[player]):
            self._levels[player].append(_Level())
        level = self._levels[player][depth]
        level.states.append(number)
        level.parents.append(parent)
        level.sequences.append(row)
        self._rows.append(row)
        self._parents.append(parent)
        return row

    # ------------------------------------------------------------------------------------------------- strategies

    def uniform(self) -> Array:
        """Return the table, (num_states, num_actions), of uniform random play over the legal actions."""
        return np.asarray(self.legal / self.legal.sum(1, keepdims=True))

    def plan(self, player: int, table: Array) -> Array:
        """Return a player's plan, (num_sequences[player],), for a table.

        The rows of other players' states are ignored.
        """
        plan = np.zeros(self.num_sequences[player])
        plan[ROOT] = 1
        for states, parents, sequences in self._arrays[player]:
            legal = sequences != NOT_LEGAL
            plan[sequences[legal]] = (plan[parents][:, None] * table[states])[legal]
        return plan

    def table(self, player: int, plan: Array) -> Array:
        """Return a table that plays a player's plan.

        It is uniform in the player's states that the plan does not reach, and in other players' states.
        """
        table = self.uniform()
        for states, parents, sequences in self._arrays[player]:
            reached = plan[parents] > 0
            probabilities = np.where(sequences != NOT_LEGAL, plan[sequences], 0)[reached]
            table[states[reached]] = probabilities / probabilities.sum(1, keepdims=True)
        return table

    # --------------------------------------------------------------------------------------------------- payoffs

    def values(self, plans: Sequence[Array]) -> Array:
        """Return each player's expected payoff, (num_players,), if they play these plans."""
        reach = np.ones(self._leaves.shape[1])
        for plan, sequences in zip(plans, self._leaves, strict=True):
            reach = reach * plan[sequences]
        return np.asarray(self._weighted_returns @ reach)

    def payoffs(self, plans: Sequence[Array]) -> Array:
        """Return the payoffs of all combinations of plans, (num_players, n_0, n_1, …), for up to 8 players.

        plans: one array per player, (number of plans, num_sequences[player]).
        """
        if self._zero_sum:
            (matrix,) = self._sums(self._weighted_returns[:1], plans)
            return np.stack([matrix, -matrix])
        return self._sums(self._weighted_returns, plans)

    def wins(self, plans: Sequence[Array]) -> Array:
        """Return the probability that one player gets more than another, for all pairs and all combinations of plans.

        A draw counts as half. The shape is (num_players, num_players, n_0, n_1, …); the first index is that of the
        player who gets more. plans: as for ``payoffs``, which has the same limit of 8 players.
        """
        first, second = np.triu_indices(self.num_players, 1)
        wins_by_pair = pairwise_wins(self._returns.T)[:, first, second].T * self._chances  # (pairs, leaves)
        sizes = [len(plan) for plan in plans]
        wins = np.full((self.num_players, self.num_players, *sizes), 0.5)
        wins[first, second] = self._sums(wins_by_pair, plans)
        wins[second, first] = 1 - wins[first, second]
        return wins

    def _sums(self, values: Array, plans: Sequence[Array]) -> Array:
        """Sum values over the leaves, for all combinations of plans.

        Each leaf is weighted by the product of the probabilities that the plans give to the sequences that lead to it;
        chance must be included in the values. values: (rows, leaves). Returns (rows, n_0, n_1, …).
        """
        reach = [np.asarray(plan)[:, sequences] for plan, sequences in zip(plans, self._leaves, strict=True)]
        if self.num_players == 2:
            first, second = reach
            return np.stack([(first * value) @ second.T for value in values])
        letters = "abcdefgh"[: self.num_players]
        subscripts = f"zy,{','.join(f'{letter}y' for letter in letters)}->z{letters}"
        return np.asarray(np.einsum(subscripts, values, *reach, optimize=True))

    def best_response(self, player: int, plans: Sequence[Array]) -> tuple[float, Array]:
        """Return a player's highest payoff against the others' plans, and a pure plan that achieves it.

        Among equally good actions, the plan takes the first. plans: one plan per player; this player's is ignored.
        """
        reach = self._weighted_returns[player]
        for other, plan in enumerate(plans):
            if other != player:
                reach = reach * plan[self._leaves[other]]
        num = self.num_sequences[player]
        values = np.bincount(self._leaves[player], reach, num)  # of each sequence, until the player's next state
        best_sequences: list[Array] = []
        for _, parents, sequences in reversed(self._arrays[player]):
            options = np.where(sequences != NOT_LEGAL, values[sequences], -np.inf)
            best = options.argmax(1)
            lines = np.arange(len(best))
            values += np.bincount(parents, options[lines, best], num)
            best_sequences.append(sequences[lines, best])
        plan = np.zeros(num)
        plan[ROOT] = 1
        for (_, parents, _), best in zip(self._arrays[player], reversed(best_sequences), strict=True):
            plan[best] = plan[parents]
        return float(values[ROOT]), plan

    def nash_conv(self, plans: Sequence[Array]) -> float:
        """Return NashConv, the sum of what each player could gain by deviating alone to a best response.

        It is 0 only in Nash equilibria. It equals OpenSpiel's ``nash_conv``; OpenSpiel's ``exploitability`` is this
        divided by the number of players.
        """
        best = sum(self.best_response(player, plans)[0] for player in range(self.num_players))
        return best - float(self.values(plans).sum())


def _require_small(game: Game, max_nodes: int) -> None:
    """Raise PlanError if random play shows that a tree exceeds max_nodes. Source: Knuth, Math. Comp. 29, 1975."""
    rng, num_large = random.Random(0), 0
    for _ in range(PROBES):
        num_large += _probe(game, rng, MARGIN * max_nodes) > MARGIN * max_nodes
    if num_large > PROBES // 2:
        raise _too_large(max_nodes)


def _probe(game: Game, rng: random.Random, limit: int) -> int:
    """Return an estimate of the number of nodes in a tree, from one random line of play.

    The estimate assumes that all lines branch in the same way. Stops as soon as the estimate exceeds ``limit``.
    """
    state = game.new_initial_state()
    nodes = width = 1
    while nodes <= limit and not state.is_terminal():
        chance = state.is_chance_node()
        options: Any = [outcome for outcome, _ in state.chance_outcomes()] if chance else state.legal_actions()
        width *= len(options)
        nodes += width
        state = state.child(rng.choice(options))
    return nodes


def _too_large(max_nodes: int) -> PlanError:
    return PlanError(
        f"the game's tree has more than max_nodes={max_nodes:,} nodes, too many to enumerate: respond by learning "
        '(pufferlib.training.oracles.LearnedOracle over GameEnv(game, observation="tensor"); in a league oracle = '
        '"ppo" or "dqn" and payoffs = "sampled"), or raise max_nodes if time and memory allow'
    )
