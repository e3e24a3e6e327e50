"""PettingZoo environments, in which agents spawn and die, as a fixed number of rows; masks mark the rows that count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np

from pufferlib.emulation.action_masks import ACTION_MASK, has_mask, mask_plan
from pufferlib.emulation.agent_indices import AgentIndices
from pufferlib.emulation.agents import Agent, Agents
from pufferlib.emulation.by_agent import checked_info, checked_step, lacking, require_known, split_reset
from pufferlib.emulation.common import (
    action_reader,
    clip_of,
    common_action_space,
    common_observation_space,
    observation_writer,
)
from pufferlib.emulation.extra_leaves import STATE, ExtraLeaves, row_layout
from pufferlib.emulation.infos import add_episode, copy_value
from pufferlib.emulation.parameters import BOUNDS, WrapParameters
from pufferlib.emulation.rows import FastAgents, HeldRows, Rows, Seat, Seating
from pufferlib.emulation.single_agent import Resetter, checked_flag, scalar_reward
from pufferlib.errors import PlanError, SpaceError, argument_error
from pufferlib.layout import Layout, action_layout, observation_layout
from pufferlib.layout.layout import ActionLayout
from pufferlib.util.annotations import AgentId, AgentInfos, Array, Info, RowActions
from pufferlib.util.parameters import Unpack
from pufferlib.util.suggestions import says_what_was_meant

__all__ = ["PettingZooRows", "as_parallel", "probe"]


FALSE = np.False_  # a singleton, like False


def as_parallel(env: Any) -> Any:
    """Return a parallel environment unchanged, or an AEC environment converted by PettingZoo's own wrappers.

    An AEC environment that is not parallelizable is converted turn by turn: each step plays the action of the active
    agent, named in infos[agent]["active_agent"], and ignores the other actions.
    """
    if not hasattr(env, "agent_iter"):
        return env
    from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel

    if env.metadata.get("is_parallelizable", False):
        return aec_to_parallel(env)
    return turn_based_aec_to_parallel(env)


def probe(
    parallel: Any, possible_agents: list[AgentId] | None, action_mask: bool | None, spaces_known: bool
) -> tuple[bool, list[AgentId]]:
    """Return whether to read action masks from infos, and the agents that are known before the first episode.

    If one of the two cannot be determined otherwise, resets the environment once, without a seed; the first episode
    starts with a later reset. action_mask: the user's choice, or None to look for masks. spaces_known: True if the
    agents of an environment without possible_agents need not be known.
    """
    known = list(possible_agents or ())
    if action_mask is None and known and all(has_mask(parallel.observation_space(agent)) for agent in known):
        action_mask = False
    if action_mask is not None and (known or spaces_known):
        return action_mask, known
    _, infos = split_reset(parallel.reset(), type(getattr(parallel, "unwrapped", parallel)).__name__)
    if action_mask is None:
        action_mask = any(isinstance(info, Mapping) and ACTION_MASK in info for info in infos.values())
    return action_mask, known or list(parallel.agents)


def _most_agents(parallel: Any) -> int | None:
    """Return the ``max_num_agents`` of an environment without ``possible_agents``; None if it is unknown."""
    try:
        return parallel.max_num_agents or None
    except (AttributeError, TypeError):  # PettingZoo's default counts possible_agents, which are missing or None
        return None


def _equal(space: object, other: object) -> bool:
    return space is other or bool(space == other)


class PettingZooRows(HeldRows):
    """A parallel or AEC environment as rows, one per index of its ``AgentIndices``.

    max_agents: the maximum number of agents alive at once, for environments without ``possible_agents``; by default
        PettingZoo's ``max_num_agents``.
    observation_space, action_space: spaces at least as large as those of every agent, for environments in which the
        spaces of later agents are unknown at the start; they determine the spaces of the rows. Raises PlanError if only
        one of the two is passed.
    action_mask: whether info["action_mask"] becomes a leaf of the observation; None inspects the infos of one reset.
    state, agent_type, check and the bounds: see ``wrap``.

    Agents with different spaces share the row spaces that the module ``common`` and, with state or agent_type, the
    function ``row_layout`` define. ``observation_layouts`` and ``action_layouts`` have one layout per agent index; an
    index that no agent has had yet has the layout of the rows.
    """

    _rewards: Array
    _terminations: Array
    _truncations: Array
    _masks: Array

    @says_what_was_meant(parameters=WrapParameters)
    def __init__(self, env: Any, **kwargs: Unpack[WrapParameters]) -> None:
        observation_space, action_space = kwargs["observation_space"], kwargs["action_space"]
        if (observation_space is None) != (action_space is None):
            raise PlanError("observation_space and action_space must be passed together, each as large as any agent's")
        self.env = env
        self.name = type(getattr(env, "unwrapped", env)).__name__
        self._parallel = parallel = as_parallel(env)
        possible = list(getattr(parallel, "possible_agents", None) or ()) or None
        max_agents = kwargs["max_agents"]
        if possible is None and max_agents is None:
            max_agents = _most_agents(parallel)
        self._indices = AgentIndices(self.name, possible, max_agents)
        masked, initial_agents = probe(parallel, possible, kwargs["action_mask"], observation_space is not None)
        self._mask_in_info = masked
        self._fixed = possible is not None
        state, agent_type = kwargs["state"], kwargs["agent_type"]
        self._extra_leaves = (
            ExtraLeaves(parallel, self.name, possible, state, agent_type) if state or agent_type else None
        )
        self._bounds = {name: value for name, value in kwargs.items() if name in BOUNDS}
        self._agents = Agents(parallel, self._bounds, masked, self._extra_leaves, kwargs["check"], self._fixed)
        self.num_agents = self._indices.count
        self.multi_agent = True
        self.infos = []
        agents = [self._agents[name] for name in initial_agents] if possible or observation_space is None else []
        self._set_rows(agents, observation_space, action_space)
        self._readers: dict[int, tuple[Any, Any]] = {}
        self._writers: dict[int, tuple[Any, Any]] = {}
        if possible is not None and self._indices.is_fixed:
            self.agent_names = tuple(map(str, possible))
            self.observation_layouts = tuple(agent.observation_layout for agent in agents)
            self.action_layouts = tuple(agent.action_layout for agent in agents)
        else:
            self.observation_layouts = (self.observation_layout,) * self.num_agents
            self.action_layouts = (self.action_layout,) * self.num_agents
        for agent in agents:  # raises now if an agent does not fit the rows
            self._writer(agent.observation_layout)
            self._reader(agent.action_layout)
        self._reset = Resetter(parallel, self.name)
        num = self.num_agents
        self._observations: list[Any] = [None] * num  # None for an absent agent
        self._agent_at: list[Any] = [None] * num  # the current or last Agent of each index
        self._write: list[Callable[[Any, Any], None]] = [self.observation_layout.pack] * num
        self._read: list[Callable[[Any], Any]] = [self.action_layout.unpack] * num
        self._rewards = np.zeros(num, np.float64)
        self._terminations = np.zeros(num, np.bool_)
        self._truncations = np.zeros(num, np.bool_)
        self._masks = np.zeros(num, np.bool_)
        self._returns = np.zeros(num, np.float64)
        self._lengths = np.zeros(num, np.int64)
        self._starts_s = np.zeros(num, np.float64)
        self._listed: list[AgentId] = []  # the environment's agents after the last call
        self.changes = 0  # the number of times that ``seating`` has changed
        has_state = self._extra_leaves is not None and STATE in self._extra_leaves.spaces
        arrays = self._returns, self._lengths, self._starts_s
        keeps_indices = self._indices.is_fixed
        self.fast = FastAgents(
            parallel, *arrays, self._fixed, keeps_indices, self._extra_leaves, has_state, self._mask_in_info
        )

    def _set_rows(
        self,
        agents: list[Agent],
        observation_space: gymnasium.Space[Any] | None,
        action_space: gymnasium.Space[Any] | None,
    ) -> None:
        observation_layouts: list[Layout] = [agent.observation_layout for agent in agents]
        action_layouts: list[ActionLayout] = [agent.action_layout for agent in agents]
        largest = observation_layouts
        if observation_space is not None:
            agent = self._agents.describe(observation_space, action_space)
            largest = [agent.observation_layout]
            self.observation_space = agent.observation_layout.flat_space
            self.action_space = agent.action_layout.flat_space
        elif agents:
            self.observation_space = common_observation_space(observation_layouts)
            self.action_space = common_action_space(action_layouts)
        else:
            raise argument_error(
                SpaceError,
                lambda written, within: (
                    f"{self.name} has no agents after reset, so the space of its rows is unknown; pass "
                    f"{written(observation_space='', action_space='')}, each as large as any agent's"
                ),
            )
        # One layout fits all rows only if all agents share a space; else rows are arrays of the common space.
        same = bool(observation_layouts) and all(
            _equal(layout.space, observation_layouts[0].space) for layout in observation_layouts
        )
        same = same and observation_layouts[0].flat_space == self.observation_space
        if same:
            self.observation_layout = observation_layouts[0]
        elif self._extra_leaves is None:
            self.observation_layout = observation_layout(self.observation_space)
        else:  # leaves that all agents have stay separate
            self.observation_layout = row_layout(largest, self._bounds, masks=observation_space is None)
            self.observation_space = self.observation_layout.flat_space
        same = bool(action_layouts) and all(_equal(layout.space, action_layouts[0].space) for layout in action_layouts)
        same = same and action_layouts[0].flat_space == self.action_space
        self.action_layout = action_layouts[0] if same else action_layout(self.action_space)

    def _writer(self, layout: Layout) -> Callable[[Any, Any], None]:
        entry = self._writers.get(id(layout))
        if entry is None:
            entry = self._writers[id(layout)] = (
                layout,
                observation_writer(layout, self.observation_space, self.num_agents),
            )
        return entry[1]

    def _reader(self, layout: ActionLayout) -> Callable[[Any], Any]:
        entry = self._readers.get(id(layout))
        if entry is None:
            entry = self._readers[id(layout)] = (layout, action_reader(layout, self.action_space))
        return entry[1]

    def row_of(self, observation: object, info: object = None, agent: AgentId = None) -> Array:
        described = self._agents[agent]
        assert self.observation_space.shape is not None
        row = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        has_state = self._extra_leaves is None or self._extra_leaves.take_from_info(info)
        observation_writer(described.observation_layout, self.observation_space)(
            described.observed(agent, observation, info), row
        )
        if not has_state:
            for leaf in described.observation_layout.leaves:
                if leaf.path[0] == STATE:
                    row.view(np.uint8)[leaf.offset : leaf.offset + leaf.nbytes] = 0
        return row

    def action_of(self, row: RowActions, agent: AgentId = None) -> object:
        return self._reader(self._agents[agent].action_layout)(row)

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> None:
        if self._extra_leaves is not None:
            self._extra_leaves.forget()
        self.take_reset(self._reset(seed, options))

    def take_reset(self, result: Any) -> None:
        self._forget_spaces()
        observations, infos = split_reset(result, self.name)
        if self._extra_leaves is not None:
            self._extra_leaves.look()
        self._clear()
        self._returns[:] = 0
        self._lengths[:] = 0
        self._sum, self._length, self._start_s = 0.0, 0, perf_counter()
        self._starts_s[:] = self._start_s
        self._listed = list(self._parallel.agents)
        self.changes += 1
        self._indices.restart(self._listed)
        self._add_agents(self._listed, observations, infos)
        self.infos = self._infos_by_agent(infos, "reset")

    def _forget_spaces(self) -> None:
        """Discard the agents' spaces, so that the new episode reads them again.

        With ``possible_agents``, do nothing, because the spaces stay the same.
        """
        if not self._fixed:
            self._agents.new_episode()
            self._readers, self._writers = {}, {}  # or those of each episode's new spaces would accumulate

    @property
    def settled(self) -> bool:
        return all(self._agent_at[agent_index].settled for agent_index in self._indices.living.values())

    @property
    def totals(self) -> tuple[float, int, float]:
        return self._sum, self._length, self._start_s

    @totals.setter
    def totals(self, totals: tuple[float, int, float]) -> None:
        self._sum, self._length, self._start_s = totals

    def seating(self) -> Seating:
        """Return the living agents, for code that steps the environment directly.

        The result is valid until ``changes`` increases.
        """
        indices = self._indices
        seats = [self._seat(name, agent_index) for name, agent_index in indices.living.items()]
        return Seating(seats, self._listed, indices.last, indices.ended, indices.lingering)

    def take_seating(
        self,
        living: list[AgentId],
        listed: list[AgentId],
        last: dict[AgentId, int],
        ended: set[AgentId],
        lingering: set[AgentId],
        begun: bool,
    ) -> None:
        """Take the agents back from code that stepped the environment directly, and take ownership of the arguments.

        living: the names of the living agents, in the environment's order. listed, last, ended, lingering: the fields
        of these names in ``Seating``. begun: whether a new episode has begun.
        """
        if begun:
            self._forget_spaces()
        self._listed = listed
        self._indices.take(living, last, ended, lingering)
        self._set_up(living)

    def _seat(self, name: AgentId, agent_index: int) -> Seat:
        agent, read = self._agent_at[agent_index], self._read[agent_index]
        layout = agent.action_layout
        clip = None if read == layout.unpack else clip_of(layout, self.action_space)
        return Seat(
            name,
            agent_index,
            agent.observation_layout.packer,
            layout.unpacker if read == layout.unpack or clip is not None else None,
            read,
            clip,
            mask_plan(agent.raw_action_space) if agent.masked else None,
            agent.merges_leaves,
            None if self._extra_leaves is None else self._extra_leaves.fixed_leaves(name),
            agent.spaces,
        )

    def _clear(self) -> None:
        self._observations = [None] * self.num_agents
        for column in (self._rewards, self._terminations, self._truncations, self._masks):
            column[:] = 0

    def _add_agents(self, names: list[AgentId], observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        """Set up agents that have just received an index, and hold their first observations.

        Raises SpaceError for an agent without an observation, and the errors of ``Agent.observed``.
        """
        self._set_up(names)
        for name in names:
            agent_index = self._indices.living[name]
            if observations.get(name) is None:
                raise self._unobserved(name, observations)
            agent = self._agent_at[agent_index]
            self._observations[agent_index] = agent.observed(name, observations[name], infos.get(name))

    def _set_up(self, names: list[AgentId]) -> None:
        """Install the converters and layouts of agents at their indices."""
        observation_layouts, action_layouts = list(self.observation_layouts), list(self.action_layouts)
        for name in names:
            agent_index, agent = self._indices.living[name], self._agents[name]
            self._agent_at[agent_index] = agent
            self._write[agent_index] = self._writer(agent.observation_layout)
            self._read[agent_index] = self._reader(agent.action_layout)
            observation_layouts[agent_index] = agent.observation_layout
            action_layouts[agent_index] = agent.action_layout
        self.observation_layouts, self.action_layouts = tuple(observation_layouts), tuple(action_layouts)

    def _unobserved(self, name: AgentId, observations: Mapping[Any, Any]) -> SpaceError:
        if name in observations:
            return SpaceError(f"{self.name} gave None as the observation of agent {name!r}, which is alive")
        return SpaceError(
            f"{self.name} gave no observation for agent {name!r}, which is alive; it gave those of {list(observations)}"
        )

    def step(self, actions: RowActions) -> bool:
        living, read = self._indices.living, self._read
        if isinstance(actions, tuple):
            discrete, box = actions
            raw_actions = {name: read[index]((discrete[index], box[index])) for name, index in living.items()}
        else:
            raw_actions = {name: read[index](actions[index]) for name, index in living.items()}
        return self.take(self._parallel.step(raw_actions))

    def take(self, result: Any) -> bool:
        indices, living = self._indices, self._indices.living
        observations, rewards, terminations, truncations, infos = checked_step(
            result, self.name, self._parallel, living
        )
        if self._extra_leaves is not None:
            self._extra_leaves.look()
        listed = list(self._parallel.agents)
        present = set(listed)
        self._clear()
        held_observations, agent_at = self._observations, self._agent_at
        masks, values = [False] * self.num_agents, [0.0] * self.num_agents  # a store takes a third of an array's
        ended: dict[AgentId, int] = {}
        is_complete = len(rewards) == len(terminations) == len(truncations) == len(living)
        for name, agent_index in living.items():
            observation, reward = observations.get(name), rewards.get(name)
            terminated, truncated = terminations.get(name), truncations.get(name)
            if (
                (terminated is not False and terminated is not FALSE)
                or (truncated is not False and truncated is not FALSE)
                or name not in present
            ):
                if name in present:
                    for what, flags in (("termination", terminations), ("truncation", truncations)):
                        if name not in flags:
                            raise lacking(self.name, what, name, flags)
                terminated = checked_flag(terminations.get(name, False), "termination", self.name)
                truncated = checked_flag(truncations.get(name, False), "truncation", self.name)
                flagged = terminated or truncated
                if flagged or name not in present:
                    ended[name] = agent_index
                    self._terminations[agent_index] = terminated
                    self._truncations[agent_index] = truncated or not flagged
                    if not (flagged or name in rewards or observation is not None):
                        is_complete = False
                        continue  # vanished: the environment returns nothing for its last action
                elif observation is None:
                    raise self._unobserved(name, observations)
            elif observation is None:
                raise self._unobserved(name, observations)
            if reward is None and name not in rewards:
                raise lacking(self.name, "reward", name, rewards)
            agent = agent_at[agent_index]
            if observation is not None:
                if not agent.plain:
                    observation = agent.observed(name, observation, infos.get(name))
                held_observations[agent_index] = observation
            masks[agent_index] = True
            values[agent_index] = reward if type(reward) is float else scalar_reward(reward, self.name)
        self._masks[:] = masks
        self._rewards[:] = values
        self._returns += self._rewards
        self._lengths += self._masks
        self._sum += float(self._rewards.sum())
        self._length += 1
        # Agents that end in the step in which they appear never act: they get no row.
        stillborn = [name for name in present.difference(living) if terminations.get(name) or truncations.get(name)]
        spawned = indices.advance(listed, list(ended), stillborn)
        if ended or spawned or listed != self._listed:
            self._listed = listed
            self.changes += 1
        over = not indices.living
        if ended or not is_complete:
            outcome = {"rewards": rewards, "terminations": terminations, "truncations": truncations}
            require_known(f"{self.name}.step", indices.knows, **outcome)
        self.infos = self._infos_by_agent(infos, "step")
        if ended:
            self._add_episodes(ended.values(), over)
        if spawned:
            self._add_agents(spawned, observations, infos)
            new_indices = [indices.living[name] for name in spawned]
            self._returns[new_indices] = 0
            self._lengths[new_indices] = 0
            self._starts_s[new_indices] = perf_counter()
        return over

    def _infos_by_agent(self, infos: Mapping[Any, Any], call: str) -> AgentInfos:
        """Return copies of the non-empty infos as pairs of an agent index and an info.

        Values that belong to no agent with an index form one info, keyed as in the environment, with the index None.
        Action masks that move to the observations are left out. Raises SpaceError for the info of an unknown agent, and
        for an agent's info that is not a mapping.
        """
        last = self._indices.last
        if not infos.keys() <= last.keys():
            require_known(f"{self.name}.{call}", self._indices.knows, infos=infos)
        result: AgentInfos = []
        others: Info = {}
        for name, info in infos.items():
            if info is None or (type(info) is dict and not info):
                continue
            agent_index = last.get(name)
            if agent_index is None:
                others[name] = copy_value(info)
                continue
            owned = copy_value(checked_info(info, name, f"{self.name}.{call}"))
            if self._mask_in_info:
                owned.pop(ACTION_MASK, None)
            if owned:
                result.append((agent_index, owned))
        if others:
            result.append((None, others))
        return result

    def _add_episodes(self, ended: Iterable[int], over: bool) -> None:
        by_agent = dict(self.infos)
        for agent_index in ended:
            info = by_agent.setdefault(agent_index, {})
            add_episode(info, self._returns[agent_index], self._lengths[agent_index], self._starts_s[agent_index])
        if over:
            info = by_agent.setdefault(None, {})
            info["env"] = True
            add_episode(info, self._sum, self._length, self._start_s)
        self.infos = list(by_agent.items())

    def write_observations(self, rows: Rows) -> None:
        for observation, write, row in zip(self._observations, self._write, rows.places, strict=True):
            if observation is None:
                row[...] = 0
            else:
                write(observation, row)
