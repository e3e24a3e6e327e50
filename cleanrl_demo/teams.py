"""Teams: who of an environment's agents shares a policy, and what trains it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cleanrl_demo.peers import alike
from cleanrl_demo.ppo import PRECISIONS, SCHEDULES, as_one
from pufferlib.errors import PlanError
from pufferlib.models import Actor

__all__ = ["OF_A_TEAM", "Team", "rate_at", "teams_of"]

OF_A_TEAM = ("agents", "learning_rate", "schedule", "entropy_coefficient")  # what a table [teams.NAME] may say


class Team:
    """A policy, the agents that it acts for, and what trains it.

    places: of these agents among those of an environment. config: a ``ppo_cuda.DeviceConfig``.
    """

    def __init__(self, name: str, actor: Actor, places: Sequence[int], config: Any) -> None:
        table = config.teams.get(name, {})
        self.name, self.actor = name, actor
        neighbours = list(places) == list(range(places[0], places[-1] + 1))  # whose rows can be viewed
        self.places = slice(places[0], places[-1] + 1) if neighbours else torch.tensor(places, device=config.device)
        self.first_rate = table.get("learning_rate", config.learning_rate)
        self.schedule = table.get("schedule", config.schedule)
        self.entropy_coefficient = table.get("entropy_coefficient", config.entropy_coefficient)
        actor.precision = PRECISIONS[config.precision]
        self.weights = as_one(actor.policy)
        alike(self.weights)
        self.rate = torch.tensor(self.first_rate, device=config.device)
        on_device = self.weights.is_cuda
        self.optimizer = torch.optim.Adam(
            [self.weights], self.rate if on_device else self.first_rate, eps=1e-5, capturable=on_device, fused=True
        )

    def rows_of(self, column: Tensor) -> Tensor:
        """Return the rows of its agents, (steps * envs * places, …), of a column (steps, envs, agents, …)."""
        return column[:, :, self.places].flatten(0, 2)

    def write(self, column: Tensor, rows: Tensor) -> None:
        """Write rows of its agents, (envs * places, …), into a step's column, (envs, agents, …)."""
        column[:, self.places] = rows.view(len(column), -1, *rows.shape[1:])

    def restore(self, state: Mapping[str, Any]) -> None:
        """Have the optimizer go on where ``state_dict`` was asked of it."""
        self.optimizer.load_state_dict(dict(state))
        if self.weights.is_cuda:
            self.optimizer.param_groups[0]["lr"] = self.rate  # which loading has put a copy in place of

    def set_rate(self, num_steps: int, total_steps: int) -> float:
        """Set the learning rate for when so many steps are done, and return it. On a device, nothing waits for it."""
        rate = rate_at(self.schedule, self.first_rate, num_steps, total_steps)
        if self.weights.is_cuda:
            self.rate.fill_(rate)
        else:
            self.optimizer.param_groups[0]["lr"] = rate
        return rate


def rate_at(schedule: str, first: float, num_steps: int, total_steps: int) -> float:
    """Return a learning rate. schedule: as in Config. first: at the start, where the schedule names no rates.

    Raises PlanError for what is no schedule.
    """
    if schedule in SCHEDULES:
        return first * SCHEDULES[schedule](min(1.0, num_steps / total_steps))
    try:
        points = [point.split(":") for point in schedule.split()]
        steps, rates = [float(step) for step, _ in points], [float(rate) for _, rate in points]
    except ValueError:
        steps, rates = [], []
    if not steps or steps != sorted(set(steps)) or min(rates) < 0:
        raise PlanError(
            f'schedule={schedule!r} is none; use {", ".join(SCHEDULES)}, or "0:1e-3 2e6:1e-4" with growing steps'
        )
    return float(np.interp(num_steps, steps, rates))


def teams_of(agent_names: Sequence[str], config: Any) -> dict[str, list[int]]:
    """Return the places of each team's agents, by its name. Raises PlanError for agents of no team, or of two."""
    if config.teams and any("agents" in table for table in config.teams.values()):
        found = {
            name: [
                place
                for place, agent in enumerate(agent_names)
                if any(fnmatch.fnmatchcase(agent, pattern) for pattern in patterns_of(name, table))
            ]
            for name, table in config.teams.items()
        }
    elif config.separate or config.teams:
        found = {}
        for place, agent in enumerate(agent_names):
            found.setdefault(re.sub(r"_\d+$", "", agent), []).append(place)
    else:
        return {"": list(range(len(agent_names)))}
    unknown = [name for name in config.teams if name not in found]
    named = sorted(place for places in found.values() for place in places)
    if unknown or named != list(range(len(agent_names))):
        shown = ", ".join(agent_names[:6]) + (", …" if len(agent_names) > 6 else "")
        raise PlanError(f"teams {', '.join(config.teams)}: each of the agents ({shown}) has to be in one team")
    return found


def patterns_of(name: str, table: Mapping[str, Any]) -> Sequence[str]:
    """Return the names, or patterns, of a team's agents."""
    patterns: str | Sequence[str] = table.get("agents", (f"{name}_*", name))
    return [patterns] if isinstance(patterns, str) else patterns
