"""The assignment of a fixed number of rows to agents that come and go."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from pufferlib.errors import PlanError, PopulationError, argument_error
from pufferlib.util.annotations import AgentId

__all__ = ["AgentIndices"]


class AgentIndices:
    """A map from the agents of one environment to their indices, which are their rows.

    With ``possible_agents``, and no ``max_agents`` below their number, agent i of the list always has index i.
    Otherwise an agent takes the lowest free index when it appears, and the index of an agent that ends is free from the
    next step on. Raises PlanError if ``possible_agents`` and ``max_agents`` are both None, or if ``max_agents`` is
    below 1.
    """

    def __init__(self, name: str, possible_agents: Sequence[AgentId] | None, max_agents: int | None) -> None:
        if max_agents is not None and max_agents < 1:
            raise PlanError(f"max_agents must be at least 1, got {max_agents}")
        if possible_agents is None and max_agents is None:
            raise argument_error(
                PlanError,
                lambda written, within: (
                    f"{name} has no possible_agents, so the number of its rows is unknown; pass "
                    f"{written(max_agents='')}, the most agents alive at once"
                ),
            )
        self._name = name
        self._possible = frozenset(possible_agents or ())
        self._fixed: dict[AgentId, int] | None = None
        if possible_agents is not None and (max_agents is None or max_agents >= len(possible_agents)):
            self._fixed = {agent: agent_index for agent_index, agent in enumerate(possible_agents)}
        self.count = max_agents if self._fixed is None and max_agents is not None else len(possible_agents or ())
        self.living: dict[AgentId, int] = {}  # agent → index, in the environment's order
        self.last: dict[AgentId, int] = {}  # the living, and ended agents whose index is not yet reused
        self._last_agents: list[tuple[AgentId] | None] = []
        self._free: list[int] = []
        self.ended: set[AgentId] = set()
        self.lingering: set[AgentId] = set()  # ended, but still listed by the environment

    @property
    def is_fixed(self) -> bool:
        """Whether each agent always has the same index."""
        return self._fixed is not None

    def knows(self, agent: AgentId) -> bool:
        """Return whether ``agent`` is a possible agent, or an agent that has lived in this episode."""
        return agent in self.last or agent in self._possible or agent in self.ended

    def restart(self, agents: Sequence[AgentId]) -> None:
        """Assign indices to the agents of a new episode.

        Raises PopulationError if there are more agents than indices or, if indices are fixed, for an agent that is not
        in ``possible_agents``.
        """
        self.living, self.last = {}, {}
        self.ended, self.lingering = set(), set()
        self._last_agents = [None] * self.count
        self._free = list(range(self.count))
        heapify(self._free)
        for agent in dict.fromkeys(agents):  # as in ``advance``, an agent listed twice has one index
            self._assign(agent)

    def take(
        self, living: Sequence[AgentId], last: dict[AgentId, int], ended: set[AgentId], lingering: set[AgentId]
    ) -> None:
        """Adopt an assignment that other code made by the rules of this class, and take ownership of the arguments.

        living: the living agents, in the environment's order. last, ended, lingering: the new values of the attributes
        of these names.
        """
        self.living = {agent: last[agent] for agent in living}
        self.last, self.ended, self.lingering = last, ended, lingering
        self._last_agents = [None] * self.count
        for agent, agent_index in last.items():
            self._last_agents[agent_index] = (agent,)
        self._free = sorted({*range(self.count)}.difference(self.living.values()))  # a sorted list is a heap

    def advance(
        self, listed: Sequence[AgentId], ended: Sequence[AgentId], stillborn: Sequence[AgentId]
    ) -> list[AgentId]:
        """Remove the agents that ended, assign indices to new agents in ``listed``, and return the new agents.

        listed: the environment's agents after the step. ended: the living agents that ended in the step. stillborn: the
        agents in ``listed`` that ended in the step in which they appeared; they never act and get no index. Raises
        PopulationError if there are more agents than indices, if indices are fixed and a new agent is not in
        ``possible_agents``, or if an agent is listed again after it ended and left.
        """
        present = set(listed)
        freed = [self.living.pop(agent) for agent in ended]
        self.ended.update(ended)
        self.ended.update(stillborn)
        self.lingering.update(ended)
        self.lingering.update(stillborn)
        self.lingering &= present
        spawned = []
        if len(present) != len(self.living) + len(self.lingering):
            for agent in listed:
                if agent in self.living or agent in self.lingering:
                    continue
                if agent in self.ended:
                    raise PopulationError(
                        f"{self._name}: agent {agent!r} came back after its end; a dead agent stays dead until the "
                        "next reset, so a new one needs a new name"
                    )
                self._assign(agent)
                spawned.append(agent)
            # in the environment's order, in which actions are passed
            self.living = {agent: self.living[agent] for agent in listed if agent in self.living}
        if self._fixed is None:
            for agent_index in freed:
                heappush(self._free, agent_index)
        return spawned

    def _assign(self, agent: AgentId) -> None:
        if self._fixed is not None:
            if agent not in self._fixed:
                raise argument_error(
                    PopulationError,
                    lambda written, within: (
                        f"{self._name}: agent {agent!r} is not in possible_agents, {[*(self._fixed or ())]}; for an "
                        "environment that invents agents during an episode, omit possible_agents and pass "
                        f"{written(max_agents='')}"
                    ),
                )
            agent_index = self._fixed[agent]
        elif self._free:
            agent_index = heappop(self._free)
            last_agent = self._last_agents[agent_index]
            if last_agent is not None:
                del self.last[last_agent[0]]
            self._last_agents[agent_index] = (agent,)
        else:
            raise argument_error(
                PopulationError,
                lambda written, within: (
                    f"{self._name}: no place for agent {agent!r}, as max_agents={self.count} are taken (a place freed "
                    f"in one step is free from the next on); pass a larger max_agents{within or '='}"
                ),
            )
        self.living[agent] = self.last[agent] = agent_index
