"""PufferEnv: an environment that reads its actions and writes its rows in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import gymnasium
import numpy as np

from pufferlib.errors import CallError

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

    ``pufferlib.wrap(env)`` returns it as a Gymnasium environment, or with several agents as a PettingZoo one. Without
    that, ``step`` raises CallError for anything but an array of ``num_agents`` actions, and so does unpacking what
    ``reset`` returns.
    """

    single_observation_space: gymnasium.Space[Any]  # of one agent
    single_action_space: gymnasium.Space[Any]  # of one agent
    num_agents: int = 1  # rows
    metadata: ClassVar[Mapping[str, Any]] = {"render_modes": []}  # as Gymnasium has it
    render_mode: str | None = None  # what ``render`` returns
    spec: Any = None  # Gymnasium's, of an environment that it has registered

    def __new__(cls, *args: Any, **kwargs: Any) -> PufferEnv:
        """Return an environment whose ``reset`` and ``step`` explain themselves to a caller of Gymnasium's API.

        They are attributes of the instance that ``hold`` deletes, so that steps of an environment that pufferlib holds
        cost nothing more.
        """
        env = super().__new__(cls)
        object.__setattr__(env, "reset", env._reset_alone)
        object.__setattr__(env, "step", env._step_alone)
        return env

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

    def _reset_alone(self, *args: Any, **kwargs: Any) -> Any:
        infos = type(self).reset(self, *args, **kwargs)
        return _Nothing(_how_to_hold(self)) if infos is None else infos

    def _step_alone(self, actions: Any) -> Infos:
        expected = _actions_shape(self)
        if expected is not None and not (isinstance(actions, np.ndarray) and actions.shape == expected):
            came = f"shape {actions.shape}" if isinstance(actions, np.ndarray) else f"{actions!r:.80}"
            raise CallError(f"step takes an array of actions of shape {expected}, got {came}: {_how_to_hold(self)}")
        return type(self).step(self, actions)


class _Nothing:
    """Returned by ``reset`` of a PufferEnv held alone: falsy as None is; raises CallError when it is unpacked."""

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Any:
        raise CallError(f"reset returned no observation: {self._advice}")

    def __getitem__(self, index: Any) -> Any:
        return iter(self)

    def __repr__(self) -> str:
        return f"<no observation: {self._advice}>"


def hold(env: PufferEnv) -> None:
    """Make ``env.reset`` and ``env.step`` the class's own methods; called by what steps env as PufferEnv documents."""
    for name in ("reset", "step"):
        if getattr(getattr(env, name), "__func__", None) is getattr(PufferEnv, f"_{name}_alone"):
            object.__delattr__(env, name)


def _actions_shape(env: PufferEnv) -> tuple[int, ...] | None:
    space = getattr(env, "single_action_space", None)
    return None if space is None or space.shape is None else (env.num_agents, *space.shape)


def _how_to_hold(env: PufferEnv) -> str:
    name, alone = type(env).__name__, env.num_agents == 1
    kind = "a Gymnasium" if alone else "a PettingZoo"
    return (
        f"{name} is a PufferEnv, which writes its rows in place (env.observations, env.rewards, …); "
        f"pufferlib.wrap(env) returns it as {kind} environment, pufferlib.make({name}, num_envs=…) vectorizes it"
    )
