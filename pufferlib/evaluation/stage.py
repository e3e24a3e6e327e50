"""Stage: the rows that wait for the policy, as batches of one fixed size in which each episode has a fixed place.

``BatchStage`` instead has the VecEnv's own batches, for policies that can only play these.

A network's answer to a row depends in its last bits on the number of rows and, where the width of a layer is no
multiple of a vector register's, on the row's place among them. So the place is a function of the episode's seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pufferlib.errors import ActionError
from pufferlib.evaluation.policies import PolicyBatch
from pufferlib.util.annotations import Array
from pufferlib.vectorization import Batch, VecEnv

__all__ = ["BatchStage", "Stage"]

EMPTY = -1  # in place of a slot


class Stage:
    """The rows that wait for the policy. A second episode with the same place waits in another layer, and so on.

    vec: the VecEnv. policy_batch: the number of environments in a batch. num: how many environments wait.
    """

    def __init__(self, vec: VecEnv, policy_batch: int) -> None:
        self.num, self._policy_batch, self._num_agents = 0, policy_batch, vec.agents_per_env
        layout, rows = vec.observation_layout, (policy_batch, vec.agents_per_env)
        self._observations = np.zeros((*rows, *layout.shape), layout.dtype)
        self._rewards, self._masks = np.zeros(rows, np.float32), np.zeros(rows, np.bool_)
        self._slots = np.full(policy_batch, EMPTY)
        self._seeds, self._steps = np.zeros(policy_batch, np.int64), np.zeros(policy_batch, np.int64)
        self._counts = [0] * policy_batch  # by place: how many episodes wait
        self._padding = vec.num_envs + np.arange(policy_batch)  # ids of slots that do not exist
        self._agents = np.arange(vec.agents_per_env)

    @property
    def full(self) -> bool:
        """Whether the policy should be called before more rows are added."""
        return self.num >= self._policy_batch

    def place_of(self, seed: int) -> int:
        """Return the place of a seed's episode, from 0 to policy_batch - 1."""
        return seed % self._policy_batch

    def add(self, batch: Batch, chosen: Array, steps: Array, seeds: Array) -> None:
        """Add the rows of the chosen environments of a batch.

        chosen: bool (batch_size,). steps: the number of steps of each slot's episode. seeds: of the batch's episodes.
        """
        positions = np.flatnonzero(chosen)
        if not len(positions):
            return
        indices = [self._next_index(seed) for seed in seeds[positions].tolist()]
        while max(indices) >= len(self._slots):
            self._add_layer()
        columns = (
            (batch.observations, self._observations),
            (batch.rewards, self._rewards),
            (batch.masks, self._masks),
        )
        for source, target in columns:
            target[indices] = source.reshape(len(chosen), self._num_agents, *source.shape[1:])[positions]
        self._slots[indices] = slots = batch.env_ids[positions]
        self._steps[indices], self._seeds[indices] = steps[slots], seeds[positions]
        self.num += len(positions)

    def _next_index(self, seed: int) -> int:
        index = self.place_of(seed)
        layer, self._counts[index] = self._counts[index], self._counts[index] + 1
        return layer * self._policy_batch + index

    def _add_layer(self) -> None:
        size = self._policy_batch
        for name in ("_observations", "_rewards", "_masks", "_seeds", "_steps"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column[:size])]))
        self._slots = np.concatenate([self._slots, np.full(size, EMPTY)])

    def batches(self) -> Iterator[tuple[PolicyBatch, Array]]:
        """Yield the padded batches and, for each, the places whose rows are real, int64 (number,), in order of slots.

        Afterwards, no row waits.
        """
        size, num_agents = self._policy_batch, self._num_agents
        for first in range(0, max(self._counts) * size, size):
            part = slice(first, first + size)
            slots = self._slots[part]
            places = np.flatnonzero(slots != EMPTY)
            missing = np.flatnonzero(slots == EMPTY)
            if len(missing):
                for column in (self._observations, self._rewards, self._seeds, self._steps):
                    column[part][missing] = column[first + places[0]]
                self._masks[part][missing] = False
                slots[missing] = self._padding[: len(missing)]
            batch = PolicyBatch(
                self._observations[part].reshape(size * num_agents, *self._observations.shape[2:]),
                self._rewards[part].reshape(-1),
                self._masks[part].reshape(-1),
                slots,
                (slots[:, None] * num_agents + self._agents).reshape(-1),
                self._seeds[part],
                self._steps[part],
            )
            yield batch, places[np.argsort(slots[places])]
            slots[:] = EMPTY
        self._counts, self.num = [0] * size, 0

    def chosen_actions(self, actions: Any, places: Array) -> Any:
        """Return the actions for the environments at these places. Raises ActionError for a wrong number of actions."""
        return _rows_of(actions, places, self._policy_batch, self._num_agents)


class BatchStage:
    """The rows of the last batch of a VecEnv, unchanged: those of episodes that are over as well.

    vec: the VecEnv. full: True, as the policy is called after each batch.
    """

    full = True

    def __init__(self, vec: VecEnv) -> None:
        self._num_envs, self._num_agents = vec.batch_size, vec.agents_per_env
        self._waiting: list[tuple[Batch, Array]] = []

    def add(self, batch: Batch, chosen: Array, steps: Array, seeds: Array) -> None:
        """Add a batch. chosen: bool (batch_size,), which of its environments wait. steps, seeds: ignored."""
        self._waiting.append((batch, np.flatnonzero(chosen)))

    def batches(self) -> Iterator[tuple[Batch, Array]]:
        """Yield the batch, and the places of the environments that wait in it, int64 (number,)."""
        while self._waiting:
            yield self._waiting.pop(0)

    def chosen_actions(self, actions: Any, places: Array) -> Any:
        """Return the actions for the environments at these places. Raises ActionError for a wrong number of actions."""
        if len(places) == self._num_envs:
            return actions
        return _rows_of(actions, places, self._num_envs, self._num_agents)


def _rows_of(actions: Any, places: Array, num_envs: int, num_agents: int) -> Any:
    """Return the actions for the environments at these places. Raises ActionError for a wrong number of actions."""
    if isinstance(actions, tuple):
        return tuple(_rows_of(part, places, num_envs, num_agents) for part in actions)
    expected = num_envs * num_agents
    actions = np.asarray(actions) if isinstance(actions, list) else actions
    shape = getattr(actions, "shape", None)
    if not shape or shape[0] != expected:
        raise ActionError(
            f"the policy returned {type(actions).__name__ if shape is None else f'actions of shape {tuple(shape)}'}"
            f" for {expected} rows; return one action for each row, also for those that fill the batch"
        )
    return actions[(places[:, None] * num_agents + np.arange(num_agents)).reshape(-1)]
