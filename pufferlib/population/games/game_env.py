"""GameEnv: a game tree as a PettingZoo environment, with one row per player; action masks mark the player to move."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from gymnasium import spaces

from pufferlib.errors import ActionError, PlanError
from pufferlib.population.games.sequence_form import SequenceForm
from pufferlib.population.games.trees import Game, KuhnPoker, LeducPoker, load_game, tensor_of

__all__ = ["GameEnv"]

if TYPE_CHECKING or find_spec("pettingzoo") is not None:
    from pettingzoo import ParallelEnv
else:  # populations can be imported without PettingZoo
    Agent, Observation, Action = TypeVar("Agent"), TypeVar("Observation"), TypeVar("Action")

    class ParallelEnv(Generic[Agent, Observation, Action]):
        """A stand-in for PettingZoo's class, with nothing of its own."""


class GameEnv(ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """A PettingZoo environment that plays a game turn by turn. All players have a row in each step, but only one acts.

    game: a Game, or its name for ``load_game``.
    observation: "tensor", the game's information state tensor or, if it has none, its observation tensor; or "index",
        the number of the information state (``SequenceForm.index``; 0 for players who do not act), which ``Tabular``
        reads. By default, "index" for our own Kuhn and Leduc poker and for games without tensors, else "tensor".
    render_mode: if "ansi", ``render`` returns the game's state as text, including information that is hidden from
        players.

    Observations are dicts of "state" and "action_mask". The mask of a player who does not act is all 0, and the
    player's action is ignored. Only the last step has nonzero rewards.

    Raises PlanError for an invalid observation or render_mode, and the errors of ``load_game`` and, for "index", of
    ``SequenceForm``; ``step`` raises ActionError for an action that the player's mask forbids.
    """

    metadata = {"name": "game_env", "render_modes": ["ansi"]}

    def __init__(
        self, game: str | Game = "leduc_poker", observation: str | None = None, render_mode: str | None = None
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise PlanError(f'render_mode={render_mode!r} is not supported; use "ansi" or None')
        self.render_mode = render_mode
        self.game: Any = load_game(game) if isinstance(game, str) else game
        tensor = tensor_of(self.game)
        is_small = isinstance(self.game, (KuhnPoker, LeducPoker))
        observation = observation or ("index" if tensor is None or is_small else "tensor")
        if observation not in ("tensor", "index") or (observation == "tensor" and tensor is None):
            raise PlanError(
                f'observation={observation!r} is not available; use "index" or, if the game has tensors, "tensor"'
            )
        self._tensor = tensor if observation == "tensor" else None
        self.possible_agents = [f"player_{number}" for number in range(self.game.num_players())]
        num_actions = self.game.num_distinct_actions()
        # Both have one dtype, so that a row is an array of that dtype.
        if self._tensor is not None:
            parts: dict[str, Any] = {
                "action_mask": spaces.Box(0, 1, (num_actions,), np.float32),
                "state": spaces.Box(-np.inf, np.inf, self._tensor[0], np.float32),
            }
        else:
            self.form = _form_of(game) if isinstance(game, str) else SequenceForm(self.game)
            parts = {
                "action_mask": spaces.MultiDiscrete([2] * num_actions),
                "state": spaces.Discrete(self.form.num_states),
            }
        self._num_actions, self._space = num_actions, spaces.Dict(parts)
        self._actions = spaces.Discrete(num_actions)
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        return self._space

    def action_space(self, agent: str) -> Any:
        return self._actions

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._state = self.game.new_initial_state()
        self._play_chance()
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        player = self._state.current_player()
        action = int(actions[self.possible_agents[player]])
        if action not in self._state.legal_actions():
            raise ActionError(f"player {player} may play {list(self._state.legal_actions())} now, not {action}")
        self._state = self._state.child(action)
        self._play_chance()
        is_over = self._state.is_terminal()
        returns = self._state.returns() if is_over else [0.0] * len(self.possible_agents)
        observations, agents = self._observe(), self.possible_agents
        if is_over:
            self.agents = []
        return (
            observations,
            {agent: float(value) for agent, value in zip(agents, returns, strict=True)},
            dict.fromkeys(agents, is_over),
            dict.fromkeys(agents, False),
            {agent: {} for agent in agents},
        )

    def render(self) -> str | None:
        return str(self._state) if self.render_mode == "ansi" else None

    def _play_chance(self) -> None:
        while self._state.is_chance_node():
            actions, probabilities = zip(*self._state.chance_outcomes(), strict=True)
            edges = np.cumsum(probabilities)
            index = int(edges.searchsorted(self._rng.random() * edges[-1], "right"))
            self._state = self._state.child(actions[min(index, len(actions) - 1)])

    def _observe(self) -> dict[str, Any]:
        current_player = None if self._state.is_terminal() else self._state.current_player()
        return {
            agent: self.observation_of(self._state, player, player == current_player)
            for player, agent in enumerate(self.possible_agents)
        }

    def observation_of(self, state: Any, player: int, can_act: bool = True) -> dict[str, Any]:
        """Return a player's observation of a state of the game. can_act: whether the player is to act in it."""
        mask = np.zeros(self._num_actions, np.int64 if self._tensor is None else np.float32)
        if can_act:
            mask[state.legal_actions()] = 1
        if self._tensor is not None:
            shape, method = self._tensor
            # Some games have no tensor in terminal states.
            values = np.zeros(shape) if state.is_terminal() else getattr(state, method)(player)
            return {"action_mask": mask, "state": np.array(values, np.float32).reshape(shape)}
        index = self.form.index[player, state.information_state_string(player)] if can_act else 0
        return {"action_mask": mask, "state": index}


@lru_cache(maxsize=8)
def _form_of(name: str) -> SequenceForm:
    """Return a game's sequence form, cached per process, because computing that of Leduc poker takes 50 ms."""
    return SequenceForm(load_game(name))
