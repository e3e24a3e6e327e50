"""The interface between emulation and vectorization: any environment as a fixed number of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pufferlib.util.annotations import AgentId, AgentInfos, Array, Info, RowActions

if TYPE_CHECKING:
    import gymnasium

    from pufferlib._native.pack import Packer, Unpacker
    from pufferlib.emulation.common import Clip
    from pufferlib.emulation.extra_leaves import ExtraLeaves
    from pufferlib.layout import Layout
    from pufferlib.layout.layout import ActionLayout

__all__ = ["FastAgents", "FastRows", "FastStep", "HeldRows", "RowEnv", "Rows", "Seat", "Seating"]


class Rows(NamedTuple):
    """The arrays that one environment writes: views of its slot in a block, one row per agent."""

    observations: Array  # (num_agents, *single_observation_space.shape)
    rewards: Array  # (num_agents,) float32 or float64
    terminations: Array  # (num_agents,) bool
    truncations: Array  # (num_agents,) bool
    masks: Array  # (num_agents,) bool: the transition into this row counts
    places: tuple[Array, ...]  # observations[i, ...] per agent, made once: a view costs 0.1 us


MaskPlan = tuple[str, int, dict[Any, Any]]  # see action_masks.mask_plan


class FastStep(NamedTuple):
    """The data that the compiled loop needs to play a single-agent environment's ordinary steps without its RowEnv."""

    env: object  # the raw environment
    step: Callable[[Any], Any]  # the environment's ``step``
    packer: Packer  # of the observation layout
    unpacker: Unpacker | None  # of the action layout; None if an action is one leaf
    native: bool  # it is a PufferEnv, which writes to its own buffers; others return five values
    resets: bool  # its ``reset`` may be called too: a pair that it returns is (observation, info)
    masks: MaskPlan | None = None  # the ``mask_plan`` of masks that move from infos to observations


class FastAgents(NamedTuple):
    """The data that the compiled loop needs to step a parallel environment without its RowEnv.

    The RowEnv must have checked the agents. Whenever its ``changes`` has increased, the loop gets the agents from its
    ``seating()``; the loop hands the agents back with ``take_seating``. The loop and the RowEnv share the arrays, which
    have one value per agent index.
    """

    env: object  # the parallel environment
    returns: Array  # float64
    lengths: Array  # int64
    starts_s: Array  # float64
    keeps_spaces: bool  # agents have the same spaces in each episode; else each new agent's are read again
    keeps_indices: bool  # agents have the same index in each episode
    extra_leaves: ExtraLeaves | None  # the leaves added to observations
    has_state: bool  # they include the environment's state
    mask_in_info: bool


class Seat(NamedTuple):
    """An agent, its index, and the converters of its actions and observations."""

    name: AgentId
    agent_index: int
    packer: Packer | None  # of its observation layout
    unpacker: Unpacker | None  # of its action layout; None if only ``read`` can convert its action
    read: Callable[[Any], Any]  # converts its action row
    clip: Clip | None  # of its discrete actions; None if the row's actions need none
    masks: MaskPlan | None  # the ``mask_plan`` of masks that move from infos to observations
    merges_leaves: bool  # extra leaves go into the observation itself, which is a dict
    leaves: dict[str, object] | None  # the ``fixed_leaves`` of ExtraLeaves, if any
    spaces: tuple[Any, Any]  # the environment's own observation and action space


class Seating(NamedTuple):
    """The agents of a parallel environment, for code that steps the environment without its RowEnv."""

    seats: list[Seat]  # of the living agents, in the environment's order
    listed: list[AgentId]  # its ``agents`` after the last call
    last: dict[AgentId, int]  # this and the next two as in AgentIndices
    ended: set[AgentId]
    lingering: set[AgentId]


class FastRows(NamedTuple):
    """The data that the compiled loop needs to step a multi-agent PufferEnv without its RowEnv.

    The loop and the RowEnv share the arrays, which have one value per agent.
    """

    env: object
    returns: Array  # float64
    births: Array  # int64, the tick of each agent's first row
    starts_s: Array  # float64


class RowEnv(ABC):
    """An environment as ``num_agents`` rows: step it, then write the rows that it holds.

    ``step`` and ``reset`` advance the environment and hold the outcome; ``write_observations`` and ``write_outcome``
    copy it into rows. Holding and copying are separate for two reasons: a pool assigns the slot only after the step,
    and a same-step autoreset writes the last observation of an episode and the first of the next to different arrays.
    """

    env: object  # the target of render, call, get_attr and set_attr
    num_agents: int  # the number of rows
    multi_agent: bool  # whether infos are by agent
    observation_space: gymnasium.Space[Any]  # of one row, as learners see it
    action_space: gymnasium.Space[Any]  # of one row, as learners see it
    observation_layout: Layout  # of a row
    action_layout: ActionLayout  # of a row
    observation_layouts: tuple[Layout, ...]  # of each row's agent, which may be smaller than the row
    action_layouts: tuple[ActionLayout, ...]  # of each row's agent
    agent_names: tuple[str, ...] = ()  # by agent index; () for one agent, or if agents change their indices
    autoreset_mode: str | None = None  # set if the environment resets its agents by itself
    infos: AgentInfos
    # of the last reset or step: (agent index, or None for the environment; a non-empty dict that the caller owns)

    # Used only if an environment has a fast step:
    fast: FastStep | FastAgents | FastRows | None = None  # for the compiled path
    totals: tuple[float, int, float]  # return and length of the episode so far, perf_counter() when it began; a
    # multi-agent PufferEnv counts in the return only agents whose row another agent has now

    @property
    def settled(self) -> bool:
        """Whether all one-time checks are done, so that the next step may take the fast path."""
        return False

    def take(self, result: object) -> bool:
        """Hold the rows of a step that was already played; return whether the episode is over.

        result: the result of the raw environment's step.
        """
        raise NotImplementedError

    def take_reset(self, result: object) -> None:
        """Hold the first rows of an episode. result: the result of the raw environment's reset."""
        raise NotImplementedError

    @abstractmethod
    def reset(self, seed: int | None, options: Info | None) -> None:
        """Start an episode and hold its first rows: reward 0, no flags, masks False.

        seed, options: the arguments of a Gymnasium environment's ``reset``.
        """

    @abstractmethod
    def step(self, actions: RowActions) -> bool:
        """Play one step and hold its rows; return whether the episode is over.

        actions: an array (num_agents, …), or a pair of such arrays.
        """

    @abstractmethod
    def write_observations(self, rows: Rows) -> None:
        """Copy the held observations into rows; rows of absent agents become zeros."""

    @abstractmethod
    def write_outcome(self, rows: Rows) -> None:
        """Copy the held rewards, terminations, truncations and masks into rows."""

    def row_of(self, observation: object, info: object = None, agent: AgentId = None) -> Array:
        """Return a raw observation as one flat row, a new array.

        agent: the agent's name in a multi-agent environment. info: the agent's info, with its action mask and, if rows
        contain the environment's state, that state under "state". If the info lacks the state, the leaf "state" is
        zeros: this RowEnv does not read the state of its own environment, because the observation may come from another
        one.
        """
        return np.asarray(self.observation_layout.flatten(observation))

    def action_of(self, row: RowActions, agent: AgentId = None) -> object:
        """Convert one action row, an array or a pair of arrays, to the raw action.

        agent: the agent's name in a multi-agent environment.
        """
        return self.action_layout.unpack(row)

    def close(self) -> None:
        """Close the environment if it has a ``close``."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()


class HeldRows(RowEnv):
    """A RowEnv that holds its outcome as arrays (num_agents,), or as one value for all rows."""

    _rewards: Array | float
    _terminations: Array | bool
    _truncations: Array | bool
    _masks: Array | bool

    def write_outcome(self, rows: Rows) -> None:
        rows.rewards[...] = self._rewards
        rows.terminations[...] = self._terminations
        rows.truncations[...] = self._truncations
        rows.masks[...] = self._masks
