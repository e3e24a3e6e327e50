"""Teams: groups of an environment's agents that share a policy and its optimizer."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

import pufferlib
from pufferlib.emulation.action_masks import ACTION_MASK, has_mask
from pufferlib.emulation.extra_leaves import type_of_name
from pufferlib.errors import PlanError
from pufferlib.models import PRECISIONS, Actor
from pufferlib.models.multiagent import Unpadded
from pufferlib.training.ddp import alike, several
from pufferlib.training.fused_policy import FusedPolicy
from pufferlib.training.kernel_actions import pair
from pufferlib.training.schedules import rate_at
from pufferlib.training.weights import ALIGNMENT, as_one, joined

__all__ = ["OF_A_TEAM", "Team", "require_settings", "team_actor", "teams_of", "unpadded_sizes"]

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
            teams.setdefault(type_of_name(agent), []).append(agent_index)
    else:
        return {"": list(range(len(agent_names)))}
    unknown = [name for name in config.teams if name not in teams]
    named = sorted(agent_index for agent_indices in teams.values() for agent_index in agent_indices)
    if unknown or named != list(range(len(agent_names))):
        examples = ", ".join(agent_names[:6]) + (", …" if len(agent_names) > 6 else "")
        raise PlanError(f"teams {', '.join(config.teams)}: each of the agents ({examples}) has to be in one team")
    return teams


def unpadded_sizes(vec: pufferlib.VecEnv, teams: Mapping[str, Sequence[int]]) -> dict[str, dict[str, int]]:
    """Return the arguments of ``multiagent.unpadded_spaces`` for each team whose spaces differ from those of rows.

    Teams whose agents have different spaces, or actions other than a Discrete from 0 on, are left out: their policies
    read and write whole rows.
    """
    sizes = {}
    row_layout = vec.observation_layout
    for name, agent_indices in teams.items():
        layout, actions = vec.observation_layouts[agent_indices[0]], vec.action_layouts[agent_indices[0]].space
        if layout.space == row_layout.space or not isinstance(actions, Discrete) or actions.start != 0:
            continue
        same = all(
            vec.observation_layouts[index].space == layout.space and vec.action_layouts[index].space == actions
            for index in agent_indices
        )
        floats = layout.dtype == row_layout.dtype and np.issubdtype(layout.dtype, np.floating)
        if same and floats and len(layout.shape) == len(row_layout.shape) == 1:
            first, num_actions = layout.leaves[0], int(actions.n)
            masked = has_mask(layout.space) and first.path == (ACTION_MASK,) and first.shape == (num_actions,)
            num_masks = num_actions if masked else 0
            sizes[name] = {"num_numbers": layout.shape[0], "num_actions": num_actions, "num_masks": num_masks}
    return sizes


def team_actor(policy: Any, vec: pufferlib.VecEnv) -> Actor:
    """Return an Actor of a team's policy, for the team's rows: those of ``Team.observations_of``."""
    if isinstance(policy, Unpadded):
        return Actor(lambda *_: policy.policy, policy.layout, policy.action_space)
    return Actor(lambda *_: policy, vec.observation_layout, vec.single_action_space)


def patterns_of(name: str, table: Mapping[str, Any]) -> Sequence[str]:
    """Return the names, or name patterns, of a team's agents.

    By default, they are the team's name, alone or followed by "_" and any text.
    """
    patterns: str | Sequence[str] = table.get("agents", (f"{name}_*", name))
    return [patterns] if isinstance(patterns, str) else patterns


def require_settings(config: Any) -> None:
    """Raise PlanError if ``config.schedule`` or a table in ``config.teams`` is invalid.

    config: see ``device_runs.DeviceConfig``.
    """
    for table in ({"schedule": config.schedule}, *config.teams.values()):
        if wrong := set(table) - set(OF_A_TEAM):
            raise PlanError(f"teams have {', '.join(OF_A_TEAM)}, and not {', '.join(sorted(wrong))}")
        rate_at(table.get("schedule", "constant"), 0.0, 0, 1)
        for name in ("learning_rate", "entropy_coefficient"):
            if not isinstance(table.get(name, 0.0), (int, float)):
                raise PlanError(f"a team's {name}={table[name]!r} is no number; leave out the quotation marks")


class Team:
    """A policy, its optimizer, and the agents that the policy plays.

    agent_indices: these agents' indices in an environment. config: see ``device_runs.DeviceConfig``; if its ``learner``
    is "fused", as that of ``ppo_cuda`` may be, compiled code acts and learns. Attribute act: the actor, or that code.
    separable: whether the policy acts without computing values (see ``Actor.separable``).
    """

    def __init__(self, name: str, actor: Actor, agent_indices: Sequence[int], config: Any) -> None:
        table = config.teams.get(name, {})
        self.name, self.actor = name, actor
        neighbours = list(agent_indices) == list(
            range(agent_indices[0], agent_indices[-1] + 1)
        )  # adjacent rows need no copy
        self.agent_indices = (
            slice(agent_indices[0], agent_indices[-1] + 1)
            if neighbours
            else torch.tensor(agent_indices, device=config.device)
        )
        self.first_rate = table.get("learning_rate", config.learning_rate)
        self.schedule = table.get("schedule", config.schedule)
        self.entropy_coefficient = table.get("entropy_coefficient", config.entropy_coefficient)
        actor.precision = PRECISIONS[config.precision]
        self.weights = as_one(actor.policy, ALIGNMENT)
        alike(self.weights)
        self.rate = torch.tensor(self.first_rate, device=config.device)
        self.act: Any = actor
        self.separable = actor.separable
        self.optimizer: Any
        if getattr(config, "learner", "torch") == "fused":
            if several():
                raise PlanError('learner="fused" learns in one process; use --learner torch with torchrun')
            names = ("clip", "advantage_floor", "value_coefficient", "max_grad_norm")
            settings = {name: getattr(config, name) for name in names}
            settings |= {"entropy_coefficient": self.entropy_coefficient, "num_threads": config.torch_threads}
            self.separable = False  # one call of that code computes both
            self.act = self.optimizer = FusedPolicy(actor, "use --learner torch", self.first_rate, **settings)
            return
        on_device = self.weights.is_cuda
        self.optimizer = torch.optim.Adam(
            [self.weights],
            self.rate if on_device else self.first_rate,
            eps=1e-5,
            capturable=on_device and config.graphs,
            fused=True,
        )

    def rows_of(self, column: Tensor) -> Tensor:
        """Return the team's rows, (steps * envs * agents, …), from a column (steps, envs, agents, …)."""
        return column[:, :, self.agent_indices].flatten(0, 2)

    def observations_of(self, column: Tensor) -> Tensor:
        """Return the observations of the team's rows, without padding, from a column (steps, envs, agents, …)."""
        rows = column[:, :, self.agent_indices]
        return (rows if rows.dim() < 4 else rows[..., : self.actor.layout.shape[-1]]).flatten(0, 2)

    def write(self, column: Tensor, rows: Tensor) -> None:
        """Write the team's rows, (envs * agents, …), into a step's column, (envs, agents, …)."""
        column[:, self.agent_indices] = rows.view(len(column), -1, *rows.shape[1:])

    def decide(self, observations: Tensor) -> tuple[Any, Tensor | None]:
        """Return (distribution of actions, values) for the team's rows of a step; no values if ``separable``."""
        if self.separable:
            return self.actor.distribution(observations), None
        distribution, values, _ = self.act(observations)
        return distribution, values

    def write_values(self, values: Tensor, observations: Tensor, num_parts: int) -> None:
        """Write the values of those observations for which ``decide`` has returned none: of all steps, or of the last.

        values: (steps, envs, agents). observations: (steps, envs, agents, …), of which only the last has led to no
        decision. num_parts: in how many parts the critic reads them, which bounds the memory that it takes.
        """
        if not self.separable:
            self.write(values[-1], self.act(self.observations_of(observations[-1:]))[1])
            return
        num_steps = -(-len(values) // num_parts)
        for part, seen in zip(values.split(num_steps), observations.split(num_steps), strict=True):
            self.write(part.flatten(0, 1), self.actor.values(self.observations_of(seen)))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizer from a ``state_dict``. Raises ValueError if it does not match the weights.

        Also accepts older checkpoints, whose vectors have no alignment gaps between the parameters.
        """
        if isinstance(self.optimizer, FusedPolicy):
            self.optimizer.load_state_dict(state)
            return
        moments = {
            index: {name: self._aligned(values) if values.ndim else values for name, values in param_state.items()}
            for index, param_state in state["state"].items()
        }
        self.optimizer.load_state_dict({**state, "state": moments})
        if self.weights.is_cuda:
            self.optimizer.param_groups[0]["lr"] = self.rate  # loading replaced it with a copy

    def _aligned(self, numbers: Tensor) -> Tensor:
        """Return one of the optimizer's vectors, with a number for each weight, in the aligned layout of the weights.

        Raises ValueError if its length does not match the weights.
        """
        if numbers.shape == self.weights.shape:
            return numbers
        parts = [part.numel() for part in self.actor.policy.parameters()]
        if len(numbers) != sum(parts):
            raise ValueError(f"{len(numbers)} numbers of an optimizer for {len(self.weights)} weights")
        return joined(numbers.split(parts), ALIGNMENT).to(self.weights)

    def update_fused(
        self,
        observations: Tensor,
        actions: Tensor,
        log_probs: Tensor,
        advantages: Tensor,
        returns: Tensor,
        minibatches: Sequence[Sequence[Tensor]],
    ) -> Tensor:
        """Take a step of compiled PPO for each minibatch of each epoch; return the last epoch's mean losses, (5,).

        minibatches: for each epoch, the indices of each minibatch's rows. The other arguments: the team's rows.
        """
        rows = self.optimizer.rows(observations, *pair(actions), log_probs, advantages, returns)
        losses = self.optimizer.update(rows, [minibatch for epoch in minibatches for minibatch in epoch])
        last: Tensor = torch.stack(losses[-len(minibatches[-1]) :]).mean(0).float()
        return last

    def set_rate(self, num_steps: int, total_steps: int) -> float:
        """Set and return the scheduled learning rate after ``num_steps`` steps, without waiting for the device."""
        rate = rate_at(self.schedule, self.first_rate, num_steps, total_steps)
        if self.weights.is_cuda:
            self.rate.fill_(rate)
        else:
            self.optimizer.param_groups[0]["lr"] = rate
        return rate
