"""A PettingZoo environment as rows: agents that spawn and die on a fixed number of places, with a mask."""

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
from pufferlib.emulation.infos import add_episode, own
from pufferlib.emulation.rows import FastAgents, HeldRows, Rows, Seat, Seating
from pufferlib.emulation.single_agent import Resetter, checked_flag, scalar_reward
from pufferlib.errors import PlanError, SpaceError, naming_arguments
from pufferlib.layout import Layout, action_layout, observation_layout
from pufferlib.layout.layout import ActionLayout

__all__ = ["PettingZooRows", "as_parallel", "probe"]


FALSE = np.False_  # there is one of it, as of False


def as_parallel(env: Any) -> Any:
    """Return env if it is a parallel environment, or an AEC environment through PettingZoo's own conversion.

    One that is not parallelizable is converted turn by turn: each step plays the action of the agent whose turn it
    is, named in infos[agent]["active_agent"], and ignores the others'.
    """
    if not hasattr(env, "agent_iter"):
        return env
    from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel

    if env.metadata.get("is_parallelizable", False):
        return aec_to_parallel(env)
    return turn_based_aec_to_parallel(env)


def probe(
    parallel: Any, possible_agents: list[Any] | None, action_mask: bool | None, spaces_given: bool
) -> tuple[bool, list[Any]]:
    """Return whether action masks are in the infos, and the agents known before the first episode.

    Where that cannot be told without it, the environment is reset once, without a seed; the reset that starts the
    first episode comes after. spaces_given: nobody asks for the agents of an environment without possible_agents.
    """
    known = list(possible_agents or ())
    if action_mask is None and known and all(has_mask(parallel.observation_space(agent)) for agent in known):
        action_mask = False
    if action_mask is not None and (known or spaces_given):
        return action_mask, known
    _, infos = split_reset(parallel.reset(), type(getattr(parallel, "unwrapped", parallel)).__name__)
    if action_mask is None:
        action_mask = any(isinstance(info, Mapping) and ACTION_MASK in info for info in infos.values())
    return action_mask, known or list(parallel.agents)


def _most_agents(parallel: Any) -> int | None:
    """Return the ``max_num_agents`` of an environment without ``possible_agents`` that says it; else None."""
    try:
        return parallel.max_num_agents or None
    except (AttributeError, TypeError):  # PettingZoo's own counts possible_agents, which are not there or None
        return None


def _equal(space: Any, other: Any) -> bool:
    return space is other or bool(space == other)


class PettingZooRows(HeldRows):
    """A parallel or AEC environment as one row for each place of its ``AgentIndices``.

    max_agents: the most agents alive at once, for environments without ``possible_agents``; by default what they say
    themselves as PettingZoo's ``max_num_agents``.
    observation_space, action_space: spaces as large as any agent's, where those of agents that appear later are not
    known at the start; they set the space of the rows. action_mask: whether info["action_mask"] becomes a leaf of the
    observation; None looks into the infos of one reset. state, agent_type: as ``wrap`` has them. Agents whose spaces
    differ share rows as ``common`` says, and with these leaves as ``row_layout`` does.

    observation_layouts, action_layouts: one a place; of a place that no agent has had yet, the layout of the rows.
    """

    def __init__(
        self,
        env: Any,
        *,
        max_agents: int | None = None,
        observation_space: gymnasium.Space[Any] | None = None,
        action_space: gymnasium.Space[Any] | None = None,
        action_mask: bool | None = None,
        state: bool = False,
        agent_type: bool | Callable[[Any], str] = False,
        check: str = "first",
        **bounds: Any,
    ) -> None:
        if (observation_space is None) != (action_space is None):
            raise PlanError("observation_space and action_space, as large as any agent's, are passed together")
        self.env = env
        self.name = type(getattr(env, "unwrapped", env)).__name__
        self._parallel = parallel = as_parallel(env)
        possible = list(getattr(parallel, "possible_agents", None) or ()) or None
        if possible is None and max_agents is None:
            max_agents = _most_agents(parallel)
        self._places = AgentIndices(self.name, possible, max_agents)
        masked, known = probe(parallel, possible, action_mask, observation_space is not None)
        self._mask_in_info = masked
        self._fixed = possible is not None
        self._extra_leaves = (
            ExtraLeaves(parallel, self.name, possible, state, agent_type) if state or agent_type else None
        )
        self._bounds = bounds
        self._agents = Agents(parallel, bounds, masked, self._extra_leaves, check, self._fixed)
        self.num_agents = self._places.count
        self.multi_agent = True
        self.infos = []
        agents = [self._agents[name] for name in known] if possible or observation_space is None else []
        self._set_rows(agents, observation_space, action_space)
        self._readers: dict[int, tuple[Any, Any]] = {}
        self._writers: dict[int, tuple[Any, Any]] = {}
        if possible is not None and self._places.is_fixed:
            self.agent_names = tuple(map(str, possible))
            self.observation_layouts = tuple(agent.observation_layout for agent in agents)
            self.action_layouts = tuple(agent.action_layout for agent in agents)
        else:
            self.observation_layouts = (self.observation_layout,) * self.num_agents
            self.action_layouts = (self.action_layout,) * self.num_agents
        for agent in agents:  # whatever does not fit shows itself at once
            self._writer(agent.observation_layout)
            self._reader(agent.action_layout)
        self._reset = Resetter(parallel, self.name)
        places = self.num_agents
        self._held: list[Any] = [None] * places  # observations; None is an absent agent's
        self._occupants: list[Any] = [None] * places  # the Agent that is, or was last, on each place
        self._write: list[Callable[[Any, Any], None]] = [self.observation_layout.pack] * places
        self._read: list[Callable[[Any], Any]] = [self.action_layout.unpack] * places
        self._rewards = np.zeros(places, np.float64)
        self._terminations = np.zeros(places, np.bool_)
        self._truncations = np.zeros(places, np.bool_)
        self._masks = np.zeros(places, np.bool_)
        self._returns = np.zeros(places, np.float64)
        self._lengths = np.zeros(places, np.int64)
        self._starts_s = np.zeros(places, np.float64)
        self._listed: list[Any] = []  # the environment's agents as they were last
        self.changes = 0  # counts how often ``seating`` has become another
        has_state = self._extra_leaves is not None and STATE in self._extra_leaves.spaces
        arrays = self._returns, self._lengths, self._starts_s
        keeps_places = self._places.is_fixed
        self.fast = FastAgents(
            parallel, *arrays, self._fixed, keeps_places, self._extra_leaves, has_state, self._mask_in_info
        )

    def _set_rows(self, agents: list[Agent], observation_space: Any, action_space: Any) -> None:
        observed: list[Layout] = [agent.observation_layout for agent in agents]
        acted: list[ActionLayout] = [agent.action_layout for agent in agents]
        largest = observed
        if observation_space is not None:
            given = self._agents.describe(observation_space, action_space)
            largest = [given.observation_layout]
            self.observation_space = given.observation_layout.flat_space
            self.action_space = given.action_layout.flat_space
        elif agents:
            self.observation_space = common_observation_space(observed)
            self.action_space = common_action_space(acted)
        else:
            raise naming_arguments(
                SpaceError,
                lambda written, within: (
                    f"{self.name} has no agents after reset, so that the space of its rows is unknown; pass "
                    f"{written(observation_space='', action_space='')}, each as large as any agent's"
                ),
            )
        # One layout for all rows is right only if all agents have one space; else rows are arrays of the common space.
        same = bool(observed) and all(_equal(each.space, observed[0].space) for each in observed)
        same = same and observed[0].flat_space == self.observation_space
        if same:
            self.observation_layout = observed[0]
        elif self._extra_leaves is None:
            self.observation_layout = observation_layout(self.observation_space)
        else:  # what all agents have stays a leaf of its own
            self.observation_layout = row_layout(largest, self._bounds, masks=observation_space is None)
            self.observation_space = self.observation_layout.flat_space
        same = bool(acted) and all(_equal(each.space, acted[0].space) for each in acted)
        same = same and acted[0].flat_space == self.action_space
        self.action_layout = acted[0] if same else action_layout(self.action_space)

    def _writer(self, layout: Layout) -> Callable[[Any, Any], None]:
        known = self._writers.get(id(layout))
        if known is None:
            known = self._writers[id(layout)] = (
                layout,
                observation_writer(layout, self.observation_space, self.num_agents),
            )
        return known[1]

    def _reader(self, layout: ActionLayout) -> Callable[[Any], Any]:
        known = self._readers.get(id(layout))
        if known is None:
            known = self._readers[id(layout)] = (layout, action_reader(layout, self.action_space))
        return known[1]

    def row_of(self, observation: Any, info: Any = None, agent: Any = None) -> Any:
        known = self._agents[agent]
        assert self.observation_space.shape is not None
        row = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        has_state = self._extra_leaves is None or self._extra_leaves.told(info)
        observation_writer(known.observation_layout, self.observation_space)(
            known.observed(agent, observation, info), row
        )
        if not has_state:
            for leaf in known.observation_layout.leaves:
                if leaf.path[0] == STATE:
                    row.view(np.uint8)[leaf.offset : leaf.offset + leaf.nbytes] = 0
        return row

    def action_of(self, row: Any, agent: Any = None) -> Any:
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
        self._places.restart(self._listed)
        self._greet(self._listed, observations, infos)
        self.infos = self._told(infos, "reset")

    def _forget_spaces(self) -> None:
        """Ask for the spaces anew in this episode, unless each agent keeps its own."""
        if not self._fixed:
            self._agents.new_episode()
            self._readers, self._writers = {}, {}  # or those of spaces made anew in each episode would pile up

    @property
    def settled(self) -> bool:
        return all(self._occupants[place].settled for place in self._places.living.values())

    @property
    def totals(self) -> tuple[float, int, float]:
        return self._sum, self._length, self._start_s

    @totals.setter
    def totals(self, totals: tuple[float, int, float]) -> None:
        self._sum, self._length, self._start_s = totals

    def seating(self) -> Seating:
        """Return the living agents, for who steps the environment past this; another once ``changes`` has changed."""
        places = self._places
        seats = [self._seat(name, place) for name, place in places.living.items()]
        return Seating(seats, self._listed, places.last, places.ended, places.lingering)

    def take_seating(
        self,
        living: list[Any],
        listed: list[Any],
        last: dict[Any, int],
        ended: set[Any],
        lingering: set[Any],
        begun: bool,
    ) -> None:
        """Take the agents from who has stepped the environment past this; what is passed is given away.

        living: their names, in the environment's order; the others as ``Seating`` has them. begun: whether they are of
        another episode.
        """
        if begun:
            self._forget_spaces()
        self._listed = listed
        self._places.take(living, last, ended, lingering)
        self._occupy(living)

    def _seat(self, name: Any, place: int) -> Seat:
        agent, read = self._occupants[place], self._read[place]
        layout = agent.action_layout
        clip = None if read == layout.unpack else clip_of(layout, self.action_space)
        return Seat(
            name,
            place,
            agent.observation_layout.packer,
            layout.unpacker if read == layout.unpack or clip is not None else None,
            read,
            clip,
            mask_plan(agent.raw_action_space) if agent.masked else None,
            agent.takes_in,
            None if self._extra_leaves is None else self._extra_leaves.fixed_leaves(name),
            agent.spaces,
        )

    def _clear(self) -> None:
        self._held = [None] * self.num_agents
        for held in (self._rewards, self._terminations, self._truncations, self._masks):
            held[:] = 0

    def _greet(self, names: list[Any], observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        """Take up agents that have just been seated."""
        self._occupy(names)
        for name in names:
            place = self._places.living[name]
            if observations.get(name) is None:
                raise self._unobserved(name, observations)
            self._held[place] = self._occupants[place].observed(name, observations[name], infos.get(name))

    def _occupy(self, names: list[Any]) -> None:
        """Give agents their places."""
        layouts, acted = list(self.observation_layouts), list(self.action_layouts)
        for name in names:
            place, agent = self._places.living[name], self._agents[name]
            self._occupants[place] = agent
            self._write[place] = self._writer(agent.observation_layout)
            self._read[place] = self._reader(agent.action_layout)
            layouts[place], acted[place] = agent.observation_layout, agent.action_layout
        self.observation_layouts, self.action_layouts = tuple(layouts), tuple(acted)

    def _unobserved(self, name: Any, observations: Mapping[Any, Any]) -> SpaceError:
        if name in observations:
            return SpaceError(f"{self.name} gave None as the observation of agent {name!r}, which is alive")
        return SpaceError(
            f"{self.name} gave no observation for agent {name!r}, which is alive; it gave those of {list(observations)}"
        )

    def step(self, actions: Any) -> bool:
        living, read = self._places.living, self._read
        if isinstance(actions, tuple):
            choices, reals = actions
            chosen = {name: read[place]((choices[place], reals[place])) for name, place in living.items()}
        else:
            chosen = {name: read[place](actions[place]) for name, place in living.items()}
        return self.take(self._parallel.step(chosen))

    def take(self, result: Any) -> bool:
        places, living = self._places, self._places.living
        observations, rewards, terminations, truncations, infos = checked_step(
            result, self.name, self._parallel, living
        )
        if self._extra_leaves is not None:
            self._extra_leaves.look()
        listed = list(self._parallel.agents)
        present = set(listed)
        self._clear()
        held, occupants = self._held, self._occupants
        masks, values = [False] * self.num_agents, [0.0] * self.num_agents  # a store into a list costs a third of one
        ended: dict[Any, int] = {}
        all_told = len(rewards) == len(terminations) == len(truncations) == len(living)
        for name, place in living.items():
            observation, reward = observations.get(name), rewards.get(name)
            terminated, truncated = terminations.get(name), truncations.get(name)
            if (
                (terminated is not False and terminated is not FALSE)
                or (truncated is not False and truncated is not FALSE)
                or name not in present
            ):
                if name in present:
                    for what, told in (("termination", terminations), ("truncation", truncations)):
                        if name not in told:
                            raise lacking(self.name, what, name, told)
                terminated = checked_flag(terminations.get(name, False), "termination", self.name)
                truncated = checked_flag(truncations.get(name, False), "truncation", self.name)
                flagged = terminated or truncated
                if flagged or name not in present:
                    ended[name] = place
                    self._terminations[place], self._truncations[place] = terminated, truncated or not flagged
                    if not (flagged or name in rewards or observation is not None):
                        all_told = False
                        continue  # vanished: the env tells nothing of what its last action led to
                elif observation is None:
                    raise self._unobserved(name, observations)
            elif observation is None:
                raise self._unobserved(name, observations)
            if reward is None and name not in rewards:
                raise lacking(self.name, "reward", name, rewards)
            agent = occupants[place]
            if observation is not None:
                held[place] = observation if agent.plain else agent.observed(name, observation, infos.get(name))
            masks[place] = True
            values[place] = reward if type(reward) is float else scalar_reward(reward, self.name)
        self._masks[:] = masks
        self._rewards[:] = values
        self._returns += self._rewards
        self._lengths += self._masks
        self._sum += float(self._rewards.sum())
        self._length += 1
        # Those whose life ends in the step in which it begins never act: they get no row.
        stillborn = [name for name in present.difference(living) if terminations.get(name) or truncations.get(name)]
        spawned = places.advance(listed, list(ended), stillborn)
        if ended or spawned or listed != self._listed:
            self._listed = listed
            self.changes += 1
        over = not places.living
        if ended or not all_told:
            told_all = {"rewards": rewards, "terminations": terminations, "truncations": truncations}
            require_known(f"{self.name}.step", places.knows, **told_all)
        self.infos = self._told(infos, "step")
        if ended:
            self._add_episodes(ended.values(), over)
        if spawned:
            self._greet(spawned, observations, infos)
            seats = [places.living[name] for name in spawned]
            self._returns[seats] = 0
            self._lengths[seats] = 0
            self._starts_s[seats] = perf_counter()
        return over

    def _told(self, infos: Mapping[Any, Any], call: str) -> list[tuple[int | None, dict[str, Any]]]:
        """Return the infos that are not empty by place; those of no agent, by their key, as one of the env's."""
        last = self._places.last
        if not infos.keys() <= last.keys():
            require_known(f"{self.name}.{call}", self._places.knows, infos=infos)
        told: list[tuple[int | None, dict[str, Any]]] = []
        others: dict[str, Any] = {}
        for name, info in infos.items():
            if info is None or (type(info) is dict and not info):
                continue
            place = last.get(name)
            if place is None:
                others[name] = own(info)
                continue
            owned = own(checked_info(info, name, f"{self.name}.{call}"))
            if self._mask_in_info:
                owned.pop(ACTION_MASK, None)
            if owned:
                told.append((place, owned))
        if others:
            told.append((None, others))
        return told

    def _add_episodes(self, ended: Iterable[int], over: bool) -> None:
        told = dict(self.infos)
        for place in ended:
            info = told.setdefault(place, {})
            add_episode(info, self._returns[place], self._lengths[place], self._starts_s[place])
        if over:
            info = told.setdefault(None, {})
            info["env"] = True
            add_episode(info, self._sum, self._length, self._start_s)
        self.infos = list(told.items())

    def write_observations(self, rows: Rows) -> None:
        for observation, write, row in zip(self._held, self._write, rows.places, strict=True):
            if observation is None:
                row[...] = 0
            else:
                write(observation, row)
