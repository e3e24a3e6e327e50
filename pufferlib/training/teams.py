"""Teams: groups of an environment's agents that share a policy."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pufferlib.errors import PlanError

__all__ = ["OF_A_TEAM", "teams_of"]

OF_A_TEAM = ("agents", "learning_rate", "schedule", "entropy_coefficient")  # the keys of a table [teams.NAME]


def teams_of(agent_names: Sequence[str], config: Any) -> dict[str, list[int]]:
    """Return the indices of each team's agents, keyed by team; without teams, all agents are in the team "".

    The teams are those of ``config.teams`` if any of its tables has a key ``agents``. Otherwise, if ``config.separate``
    is set or there are tables, the teams are the types of agents: agents' names without a trailing "_<number>".
    Raises PlanError if an agent is in no team or in several, or if the teams are types of agents and a table's name is
    not one of these types.
    """
    if config.teams and any("agents" in table for table in config.teams.values()):
        teams = {
            name: [
                agent_index
                for agent_index, agent in enumerate(agent_names)
                if any(fnmatch.fnmatchcase(agent, pattern) for pattern in patterns_of(name, table))
            ]
            for name, table in config.teams.items()
        }
    elif config.separate or config.teams:
        teams = {}
        for agent_index, agent in enumerate(agent_names):
            teams.setdefault(re.sub(r"_\d+$", "", agent), []).append(agent_index)
    else:
        return {"": list(range(len(agent_names)))}
    unknown = [name for name in config.teams if name not in teams]
    named = sorted(agent_index for agent_indices in teams.values() for agent_index in agent_indices)
    if unknown or named != list(range(len(agent_names))):
        examples = ", ".join(agent_names[:6]) + (", …" if len(agent_names) > 6 else "")
        raise PlanError(f"teams {', '.join(config.teams)}: each of the agents ({examples}) has to be in one team")
    return teams


def patterns_of(name: str, table: Mapping[str, Any]) -> Sequence[str]:
    """Return the names, or name patterns, of a team's agents.

    By default, they are the team's name, alone or followed by "_" and any text.
    """
    patterns: str | Sequence[str] = table.get("agents", (f"{name}_*", name))
    return [patterns] if isinstance(patterns, str) else patterns
