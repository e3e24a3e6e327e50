"""Seats: the roles in an environment, each played by one policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pufferlib.errors import PlanError
from pufferlib.vectorization import VecEnv

__all__ = ["Seat", "seats_of"]


@dataclass(frozen=True)
class Seat:
    """A role in an environment: one player, or a team."""

    name: str  # of the agent, or of the role that agents share
    places: tuple[int, ...]  # the agent indices that its policy plays


def seats_of(vec: VecEnv, role: Callable[[str], str] | None = None) -> tuple[Seat, ...]:
    """Return the seats of a VecEnv's environments: one per agent, or one per role.

    vec: the VecEnv, which is not stepped. role: a function that maps an agent's name to its seat's name; agents with
    the same seat name share a seat. Seats are ordered by their first agent index. Raises PlanError if ``role`` is
    passed for environments whose agents may change their indices. Also raises PlanError for environments that are
    themselves vectorized, because the rows of such an environment are independent copies.
    """
    if vec.copies_per_env > 1:
        raise PlanError(
            f"each environment is itself vectorized, with {vec.copies_per_env} copies, each of which would need a "
            "matchup of its own; make environments with one copy each"
        )
    if not vec.agent_names and vec.agents_per_env > 1 and role is not None:
        raise PlanError("agents may change their indices here, so their roles are unknown; pass Seats instead of roles")
    names = vec.agent_names or tuple(f"place_{agent_index}" for agent_index in range(vec.agents_per_env))
    agent_indices: dict[str, list[int]] = {}
    for agent_index, name in enumerate(names):
        agent_indices.setdefault(name if role is None else role(name), []).append(agent_index)
    return tuple(Seat(name, tuple(indices)) for name, indices in agent_indices.items())
