"""PufferEnv: an environment that reads its actions and writes its rows in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import gymnasium
import numpy as np

__all__ = ["PufferEnv"]

Infos = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class PufferEnv:
    """An environment of a fixed number of rows, one an agent, that it writes in place.

    A subclass sets ``single_observation_space`` and ``single_action_space`` (of one agent; any space but Dict, Tuple
    and those of variable length), ``num_agents`` where it is not 1, and writes ``reset`` and ``step``:

        class Countdown(pufferlib.PufferEnv):
            single_observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
            single_action_space = gymnasium.spaces.Discrete(2)

            def reset(self, seed=None, options=None):
                super().reset(seed=seed)
                self.left = 10
                self.observations[:] = 1

            def step(self, actions):
                self.left -= 1
                self.observations[:] = self.left / 10
                self.rewards[:] = actions == 0
                self.terminations[:] = self.left == 0

    Before each call ``rewards``, ``terminations`` and ``truncations`` are zeroed, and before ``reset`` all agents are
    made ``alive``; afterwards those that terminated or were truncated no longer are. The episode is over when no agent
    is alive. Who has agents that come and go writes ``alive`` too; rows of absent agents are zeroed for it.

    An environment may step many copies of something itself, all of them with a few calls of NumPy: a row each. A copy
    that ended in one step starts again in the next, in which its action does not count and its reward and flags say
    nothing. ``reset`` starts all of them, and is called for it where all have ended in the same step:

            def step(self, actions):
                fresh = ~self.alive
                self.left -= 1
                self.left[fresh] = 10
                self.alive[:] = True
                self.observations[:, 0] = self.left / 10
                self.rewards[:] = actions == 0
                self.terminations[:] = self.left == 0

    ``reset`` and ``step`` return None, one dict (the environment's; with one agent, that agent's), or a sequence of
    ``num_agents`` dicts.
    """

    single_observation_space: gymnasium.Space[Any]  # of one agent
    single_action_space: gymnasium.Space[Any]  # of one agent
    num_agents: int = 1  # rows
    metadata: ClassVar[Mapping[str, Any]] = {"render_modes": []}  # as Gymnasium has it
    render_mode: str | None = None  # what ``render`` returns
    spec: Any = None  # Gymnasium's, of an environment that it has registered

    @cached_property
    def observations(self) -> np.ndarray[Any, Any]:
        """What the agents see, (num_agents, \\*single_observation_space.shape); kept between steps."""
        space = self.single_observation_space
        assert space.shape is not None
        return np.zeros((self.num_agents, *space.shape), space.dtype)

    @cached_property
    def rewards(self) -> np.ndarray[Any, Any]:
        """Rewards of the last step, (num_agents,) float64, zero before each call."""
        return np.zeros(self.num_agents, np.float64)

    @cached_property
    def terminations(self) -> np.ndarray[Any, Any]:
        """Agents whose life ended in this step for good, (num_agents,) bool, False before each call."""
        return np.zeros(self.num_agents, np.bool_)

    @cached_property
    def truncations(self) -> np.ndarray[Any, Any]:
        """Agents cut off in this step though they could have gone on, (num_agents,) bool, False before each call."""
        return np.zeros(self.num_agents, np.bool_)

    @cached_property
    def alive(self) -> np.ndarray[Any, Any]:
        """Agents whose next action counts, (num_agents,) bool."""
        return np.ones(self.num_agents, np.bool_)

    @cached_property
    def np_random(self) -> np.random.Generator:
        """This environment's own generator; ``super().reset(seed=seed)`` seeds it."""
        return np.random.default_rng()

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Infos:
        """Start an episode; a subclass calls this first, to seed ``np_random`` where a seed is given."""
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        return None

    def step(self, actions: np.ndarray[Any, Any]) -> Infos:
        """Play one step. actions: (num_agents, \\*single_action_space.shape), valid during the call."""
        raise NotImplementedError(f"{type(self).__name__} must write step(actions)")

    def render(self) -> Any:
        """Return a picture for ``render_mode``: str for "ansi", uint8 (height, width, 3) for "rgb_array"."""
        return None

    def close(self) -> None:
        """Release what was opened."""
