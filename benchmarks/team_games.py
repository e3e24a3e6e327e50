"""Small games of one team with a known best joint value, with the interface of PettingZoo's parallel environments."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

__all__ = ["TwoStep"]


class TwoStep:
    """The two-step game of QMIX's paper: a sum of two agents' values cannot tell which second game is better.

    The first agent's first action chooses a game. In game A all pays 7; in game B, 8 if both agents play action 1, 1 if
    one does, else 0. Both agents get the reward, and observe nothing but the state, which is also ``state()``.

    Source: Rashid et al., arXiv:1803.11485, section 5.
    """

    metadata: dict[str, Any] = {"name": "two_step"}
    possible_agents = ["first", "second"]
    state_space = spaces.Box(0, 1, (3,), np.float32)
    payoffs = np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]], np.float32)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of the state."""
        return self.state_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of two actions."""
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode; return (observations, infos) by agent."""
        self.agents, self.game_index = list(self.possible_agents), 0
        return self._of_each(self.state()), self._of_each({})

    def state(self) -> np.ndarray:
        """Return which game is played, one-hot: none yet, A or B; float32 (3,)."""
        state: np.ndarray = np.eye(3, dtype=np.float32)[self.game_index]
        return state

    def step(self, actions: dict[str, int]) -> Any:
        """Play both actions; return (observations, rewards, terminations, truncations, infos) by agent."""
        ends = self.game_index > 0
        reward = float(self.payoffs[self.game_index - 1, actions["first"], actions["second"]]) if ends else 0.0
        if not ends:
            self.game_index = 1 + int(actions["first"])
        values: tuple[Any, ...] = (self.state(), reward, ends, False, {})
        returned = [self._of_each(value) for value in values]
        if ends:
            self.agents = []
        return tuple(returned)

    def close(self) -> None:
        """Do nothing."""

    def _of_each(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.agents, value)
