"""Environments as PufferLib's wrappers pass them on to workers, and what both wrapper classes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from pufferlib.compat.puffer_env import BufferedRows, set_buffers
from pufferlib.compat.structs import emulate_action_space, is_emulated, stored_space, structure_of
from pufferlib.emulation.by_agent import split_reset
from pufferlib.emulation.rows import RowEnv
from pufferlib.emulation.single_agent import Resetter, own_space
from pufferlib.errors import SpaceError
from pufferlib.layout import Layout
from pufferlib.layout.layout import ActionLayout
from pufferlib.util.annotations import Array

__all__ = [
    "AGENTS_ABSENT",
    "Buffered",
    "Emulated",
    "FlatEnv",
    "FlatParallelEnv",
    "OuterEnv",
    "ParallelSource",
    "StoredEnv",
    "copy_row",
]

AGENTS_ABSENT = "agents_absent"  # in an environment's info: the indices of the agents that are absent from a reset


_CALLED = ("reset", "step", "notify", "close")  # the methods of a wrapper that a vecenv calls


class Buffered:
    """The base of both wrapper classes: spaces, dtypes, and the arrays of ``set_buffers``, one row per agent."""

    env: Any
    observations: Array
    rewards: Array  # float32
    terminals: Array  # bool
    truncations: Array  # bool
    masks: Array  # bool: the agent is present
    actions: Array

    def set_up(
        self,
        observation_layout: Layout,
        action_layout: ActionLayout,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        num_agents: int,
        buf: Any,
    ) -> None:
        """Set the attributes of an environment that has not been reset. buf: as for ``set_buffers``.

        observation_layout, action_layout: those of an agent's rows. observation_space, action_space: an agent's.
        """
        self._observation_layout, self._action_layout = observation_layout, action_layout
        self.single_observation_space: gymnasium.Space[Any] = observation_layout.flat_space
        self.single_action_space: gymnasium.Space[Any] = action_layout.flat_space
        self.is_obs_emulated, self.is_atn_emulated = is_emulated(observation_space), is_emulated(action_space)
        self.obs_dtype = structure_of(observation_layout)
        self.atn_dtype = emulate_action_space(action_space)[1]
        self.emulated = Emulated(
            observation_dtype=observation_layout.dtype,
            emulated_observation_dtype=self.obs_dtype,
            action_dtype=np.dtype(self.single_action_space.dtype),
            emulated_action_dtype=self.atn_dtype,
        )
        self.num_agents = num_agents
        self.metadata = dict(getattr(self.env, "metadata", None) or {"render_modes": []})
        self.render_modes = self.metadata.get("render_modes", [])
        self.render_mode = getattr(self.env, "render_mode", None)
        self.initialized = self.is_observation_checked = self.is_action_checked = False
        set_buffers(self, buf)

    @property
    def driver_env(self) -> Any:
        """This object."""
        return self

    def render(self) -> Any:
        """Return what the environment renders."""
        return self.env.render()

    def take_rows(
        self, observations: Array, rewards: Array, terminals: Array, truncations: Array, masks: Array
    ) -> bool:
        """Take the rows of a step that was played without this object; return whether they end the episode."""
        self.observations[...], self.rewards[...] = observations, rewards
        self.terminals[...], self.truncations[...], self.masks[...] = terminals, truncations, masks
        self.initialized = True
        return bool((terminals | truncations | ~masks).all())

    def overrides(self, kind: type) -> bool:
        """Return whether a subclass of ``kind`` defines what workers would not call if they stepped ``env`` itself."""
        subclass = type(self)
        return any(getattr(subclass, name, None) is not getattr(kind, name, None) for name in _CALLED)


class Emulated(dict[str, Any]):
    """The dtypes of a wrapped environment, as items (version 3) and as attributes (versions 1 and 2).

    observation_dtype: of a row of observations. emulated_observation_dtype: of the structure in the row.
    action_dtype, emulated_action_dtype: the same of actions.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"emulated has {', '.join(self)}, and no {name}") from None


class _Source:
    """A base class of what stands between ``env`` and a worker; other attributes are those of ``env``."""

    env: Any

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet
            raise AttributeError(name)
        return getattr(self.env, name)


class StoredEnv(_Source):
    """A Gymnasium environment whose Discrete observations inside a Dict or Tuple are int32; ``env`` is the original.

    Other attributes are the original's.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = stored_space(own_space(env.observation_space))
        self.action_space = env.action_space
        self.step, self.reset, self.unwrapped = env.step, env.reset, getattr(env, "unwrapped", env)


class OuterEnv(_Source):
    """A PufferEnv for workers that has no buffers, but passes on the attributes of another; ``env`` is the original.

    Other attributes are the original's.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def as_rows(self, **arguments: Any) -> RowEnv:
        """Return the environment as a RowEnv for a worker. arguments: accepted as for ``pufferlib.wrap``."""
        return BufferedRows(self.env)


class FlatEnv(_Source):
    """A wrapper of one environment as that environment: each observation is the only row of the wrapper's buffer.

    ``env`` is the wrapper. Other attributes are the wrapper's.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space

    def reset(self, seed: int | None = None) -> tuple[Any, Any]:
        """Reset the environment; return its observation and info."""
        observation, info = self.env.reset() if seed is None else self.env.reset(seed)
        return self._row(observation), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step the environment; return its five values."""
        observation, *values = self.env.step(action)
        return self._row(observation), *values

    def _row(self, observation: Any) -> Any:
        return observation.reshape(self.observation_space.shape)


class FlatParallelEnv(_Source):
    """A wrapper of several agents as a parallel environment with the wrapper's spaces and its present agents.

    ``env`` is the wrapper. Other attributes are the wrapper's.
    """

    def __init__(self, env: Any) -> None:
        self.env = self.unwrapped = env

    def reset(self, seed: int | None = None) -> tuple[Any, Any]:
        """Reset the environment; return its observations and infos."""
        observations, infos = self.env.reset() if seed is None else self.env.reset(seed)
        return self._present(observations), infos

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Step the environment; return its five values."""
        *values, infos = self.env.step(actions)
        return *map(self._present, values), infos

    def _present(self, values: Any) -> dict[Any, Any]:
        return {agent: values[agent] for agent, is_present in self.env.mask.items() if is_present and agent in values}


class ParallelSource(_Source):
    """A PettingZoo parallel environment for workers; ``env`` is the original.

    Discrete observations inside a Dict or Tuple are int32. If infos have a key that is no agent's name, or a value that
    is no dict, all infos are values of the whole environment. If agents are absent from a reset, the environment's info
    has their indices under ``AGENTS_ABSENT``. Other attributes are the original's.
    """

    def __init__(self, env: Any, agents: Sequence[Any]) -> None:
        self.env = env
        self.possible_agents = list(agents)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self._name = type(getattr(env, "unwrapped", env)).__name__
        self._names = frozenset(agents)
        self._resetter = Resetter(env, self._name)
        self._spaces = {agent: stored_space(own_space(env.observation_space(agent))) for agent in agents}

    @property
    def agents(self) -> list[Any]:
        """The names of the living agents."""
        agents: list[Any] = self.env.agents
        return agents

    def observation_space(self, agent: Any) -> gymnasium.Space[Any]:
        """Return an agent's observation space."""
        return self._spaces[agent]

    def action_space(self, agent: Any) -> gymnasium.Space[Any]:
        """Return an agent's action space."""
        space: gymnasium.Space[Any] = self.env.action_space(agent)
        return space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Reset the environment; return its observations and infos."""
        observations, infos = split_reset(self._resetter(seed, options), self._name)
        infos = self._by_agent(infos)
        absent = [index for index, agent in enumerate(self.possible_agents) if agent not in observations]
        if absent:
            infos = {**infos, "common": {**infos.get("common", {}), AGENTS_ABSENT: absent}}
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step the environment; return its five values."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        return observations, rewards, terminations, truncations, self._by_agent(infos) if infos else infos

    def _by_agent(self, infos: Any) -> Any:
        if not infos:
            return {}
        are_of_agents = infos.keys() <= self._names and all(isinstance(info, dict) for info in infos.values())
        return infos if are_of_agents else {"common": dict(infos)}


def copy_row(layout: Any, sample: object, row: Array) -> None:
    """Write an observation into a wrapper's row. row: a view of the buffer, of shape ``layout.shape``.

    Raises SpaceError if the observation does not fit its space.
    """
    if row.flags.c_contiguous:
        layout.pack(sample, row)
        return
    raise SpaceError("the buffer of observations must be contiguous; give buf arrays of np.zeros")
