"""The agents of a PettingZoo environment: their spaces and layouts, and the leaves added to their observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from pufferlib.emulation.action_masks import ACTION_MASK, has_mask, mask_size, masked_space, pack_mask
from pufferlib.emulation.extra_leaves import ExtraLeaves, extended_space
from pufferlib.emulation.single_agent import own_space
from pufferlib.errors import SpaceError
from pufferlib.layout import Layout, action_layout, observation_layout
from pufferlib.layout.layout import ActionLayout
from pufferlib.util.annotations import AgentId

__all__ = ["Agent", "Agents"]


class Agent:
    """An agent's spaces and layouts, and a method that adds leaves to the agent's observations and checks them."""

    def __init__(
        self,
        raw_action_space: gymnasium.Space[Any],
        observation_layout: Layout,
        action_layout: ActionLayout,
        masked: bool,
        extra_leaves: ExtraLeaves | None,
        check: str,
        spaces: tuple[object, object],
        checked: set[int] | None,
    ) -> None:
        """Store an agent's layouts and spaces.

        raw_action_space: the action space before flattening. masked: whether info["action_mask"] is added to
        observations. check: see ``wrap``. spaces: the environment's own observation and action space. checked: a set,
        shared by all agents, of the ids of the layouts whose observations need no further full checks; None if each
        agent is checked separately.
        """
        self.spaces = spaces
        self.raw_action_space = raw_action_space
        self.observation_layout = observation_layout
        self.action_layout = action_layout
        self.masked = masked  # info["action_mask"] is a leaf of the observation
        self._extra_leaves = extra_leaves
        self.merges_leaves = has_mask(observation_layout.space)  # leaves go into the observation, which is a dict
        self._always = check == "always"
        self._checked = checked
        self._checks_left = 0 if checked is not None and id(observation_layout) in checked else 2
        self.settled = not self._checks_left  # only shape and dtype of observations are checked
        self.plain = self._is_plain()

    def _is_plain(self) -> bool:
        """Return whether observations are packed unchanged, with no leaves to add and no full check left to do."""
        return self.settled and not (self.masked or self._extra_leaves)

    def observed(self, name: AgentId, observation: object, info: object) -> object:
        """Return an observation with its action mask and extra leaves, in the structure of ``observation_layout``.

        Raises SpaceError for a mask of the wrong size; for an observation that is not a dict, if leaves must be merged
        into it; and, while full checks are due, for an observation that does not fit its space.
        """
        if self.masked:
            mask = info.get(ACTION_MASK) if isinstance(info, Mapping) else None
            observation = {"observation": observation, ACTION_MASK: pack_mask(self.raw_action_space, mask)}
        if self._extra_leaves is not None:
            leaves = observation if self.merges_leaves else {"observation": observation}
            if not isinstance(leaves, Mapping):
                raise SpaceError(f"agent {name!r}: expected a dict with an {ACTION_MASK!r}, got {observation!r:.80}")
            observation = {**self._extra_leaves.leaves(name), **leaves}
        if self._checks_left:
            whose = f"agent {name!r}: "
            try:
                self.observation_layout.check(observation, whose)
            except SpaceError as error:
                raise SpaceError(f"{whose}{error}") from None
            if not self._always:
                self._checks_left -= 1
                self.settled = not self._checks_left
                self.plain = self._is_plain()
                if self.settled and self._checked is not None:
                    self._checked.add(id(self.observation_layout))
        return observation


class Agents:
    """The Agent objects of one parallel environment, by name; an Agent is made when its name is first looked up.

    bounds, action_mask, check: as for ``wrap``. keeps_spaces: whether agents have the same spaces in all episodes. If
    not, ``new_episode`` must be called at each reset; agents that share a space then also share its full checks.
    """

    def __init__(
        self,
        env: Any,
        bounds: Mapping[str, Any],
        action_mask: bool,
        extra_leaves: ExtraLeaves | None,
        check: str,
        keeps_spaces: bool,
    ) -> None:
        self._env = env
        self._bounds = bounds
        self._action_mask = action_mask
        self._extra_leaves = extra_leaves
        self._check = check
        self._by_name: dict[AgentId, Agent] = {}
        # Layouts by the id of their space (stored as well, so that it stays alive): agents that share a space share its
        # layout. Those of the last episode are kept as older, because some environments make new spaces in each.
        self._layouts: dict[tuple[int, int | None], tuple[Any, Any]] = {}
        self._older: dict[tuple[int, int | None], tuple[Any, Any]] = {}
        self._checked: set[int] | None = None if keeps_spaces else set()

    def new_episode(self) -> None:
        """Discard the Agent objects, because agents may have other spaces in the new episode."""
        self._by_name = {}
        self._older, self._layouts = self._layouts, {}
        if self._checked is not None:
            self._checked &= {id(layout) for _, layout in self._older.values()}

    def __getitem__(self, name: AgentId) -> Agent:
        agent = self._by_name.get(name)
        if agent is None:
            agent = self.describe(self._env.observation_space(name), self._env.action_space(name))
            self._by_name[name] = agent
        return agent

    def describe(self, observation_space: object, action_space: object) -> Agent:
        """Return a new Agent with these observation and action spaces."""
        raw_action_space = own_space(action_space)
        size = mask_size(raw_action_space) if self._action_mask and not has_mask(observation_space) else None
        return Agent(
            raw_action_space,
            self._layout(observation_space, size),
            self._layout(action_space, -1),
            size is not None,
            self._extra_leaves,
            self._check,
            (observation_space, action_space),
            self._checked,
        )

    def _layout(self, space: object, size: int | None) -> Any:
        """Return the layout of a space; for an observation space, with the extra leaves and the action mask added.

        size: the size of the mask to add to an observation space, or None to add no mask; -1 for an action space.
        """
        key = (id(space), size)
        entry = self._layouts.get(key) or self._older.get(key)
        if entry is None:
            converted = own_space(space)
            if size == -1:
                layout: Any = action_layout(converted, **self._bounds)
            else:
                if self._extra_leaves is not None:
                    converted = extended_space(converted, size, self._extra_leaves.spaces)
                elif size is not None:
                    converted = masked_space(converted, size)
                layout = observation_layout(converted, **self._bounds)
            entry = (space, layout)
        self._layouts[key] = entry
        return entry[1]
