"""The seam between emulation and vectorization: any environment as a fixed number of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import gymnasium

    from pufferlib.layout import Layout
    from pufferlib.layout.layout import ActionLayout

__all__ = ["FastAgents", "FastRows", "FastStep", "HeldRows", "PlainStep", "RowEnv", "Rows", "Seat", "Seating"]

Array = np.ndarray[Any, Any]


class Rows(NamedTuple):
    """Where one environment writes: views of its slot in a block, one row an agent."""

    observations: Array  # (num_agents, *single_observation_space.shape)
    rewards: Array  # (num_agents,) float32 or float64
    terminations: Array  # (num_agents,) bool
    truncations: Array  # (num_agents,) bool
    masks: Array  # (num_agents,) bool: the transition into this row is real and counts
    places: tuple[Array, ...]  # observations[place, ...] of each place, made once: a view costs 0.1 us


class FastStep(NamedTuple):
    """How the compiled loop may step an environment of one agent, past its RowEnv, while nothing unusual happens."""

    env: Any  # the raw environment
    step: Any  # its own ``step``
    packer: Any  # of the observation layout
    unpacker: Any  # of the action layout; None for an action that is one leaf
    native: bool  # a PufferEnv, which writes into buffers of its own; others return five values
    resets: bool  # its own ``reset`` may be called, too: one that returns values returns an observation and an info
    masks: tuple[Any, ...] | None = None  # the ``mask_plan`` of the masks in its infos, leaves of its observations


class FastAgents(NamedTuple):
    """How the compiled loop may step a parallel environment, past its RowEnv, with agents that the RowEnv has checked.

    It takes them from the RowEnv's ``seating()`` whenever ``changes`` has changed, and gives them back by
    ``take_seating``. The arrays, one value a place, belong to both.
    """

    env: Any  # the parallel environment
    returns: Array  # float64
    lengths: Array  # int64
    starts_s: Array  # float64
    keeps_spaces: bool  # an agent has the same spaces in each episode; else the environment is asked as it comes
    keeps_places: bool  # and the same place
    extra_leaves: Any  # the ExtraLeaves whose leaves are in the observations; None where there are none
    has_state: bool  # one of them is the environment's state
    mask_in_info: bool


class Seat(NamedTuple):
    """An agent and its place: how its action is read and its observation written."""

    name: Any
    place: int
    packer: Any  # of its observation layout
    unpacker: Any  # of its action layout; None where only ``read`` gives its action
    read: Callable[[Any], Any]  # of its row of actions
    clip: Any  # the Clip by which its choices are read; None where the row's are its own
    masks: tuple[Any, ...] | None  # the ``mask_plan`` of the masks in its infos, a leaf of its observations
    takes_in: bool  # leaves go into the observation, which is a dict
    leaves: dict[str, Any] | None  # of ExtraLeaves, without the state; None where there are none
    spaces: tuple[Any, Any]  # of its observations and actions, the environment's own objects


class Seating(NamedTuple):
    """The agents of a parallel environment."""

    seats: list[Seat]  # of those who live, in the environment's order
    listed: list[Any]  # its ``agents`` as they were last
    last: dict[Any, int]  # this and the others as AgentIndices has them
    ended: set[Any]
    lingering: set[Any]


class FastRows(NamedTuple):
    """How the compiled loop may step a PufferEnv of several agents, likewise. The arrays belong to both."""

    env: Any
    returns: Array  # float64
    births: Array  # int64, the tick of each agent's first row
    starts_s: Array  # float64


class PlainStep(NamedTuple):
    """How plain Python may do the same: with ``step(act(actions))`` and ``write(observation, place)``."""

    step: Callable[[Any], Any]  # the raw environment's own
    act: Callable[[Any], Any]  # the raw action in an environment's action rows
    write: Callable[[Any, Array], None]  # of an observation into its row


class RowEnv(ABC):
    """One environment as ``num_agents`` rows: step it, then write what it holds.

    ``step`` and ``reset`` advance the environment and hold the outcome; ``write_observations`` and ``write_outcome``
    copy it into rows. They are apart because a pool knows the slot only after the step, and because a same-step
    autoreset writes the last observation in one place and the first of the next episode in another.
    """

    env: Any  # what render, call, get_attr and set_attr reach
    num_agents: int  # rows
    multi_agent: bool  # True where infos are told apart by agent
    observation_space: gymnasium.Space[Any]  # of one row, as learners see it
    action_space: gymnasium.Space[Any]  # of one row, as learners see it
    observation_layout: Layout  # of a row
    action_layout: ActionLayout  # of a row
    observation_layouts: tuple[Layout, ...]  # of each place's agent, which may be smaller than the row
    action_layouts: tuple[ActionLayout, ...]  # of each place's agent
    agent_names: tuple[str, ...] = ()  # of the places; () where there is one agent, or where places change hands
    autoreset_mode: str | None = None  # of an environment that resets its agents by itself
    infos: list[tuple[int | None, dict[str, Any]]]
    # of the last reset or step: (place, or None for the environment's own; a dict that is not empty and is given away)

    # Only of use where an environment has a fast or a plain step:
    fast: FastStep | FastAgents | FastRows | None = None  # for the compiled path
    plain: PlainStep | None = None  # for the portable path
    totals: tuple[float, int, float]  # return and length of the episode so far, perf_counter() when it began; a
    # PufferEnv of several agents has, in place of the return, what agents were rewarded whose place another has now

    @property
    def settled(self) -> bool:
        """Whether what is checked once has been checked, so that the next step may be a fast one."""
        return False

    def take(self, result: Any) -> bool:
        """Hold the rows of a step that has been played already, as ``step`` does. result: what the raw one returned."""
        raise NotImplementedError

    def take_reset(self, result: Any) -> None:
        """Hold the first rows of an episode, as ``reset`` does. result: what the raw one returned."""
        raise NotImplementedError

    @abstractmethod
    def reset(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Start an episode and hold its first rows: reward 0, no flags, masks False. seed, options: as Gymnasium's."""

    @abstractmethod
    def step(self, actions: Any) -> bool:
        """Play one step and hold its rows; True if the episode is over. actions: (num_agents, …) or a pair of such."""

    @abstractmethod
    def write_observations(self, rows: Rows) -> None:
        """Copy the held observations into rows; those of absent agents become zeros."""

    @abstractmethod
    def write_outcome(self, rows: Rows) -> None:
        """Copy the held rewards, terminations, truncations and masks into rows."""

    def row_of(self, observation: Any, info: Any = None, agent: Any = None) -> Any:
        """Return a raw observation as one flat row, a new array. agent: whose, of several.

        info: where masks are, and where the rows hold the environment's state, that too, under "state"; without it that
        leaf is zeros, as this environment need not be the one that is played, and who acts need not know it.
        """
        return np.asarray(self.observation_layout.flatten(observation))

    def action_of(self, row: Any, agent: Any = None) -> Any:
        """Return what a row of actions, an array or a pair of them, is to the raw environment.

        agent: whose, of several.
        """
        return self.action_layout.unpack(row)

    def close(self) -> None:
        """Close the environment. Safe on an environment that has no ``close``."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()


class HeldRows(RowEnv):
    """Rows whose outcome is held as arrays (num_agents,), or as one value for all."""

    _rewards: Any
    _terminations: Any
    _truncations: Any
    _masks: Any

    def write_outcome(self, rows: Rows) -> None:
        rows.rewards[...] = self._rewards
        rows.terminations[...] = self._terminations
        rows.truncations[...] = self._truncations
        rows.masks[...] = self._masks
