"""Who sits where: agents that come and go, on a fixed number of places."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from pufferlib.errors import PlanError, PopulationError, naming_arguments

__all__ = ["AgentIndices"]


class AgentIndices:
    """The places of one environment's agents.

    With ``possible_agents`` and no smaller ``max_agents``, agent i of the list always has place i. Else each agent
    takes the lowest free place when it appears; a place whose agent ended in one step is free from the next step on.
    """

    def __init__(self, name: str, possible_agents: Sequence[Any] | None, max_agents: int | None) -> None:
        if max_agents is not None and max_agents < 1:
            raise PlanError(f"max_agents must be at least 1, got {max_agents}")
        if possible_agents is None and max_agents is None:
            raise naming_arguments(
                PlanError,
                lambda written, within: (
                    f"{name} has no possible_agents, so that the number of its rows is unknown; pass "
                    f"{written(max_agents='')}, the most agents that are ever alive at once"
                ),
            )
        self._name = name
        self._possible = frozenset(possible_agents or ())
        self._fixed: dict[Any, int] | None = None
        if possible_agents is not None and (max_agents is None or max_agents >= len(possible_agents)):
            self._fixed = {agent: place for place, agent in enumerate(possible_agents)}
        self.count = max_agents if self._fixed is None and max_agents is not None else len(possible_agents or ())
        self.living: dict[Any, int] = {}  # agent → place, in the environment's order
        self.last: dict[Any, int] = {}  # the same of all agents of this episode whose place no other has taken since
        self._holder: list[Any] = []
        self._free: list[int] = []
        self.ended: set[Any] = set()
        self.lingering: set[Any] = set()  # ended, but still listed by the environment

    @property
    def is_fixed(self) -> bool:
        """Whether each agent has one place for good."""
        return self._fixed is not None

    def knows(self, agent: Any) -> bool:
        """Return whether this is the name of an agent: one that is possible, or lives or has lived in this episode."""
        return agent in self.last or agent in self._possible or agent in self.ended

    def restart(self, agents: Sequence[Any]) -> None:
        """Seat the agents of a new episode."""
        self.living, self.last = {}, {}
        self.ended, self.lingering = set(), set()
        self._holder = [None] * self.count
        self._free = list(range(self.count))
        heapify(self._free)
        for agent in dict.fromkeys(agents):  # as in ``advance``, an agent listed twice has one place
            self._seat(agent)

    def take(self, living: Sequence[Any], last: dict[Any, int], ended: set[Any], lingering: set[Any]) -> None:
        """Seat the agents as somebody else has, by the same rules; the arguments are given away."""
        self.living = {agent: last[agent] for agent in living}
        self.last, self.ended, self.lingering = last, ended, lingering
        self._holder = [None] * self.count
        for agent, place in last.items():
            self._holder[place] = (agent,)
        self._free = sorted({*range(self.count)}.difference(self.living.values()))  # which is a heap

    def advance(self, listed: Sequence[Any], ended: Sequence[Any], stillborn: Sequence[Any]) -> list[Any]:
        """Take one step: ``ended`` leave, agents that are new in ``listed`` are seated; returns those.

        listed: the environment's agents after the step. stillborn: those of them whose life ended in the step in which
        it began; they never act and get no place. Raises PopulationError if there are more agents than places, or if
        one is listed again that had ended and left.
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
                self._seat(agent)
                spawned.append(agent)
            # back into the environment's order, in which actions are passed
            self.living = {agent: self.living[agent] for agent in listed if agent in self.living}
        if self._fixed is None:
            for place in freed:
                heappush(self._free, place)
        return spawned

    def _seat(self, agent: Any) -> None:
        if self._fixed is not None:
            if agent not in self._fixed:
                raise naming_arguments(
                    PopulationError,
                    lambda written, within: (
                        f"{self._name}: agent {agent!r} is not in possible_agents, {[*(self._fixed or ())]}; an "
                        "environment that makes up agents as it goes has no possible_agents and is given "
                        f"{written(max_agents='')}"
                    ),
                )
            place = self._fixed[agent]
        elif self._free:
            place = heappop(self._free)
            holder = self._holder[place]
            if holder is not None:
                del self.last[holder[0]]
            self._holder[place] = (agent,)
        else:
            raise naming_arguments(
                PopulationError,
                lambda written, within: (
                    f"{self._name}: no place for agent {agent!r}, as max_agents={self.count} are taken (a place freed "
                    f"in one step is free from the next on); pass a larger max_agents{within or '='}"
                ),
            )
        self.living[agent] = self.last[agent] = place
