"""Rollouts as arrays that have a line of rows for each agent, as Ray carries them from actors to a learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = ["Lines", "joined", "lines_of"]


class Lines(NamedTuple):
    """The rows of one or several rollouts: steps along the first axis, agents along the second.

    All fields are NumPy arrays, or all are tensors; ``states`` is a tuple, and has no axis of steps.
    """

    observations: Any  # (steps, agents, *layout.shape)
    starts: Any  # (steps, agents) bool: rows before which the memory was reset
    discrete_actions: Any  # (steps, agents, num_choices) int64
    continuous_actions: Any  # (steps, agents, num_aims)
    log_probs: Any  # (steps, agents), of these actions by the policy that played
    rewards: Any  # (steps, agents), outcomes of these actions, as are the next two
    terminations: Any
    truncations: Any
    masks: Any  # (steps, agents) bool: which rows are valid transitions; padding and agents' last rows are not
    states: Any  # a tuple of (agents, …), the memories before the first rows

    def on(self, device: str) -> Lines:
        """Convert the rows from arrays to tensors on a device. On the CPU, the tensors share the arrays' memory."""
        *columns, states = (
            tuple(torch.from_numpy(part).to(device) for part in (column if isinstance(column, tuple) else (column,)))
            for column in self
        )
        return Lines._make([*(column for (column,) in columns), states])


def joined(rollouts: Sequence[Lines]) -> Lines:
    """Concatenate rollouts, whose fields are arrays, along the axis of agents.

    Shorter rollouts are padded with rows whose mask is unset.
    """
    num_steps = max(len(lines.masks) for lines in rollouts)

    def filled(column: np.ndarray) -> np.ndarray:
        rest = np.zeros((num_steps - len(column), *column.shape[1:]), column.dtype)
        return np.concatenate([column, rest]) if len(rest) else column

    *columns, states = zip(*rollouts, strict=True)
    memories = tuple(np.concatenate(parts) for parts in zip(*states, strict=True))
    return Lines._make([*(np.concatenate([filled(part) for part in parts], 1) for parts in columns), memories])


def lines_of(rollout: Any) -> Lines:
    """Return the rows of a rollout, such as ``ppo_lstm.Rollout``, as ``Lines`` of arrays."""
    steps = rollout.lines()
    policy_columns = (rollout.observations, rollout.discrete_actions, rollout.continuous_actions, rollout.log_probs)
    observations, discrete_actions, continuous_actions, log_probs = (
        column[torch.from_numpy(steps)].numpy() for column in policy_columns
    )
    starts, ends = rollout.starts, (rollout.rewards, rollout.terminations, rollout.truncations, rollout.masks)
    states = tuple(part[torch.from_numpy(steps[0])].numpy() for part in rollout.states)
    played = (observations, starts[steps], discrete_actions, continuous_actions, log_probs)
    return Lines._make([*played, *(column[steps] for column in ends), states])
