"""PettingZoo parallel environments with flat spaces: wrappers of PettingZoo environments and multi-agent PufferEnvs."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from pufferlib.emulation.action_masks import ACTION_MASK
from pufferlib.emulation.agents import Agents
from pufferlib.emulation.by_agent import checked_info, checked_step, lacking, require_known, split_reset
from pufferlib.emulation.extra_leaves import ExtraLeaves
from pufferlib.emulation.infos import copy_value
from pufferlib.emulation.native import infos_by_agent, validate, validate_buffers, zero_outcome
from pufferlib.emulation.parameters import BOUNDS, WrapParameters
from pufferlib.emulation.pettingzoo_rows import as_parallel, probe
from pufferlib.emulation.single_agent import Resetter, checked_flag, scalar_reward
from pufferlib.environment import PufferEnv, hold
from pufferlib.errors import ActionError, CallError
from pufferlib.layout import Layout, action_layout, observation_layout
from pufferlib.layout.layout import ActionLayout
from pufferlib.util.annotations import AgentId
from pufferlib.util.parameters import Unpack
from pufferlib.util.suggestions import says_what_was_meant

__all__ = ["EmulatedParallelEnv", "NativeParallelEnv"]


class EmulatedParallelEnv(ParallelEnv[Any, Any, Any]):  # type: ignore[misc]
    """A PettingZoo parallel environment with flat spaces around a parallel or AEC environment.

    Agents come and go as in the raw environment, in dicts keyed by agent. Each agent has its own spaces, and its own
    ``observation_layout(agent)`` and ``action_layout(agent)``. ``possible_agents`` exists if the raw environment has
    it. ``env`` is the raw environment. Attributes that are not defined here are looked up in the parallel environment:
    ``env`` or, if that is an AEC environment, its conversion. The caller owns returned observations and infos. An
    agent's info has its "action_mask" if the environment returns one, in the info or the observation.

    Raises SpaceError for spaces that cannot be flattened, for observations that do not fit them, for returned dicts in
    which an agent is missing or unknown, and for an action of the wrong shape or kind; ActionError for an action
    outside its space; CallError for a step before the first reset.
    """

    @says_what_was_meant(parameters=WrapParameters)
    def __init__(self, env: Any, **kwargs: Unpack[WrapParameters]) -> None:
        self.env = env
        bounds = {name: value for name, value in kwargs.items() if name in BOUNDS}
        self._kwargs = {name: value for name, value in kwargs.items() if value is not None or name not in BOUNDS}
        self._parallel = parallel = as_parallel(env)
        self.metadata = getattr(parallel, "metadata", {})
        self.render_mode = getattr(parallel, "render_mode", None)
        possible = list(getattr(parallel, "possible_agents", None) or ()) or None
        action_mask, _ = probe(parallel, possible, kwargs["action_mask"], spaces_known=True)
        self._fixed = possible is not None
        self._possible = frozenset(possible or ())
        self._name = name = type(self.unwrapped).__name__
        state, agent_type = kwargs["state"], kwargs["agent_type"]
        self._extra_leaves = ExtraLeaves(parallel, name, possible, state, agent_type) if state or agent_type else None
        self._agents = Agents(parallel, bounds, action_mask, self._extra_leaves, kwargs["check"], self._fixed)
        self._reset = Resetter(parallel, name)
        self._was_reset = False
        self._known: set[AgentId] = set()  # the agents of this episode
        self._ended: set[AgentId] = set()  # the agents that have ended in this episode

    @property
    def raw(self) -> Any:
        """The environment that was wrapped."""
        return self.env

    @property
    def wrap_kwargs(self) -> dict[str, Any]:
        """The arguments of ``wrap`` with which this environment was made."""
        return dict(self._kwargs)

    @property
    def unwrapped(self) -> Any:
        return getattr(self.env, "unwrapped", self.env)

    @property
    def agents(self) -> list[AgentId]:
        """The living agents; empty before the first reset."""
        return list(self._parallel.agents) if self._was_reset else []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self._parallel, name)

    def observation_space(self, agent: AgentId) -> gymnasium.Space[Any]:
        return self._agents[agent].observation_layout.flat_space

    def action_space(self, agent: AgentId) -> gymnasium.Space[Any]:
        return self._agents[agent].action_layout.flat_space

    def observation_layout(self, agent: AgentId) -> Layout:
        """Return the layout that converts between this agent's flat and original observations."""
        return self._agents[agent].observation_layout

    def action_layout(self, agent: AgentId) -> ActionLayout:
        """Return the layout that converts between this agent's flat and original actions."""
        return self._agents[agent].action_layout

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Any, Any], dict[Any, dict[str, Any]]]:
        observations, infos = split_reset(self._reset(seed, options), self._name)
        if not self._fixed:
            self._agents.new_episode()
        self._was_reset = True
        self._known, self._ended = set(self._parallel.agents), set()
        require_known(f"{self._name}.reset", self._knows, infos=infos)
        return self._flat(observations, infos), self._infos(observations, infos, "reset")

    def step(
        self, actions: Mapping[Any, Any]
    ) -> tuple[dict[Any, Any], dict[Any, float], dict[Any, bool], dict[Any, bool], dict[Any, dict[str, Any]]]:
        if not self._was_reset:
            raise CallError("step before reset; call reset() first")
        _require_dict(actions)
        raw_actions = {agent: self._raw_action(agent, action) for agent, action in actions.items()}
        acted = [agent for agent in self._parallel.agents if agent not in self._ended]
        observations, *values, infos = checked_step(self._parallel.step(raw_actions), self._name, self._parallel, acted)
        self._known.update(self._parallel.agents)
        rewards, terminations, truncations = self._outcome(acted, observations, *values)
        require_known(f"{self._name}.step", self._knows, infos=infos)
        flat = self._flat(observations, infos)
        return flat, rewards, terminations, truncations, self._infos(observations, infos, "step")

    def _knows(self, agent: AgentId) -> bool:
        return agent in self._known or agent in self._possible

    def _outcome(
        self,
        acted: list[AgentId],
        observations: Mapping[Any, Any],
        rewards: Mapping[Any, Any],
        terminations: Mapping[Any, Any],
        truncations: Mapping[Any, Any],
    ) -> tuple[dict[Any, float], dict[Any, bool], dict[Any, bool]]:
        """Return rewards as floats and flags as bools, and note which agents have ended.

        acted: the agents that were alive before the step. Raises SpaceError for a missing or unknown agent, and for a
        reward or flag that cannot be converted.
        """
        name = self._name
        require_known(f"{name}.step", self._knows, rewards=rewards, terminations=terminations, truncations=truncations)
        terminated = {agent: checked_flag(flag, "termination", name) for agent, flag in terminations.items()}
        truncated = {agent: checked_flag(flag, "truncation", name) for agent, flag in truncations.items()}
        listed = set(self._parallel.agents)
        for agent in acted:
            ended = terminated.get(agent, False) or truncated.get(agent, False)
            if agent in listed:
                for what, flags in (("termination", terminations), ("truncation", truncations)):
                    if agent not in flags:
                        raise lacking(name, what, agent, flags)
            has_outcome = agent in listed or ended or observations.get(agent) is not None
            if has_outcome and agent not in rewards:  # an agent that vanishes without a flag has none
                raise lacking(name, "reward", agent, rewards)
            if ended:
                self._ended.add(agent)
        return {agent: scalar_reward(reward, name) for agent, reward in rewards.items()}, terminated, truncated

    def _raw_action(self, agent: AgentId, action: object) -> object:
        if action is None:  # AEC environments expect None from dead agents
            return None
        return self._agents[agent].action_layout.unpack_checked(action, f" of agent {agent!r}")

    def _flat(self, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> dict[Any, Any]:
        flat = {}
        if self._extra_leaves is not None:
            self._extra_leaves.look()
        for name, observation in observations.items():
            if name not in self._known or observation is None:  # "common" values, and dead agents of some environments
                flat[name] = copy_value(observation)
                continue
            agent = self._agents[name]
            flat[name] = agent.observation_layout.flatten(agent.observed(name, observation, infos.get(name)))
        return flat

    def _infos(self, observations: Mapping[Any, Any], infos: Mapping[Any, Any], call: str) -> dict[Any, Any]:
        owned = {}
        for name, info in infos.items():
            if name in self._known and info is not None:
                info = checked_info(info, name, f"{self._name}.{call}")
            owned[name] = {} if info is None else copy_value(info)
        for name, observation in observations.items():
            if isinstance(observation, dict) and name in self._known and ACTION_MASK in observation:
                owned.setdefault(name, {}).setdefault(ACTION_MASK, copy_value(observation[ACTION_MASK]))
        return owned

    def render(self) -> Any:
        return self._parallel.render()

    def state(self) -> Any:
        return self._parallel.state()

    def close(self) -> None:
        close = getattr(self._parallel, "close", None)
        if close is not None:
            close()

    def __str__(self) -> str:
        return str(self.env)


def _require_dict(actions: object) -> None:
    if not isinstance(actions, Mapping):
        raise ActionError(f"actions are {actions!r:.80}; give a dict with each agent's action")


class NativeParallelEnv(ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """A PufferEnv as a PettingZoo parallel environment; its rows are the agents "agent_0", "agent_1", … in order.

    ``agents`` lists the living agents; ``env`` is the PufferEnv; the caller owns returned values. An info about the
    environment as a whole is infos["common"].

    Raises SpaceError for spaces without a fixed shape, a buffer replaced by another kind of array, infos in a wrong
    form, and an action of the wrong shape or kind; ActionError for a missing action or one outside its space; CallError
    for a step before the first reset.
    """

    def __init__(self, env: PufferEnv) -> None:
        validate(env)
        hold(env)
        self.env = env
        self.metadata = dict(env.metadata)
        self.render_mode = env.render_mode
        self.possible_agents = [f"agent_{i}" for i in range(env.num_agents)]
        self.agents: list[str] = []
        self._observation_layout = observation_layout(env.single_observation_space)
        self._action_layout = action_layout(env.single_action_space)
        # Each agent has its own spaces, so that seeding one does not seed the others.
        self._spaces = {
            agent: (deepcopy(env.single_observation_space), deepcopy(env.single_action_space))
            for agent in self.possible_agents
        }
        self._actions = np.zeros(
            (env.num_agents, *(env.single_action_space.shape or ())), env.single_action_space.dtype
        )
        self._was_reset = False

    @property
    def raw(self) -> PufferEnv:
        """The environment that was wrapped."""
        return self.env

    @property
    def wrap_kwargs(self) -> dict[str, Any]:
        """Always {}: of ``wrap``'s arguments, a PufferEnv accepts only ``check``, which has no effect here."""
        return {}

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return self._spaces[agent][1]

    def observation_layout(self, agent: str) -> Layout:
        """Return the layout of observations, which is the same for all agents."""
        return self._observation_layout

    def action_layout(self, agent: str) -> ActionLayout:
        """Return the layout of actions, which is the same for all agents."""
        return self._action_layout

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        zero_outcome(self.env)
        self.env.alive[...] = True
        infos = self.env.reset(seed=seed, options=options)
        validate_buffers(self.env)
        self._was_reset = True
        self._list_agents()
        return self._observations(self.agents), self._infos(infos, self.agents)

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        if not self._was_reset:
            raise CallError("step before reset; call reset() first")
        _require_dict(actions)
        env, before = self.env, self.agents
        for agent in before:
            if agent not in actions:
                raise ActionError(f"actions have no {agent!r}, which is alive; give each of {before} an action")
            self._actions[self._agent_index(agent)] = self._action_layout.unpack_checked(
                actions[agent], f" of agent {agent!r}"
            )
        zero_outcome(env)
        infos = env.step(self._actions)
        env.alive[env.terminations | env.truncations] = False
        self._list_agents()
        reported = [agent for agent in self.possible_agents if agent in before or agent in self.agents]
        rewards, terminations, truncations = {}, {}, {}
        for agent in reported:
            agent_index, acted = self._agent_index(agent), agent in before
            rewards[agent] = float(env.rewards[agent_index]) if acted else 0.0
            terminations[agent] = acted and bool(env.terminations[agent_index])
            vanished = not env.alive[agent_index] and not terminations[agent]  # without a flag: truncated
            truncations[agent] = acted and bool(env.truncations[agent_index] or vanished)
        return self._observations(reported), rewards, terminations, truncations, self._infos(infos, reported)

    def _agent_index(self, agent: str) -> int:
        return int(agent[len("agent_") :])

    def _list_agents(self) -> None:
        self.agents = [agent for agent in self.possible_agents if self.env.alive[self._agent_index(agent)]]

    def _observations(self, agents: list[str]) -> dict[str, Any]:
        rows = {agent: self.env.observations[self._agent_index(agent), ...] for agent in agents}
        return {agent: self._observation_layout.flatten(row) for agent, row in rows.items()}

    def _infos(self, infos: object, agents: list[str]) -> dict[str, dict[str, Any]]:
        by_agent = dict(infos_by_agent(self.env, infos))
        owned = {agent: by_agent.get(self._agent_index(agent), {}) for agent in agents}
        if None in by_agent:
            owned["common"] = by_agent[None]  # PettingZoo's key for values of no single agent
        return owned

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def __str__(self) -> str:
        return type(self.env).__name__
