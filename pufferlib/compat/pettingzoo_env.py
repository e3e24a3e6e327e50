"""PufferLib's ``PettingZooPufferEnv``: a parallel environment with a fixed row of a buffer for each possible agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.compat.exceptions import APIUsageError, InvalidAgentError, raises_usage_errors
from pufferlib.compat.sources import Buffered, FlatParallelEnv, ParallelSource, copy_row
from pufferlib.compat.structs import make_object
from pufferlib.emulation.by_agent import split_reset
from pufferlib.emulation.pettingzoo_rows import PettingZooRows
from pufferlib.emulation.rows import RowEnv
from pufferlib.emulation.single_agent import Resetter
from pufferlib.layout import action_layout, observation_layout
from pufferlib.util.annotations import Array

__all__ = ["PettingZooPufferEnv"]


class PettingZooPufferEnv(Buffered):
    """A PettingZoo parallel environment with flat spaces and a row for each of its ``possible_agents``.

    env: the environment; or env_creator, env_args, env_kwargs: a callable that makes it, and its arguments. buf: the
        arrays to write to, by key or by attribute; by default, new ones. seed, to_puffer: accepted as in versions 3
        and 1, and not used.

    ``reset`` and ``step`` return dicts with all possible agents, whose observations are views of their rows. The spaces
    are those of the first possible agent. Workers step ``env`` directly, unless a subclass defines ``step``, ``reset``,
    ``notify`` or ``close``.

    Raises ValueError or TypeError unless there is exactly one of env and env_creator; SpaceError for spaces without a
    layout; APIUsageError for an environment without ``possible_agents``.
    """

    def __init__(
        self,
        env: Any = None,
        env_creator: Callable[..., Any] | None = None,
        env_args: Sequence[Any] = (),
        env_kwargs: Mapping[str, Any] | None = None,
        buf: Any = None,
        seed: int = 0,
        to_puffer: bool = False,
    ) -> None:
        self.env = make_object(env, env_creator, env_args, env_kwargs)
        agents = list(getattr(self.env, "possible_agents", None) or ())
        if not agents:
            raise APIUsageError(
                f"{type(self.env).__name__} has no possible_agents; pufferlib.make vectorizes environments whose "
                "agents are not known in advance"
            )
        self._source = ParallelSource(self.env, agents)
        self._index_of = {agent: index for index, agent in enumerate(agents)}
        space, action_space = self._source.observation_space(agents[0]), self.env.action_space(agents[0])
        layouts = observation_layout(space), action_layout(action_space)
        self.set_up(*layouts, space, action_space, num_agents=len(agents), buf=buf)
        self.possible_agents = agents
        self.all_done = True
        self.mask = dict.fromkeys(agents, False)
        self._name = type(getattr(self.env, "unwrapped", self.env)).__name__
        self._reset = Resetter(self.env, self._name)

    @property
    def agents(self) -> list[Any]:
        """The names of the living agents."""
        agents: list[Any] = self.env.agents
        return agents

    @property
    def done(self) -> bool:
        """Whether the episode is over, or none has begun."""
        return self.all_done or not self.agents

    def observation_space(self, agent: Any) -> gymnasium.Space[Any]:
        """Return the space of an agent's rows of observations. Raises InvalidAgentError for an unknown agent."""
        self._require_known(agent)
        return self.single_observation_space

    def action_space(self, agent: Any) -> gymnasium.Space[Any]:
        """Return the space of an agent's action rows. Raises InvalidAgentError for an unknown agent."""
        self._require_known(agent)
        return self.single_action_space

    def _require_known(self, agent: Any) -> None:
        if agent not in self._index_of:
            raise InvalidAgentError(agent, self.possible_agents)

    @raises_usage_errors
    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[Any, Any], Any]:
        """Start an episode; return all possible agents' observations, by agent, and the environment's infos.

        Raises APIUsageError if an observation does not fit its space.
        """
        observations, infos = split_reset(self._reset(seed, options), self._name)
        self.initialized, self.all_done = True, False
        self.rewards[...] = 0
        self.terminals[...] = self.truncations[...] = False
        self._write(observations, check=not self.is_observation_checked)
        self.is_observation_checked = True
        return self._views(), infos

    def _write(self, observations: Mapping[Any, Any], check: bool) -> None:
        for agent, index in self._index_of.items():
            row = self.observations[index, ...]
            self.mask[agent] = self.masks[index] = agent in observations
            if agent in observations:
                if check:
                    self._observation_layout.check(observations[agent])
                copy_row(self._observation_layout, observations[agent], row)
            else:
                row[...] = 0

    def _views(self) -> dict[Any, Any]:
        return {agent: self.observations[index, ...] for agent, index in self._index_of.items()}

    @raises_usage_errors
    def step(self, actions: Any) -> tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any], Any]:
        """Play one step; return dicts of observations, rewards, terminals and truncations, and the infos.

        actions: an action for each agent, by agent, or an array with a row for each possible agent. The dicts have all
        possible agents; an absent one has reward 0 and no flags. Raises APIUsageError before the first reset, after an
        episode's end, and for unsuitable actions; InvalidAgentError for an unknown agent.
        """
        if not self.initialized:
            raise APIUsageError("step before reset; call reset() first")
        if self.done:
            raise APIUsageError("step after the episode's end; call reset() first")
        native = self._native_actions(actions)
        self.is_action_checked = True
        observations, rewards, terminals, truncations, infos = self.env.step(native)
        self._write(observations, check=False)
        for agent, index in self._index_of.items():
            self.rewards[index] = rewards.get(agent, 0)
            self.terminals[index] = terminals.get(agent, False)
            self.truncations[index] = truncations.get(agent, False)
        # An agent is over if it has a flag, or if the environment returned nothing of it.
        self.all_done = all(
            truncations.get(agent) or terminals.get(agent, agent not in observations) for agent in self.possible_agents
        )
        flags = [
            {agent: values[index].item() for agent, index in self._index_of.items()}
            for values in (self.terminals, self.truncations)
        ]
        # The environment's own rewards: those in the buffer are rounded to float32.
        return self._views(), {agent: rewards.get(agent, 0) for agent in self._index_of}, *flags, infos

    def _native_actions(self, actions: Any) -> dict[Any, Any]:
        if isinstance(actions, np.ndarray):
            if len(actions) != self.num_agents:
                raise APIUsageError(f"expected actions with {self.num_agents} rows, got {len(actions)}")
            actions = dict(zip(self.possible_agents, actions, strict=True))
        if not isinstance(actions, Mapping):
            raise APIUsageError(f"expected a dict of actions by agent or an array, got {type(actions).__name__}")
        for agent in actions:
            self._require_known(agent)
        shape = self.single_action_space.shape or ()
        discrete = isinstance(self.single_action_space, spaces.Discrete)
        native = {}
        for agent, action in actions.items():
            if agent not in self.agents:  # its action counts for nothing, and may be anything
                continue
            row = action if isinstance(self.single_action_space, spaces.Tuple) else np.asarray(action).reshape(shape)
            value = self._action_layout.unpack_checked(row, f" of agent {agent!r}")
            native[agent] = int(value) if discrete else value
        return native

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def as_rows(self, **arguments: Any) -> RowEnv:
        """Return the environment as a RowEnv for a worker. arguments: as for ``pufferlib.wrap``."""
        source = self._source
        if self.overrides(PettingZooPufferEnv):
            source = ParallelSource(FlatParallelEnv(self), self.possible_agents)
        return PettingZooRows(source, **{"action_mask": False, **arguments})

    def take_rows(self, *rows: Array) -> bool:
        """Take the rows of a step that was played without this object; return whether they end the episode."""
        self.all_done = super().take_rows(*rows)
        self.mask = {agent: bool(self.masks[index]) for agent, index in self._index_of.items()}
        return self.all_done
