"""Leaves added to an agent's observation: the environment's state, the agent's type and its action mask."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.emulation.action_masks import ACTION_MASK, has_mask
from pufferlib.emulation.common import common_observation_space
from pufferlib.emulation.single_agent import own_space
from pufferlib.errors import PlanError, PopulationError, SpaceError
from pufferlib.layout import Layout, observation_layout
from pufferlib.util.annotations import AgentId

__all__ = ["AGENT_TYPE", "STATE", "ExtraLeaves", "agent_types", "extended_space", "row_layout", "type_of_name"]

STATE, AGENT_TYPE, OBSERVATION = "state", "agent_type", "observation"
TypeOf = Callable[[Any], str]


class ExtraLeaves:
    """The leaves "state" and "agent_type" for the agents of one PettingZoo environment.

    spaces: the space of each requested leaf, by name. Raises PlanError if the environment lacks what a requested leaf
    needs (state_space and state(), or possible_agents), and the other errors of ``agent_types``.
    """

    def __init__(
        self,
        parallel: Any,
        name: str,
        possible_agents: Sequence[AgentId] | None,
        state: bool,
        agent_type: bool | TypeOf,
    ) -> None:
        self._env, self._name = parallel, name
        self.spaces: dict[str, gymnasium.Space[Any]] = {}
        self._types: dict[AgentId, int] = {}
        self._state: object = None
        self._is_held = False
        if state:
            space = getattr(parallel, "state_space", None)
            if space is None or not callable(getattr(parallel, "state", None)):
                raise PlanError(
                    f"{name} has no state_space, or no state(), and state=True needs both; define them, or leave "
                    "state out"
                )
            self.spaces[STATE] = own_space(space)
        if agent_type:
            self._types = agent_types(name, possible_agents, agent_type)
            self.spaces[AGENT_TYPE] = spaces.Discrete(max(self._types.values()) + 1)

    def hold(self, state: object) -> None:
        """Store a state that the caller has already read; the next ``look`` keeps it."""
        self._state, self._is_held = state, True

    def forget(self) -> None:
        """Make the next ``look`` read the state, even after ``hold``."""
        self._is_held = False

    def look(self) -> None:
        """Read the environment's state, if it was requested and ``hold`` has not just stored it.

        Must be called after each reset and step. Raises SpaceError if state() is not implemented.
        """
        if self._is_held:
            self._is_held = False
        elif STATE in self.spaces:
            try:
                self._state = self._env.state()
            except NotImplementedError as error:
                raise SpaceError(
                    f"{self._name} has a state_space, but its state() is not implemented; leave state out"
                ) from error

    def leaves(self, agent: AgentId) -> dict[str, object]:
        """Return an agent's leaves, with the state from the last ``look``."""
        return ({STATE: self._state} if STATE in self.spaces else {}) | self.fixed_leaves(agent)

    def fixed_leaves(self, agent: AgentId) -> dict[str, object]:
        """Return an agent's leaves that never change: all except the state.

        Raises PopulationError if the agent's type is requested and the agent is not in possible_agents.
        """
        leaves: dict[str, object] = {}
        if AGENT_TYPE in self.spaces:
            if agent not in self._types:
                raise PopulationError(
                    f"{self._name}: agent {agent!r} is not in possible_agents, {list(self._types)}, so its "
                    "agent_type is unknown; list it there, or leave agent_type out"
                )
            leaves[AGENT_TYPE] = self._types[agent]
        return leaves

    def take_from_info(self, info: object) -> bool:
        """Take the state from an agent's info, where a caller that plays a raw environment may put it.

        Returns False if the state was requested but is not in the info. The state is then a random sample, and the
        caller must zero the bytes of its leaf in the row. Otherwise returns True.
        """
        if STATE not in self.spaces:
            return True
        if isinstance(info, Mapping) and STATE in info:
            self._state = info[STATE]
            return True
        self._state = deepcopy(self.spaces[STATE]).sample()
        return False


def type_of_name(agent: str) -> str:
    """Return an agent's name without a trailing "_" and number: "wolf" for "wolf_7"."""
    return re.sub(r"_\d+$", "", agent)


def agent_types(name: str, possible_agents: Sequence[AgentId] | None, agent_type: bool | TypeOf) -> dict[AgentId, int]:
    """Return each agent's type as a number; types are numbered by first appearance in possible_agents.

    agent_type: a function from an agent to its type, a str; True stands for type_of_name. Raises PlanError if
    possible_agents is empty or missing, if the function returns anything but a str, or if agent_type is True and an
    agent is not a str.
    """
    if not possible_agents:
        raise PlanError(
            f"{name} has no possible_agents, so the number of agent types is unknown; define possible_agents, or leave "
            "agent_type out"
        )
    types: dict[AgentId, int] = {}
    numbers: dict[str, int] = {}
    for agent in possible_agents:
        if callable(agent_type):
            kind = agent_type(agent)
            if not isinstance(kind, str):
                raise PlanError(f"agent_type({agent!r}) returned {kind!r}; expected the name of a type, a str")
        elif isinstance(agent, str):
            kind = type_of_name(agent)
        else:
            raise PlanError(
                f"{name}: agent_type=True needs str names of agents, and {agent!r} is not one; pass a function from an "
                "agent to the name of its type"
            )
        types[agent] = numbers.setdefault(kind, len(numbers))
    return types


def extended_space(
    space: gymnasium.Space[Any], mask_size: int | None, added: Mapping[str, gymnasium.Space[Any]]
) -> spaces.Dict:
    """Return an observation space with the added leaves in front, at the same offsets for all agents.

    If the space has an action mask at the top, the added leaves go next to it; otherwise the space becomes the leaf
    "observation". mask_size: the size of an action mask to add, or None. Raises SpaceError if a leaf next to the
    space's own mask already has one of the added names.
    """
    parts: dict[Any, gymnasium.Space[Any]] = {OBSERVATION: space}
    if mask_size is not None:
        parts = {ACTION_MASK: spaces.MultiBinary(mask_size), **parts}
    elif has_mask(space):
        masked: Any = space
        parts = {ACTION_MASK: masked[ACTION_MASK], **masked.spaces}
        for name in added:
            if name in masked.spaces:
                raise SpaceError(
                    f'the observation already has a leaf "{name}" next to its "{ACTION_MASK}", where {name}= would add '
                    f"another; leave {name} out, or rename the environment's"
                )
    return spaces.Dict(OrderedDict([*added.items(), *parts.items()]))


def row_layout(layouts: Sequence[Layout], bounds: Mapping[str, Any], *, masks: bool) -> Layout:
    """Return the layout with which policies read the rows of agents whose extended spaces differ.

    The leaves "state" and "agent_type" stay in front if their spaces are equal for all agents. The remaining leaves
    become the leaf "observation", in their ``common_observation_space``: a Box if they share a dtype, else bytes.
    bounds: arguments of ``observation_layout``. masks: whether the action mask also stays in front, if its size is
    equal for all agents.
    """
    extended: list[dict[Any, Any]] = [dict(layout.space.spaces) for layout in layouts]  # type: ignore[attr-defined]
    front: OrderedDict[Any, Any] = OrderedDict()
    for name in (STATE, AGENT_TYPE, *([ACTION_MASK] if masks else [])):
        if all(name in parts and parts[name] == extended[0].get(name) for parts in extended):
            front[name] = extended[0][name]
    rests = [spaces.Dict(OrderedDict((key, parts[key]) for key in parts if key not in front)) for parts in extended]
    common = common_observation_space([observation_layout(rest, **bounds) for rest in rests])
    if common.dtype == np.uint8:
        end = max(leaf.offset + leaf.nbytes for leaf in layouts[0].leaves if leaf.path[0] in front)
        common = spaces.Box(0, 255, (max(layout.nbytes for layout in layouts) - end,), np.uint8)
    return observation_layout(spaces.Dict(OrderedDict([*front.items(), (OBSERVATION, common)])), **bounds)
