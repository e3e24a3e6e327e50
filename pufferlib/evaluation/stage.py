"""Stage: the rows that wait for the policy, as batches of one fixed size in which each episode has a fixed place.

``BatchStage`` instead has the VecEnv's own batches, for policies that can only play these.

A network's answer to a row depends in its last bits on the number of rows and, where the width of a layer is no
multiple of a vector register's, on the row's place among them. So the place is a function of the episode's seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pufferlib import _native
from pufferlib.errors import ActionError
from pufferlib.evaluation.policies import PolicyBatch
from pufferlib.util.annotations import Array
from pufferlib.vectorization import Batch, VecEnv

__all__ = ["BatchStage", "Stage"]

NO_LIMIT = 2**62  # steps


class Stage:
    """The rows that wait for the policy. A second episode with the same place waits in another layer, and so on.

    vec: the VecEnv. policy_batch: the number of environments in a batch. num: how many environments wait. episodes,
    seeds, steps, int64 (num_envs,), and returns, float64 (num_envs, agents_per_env): of each slot's episode; an episode
    is negative for none. max_steps: of an episode; None for no limit.
    """

    def __init__(
        self,
        vec: VecEnv,
        policy_batch: int,
        episodes: Array,
        seeds: Array,
        steps: Array,
        returns: Array,
        max_steps: int | None,
    ) -> None:
        self.num, self._policy_batch, self._num_used = 0, policy_batch, 0
        self._num_agents, self._layout = vec.agents_per_env, vec.observation_layout
        self._seeds, self._steps = seeds, steps
        self._of_slots = episodes, seeds, steps, returns
        self._max_steps = NO_LIMIT if max_steps is None else min(max_steps, NO_LIMIT)
        self._no_ids = vec.num_envs + np.arange(policy_batch)  # by place: the id of a slot that does not exist
        self._agents = np.arange(vec.agents_per_env)
        self._heights = np.zeros(policy_batch, np.int64)  # by place: in how many layers an environment waits
        self._keep(self._new_layers(1))

    @property
    def full(self) -> bool:
        """Whether the policy should be called before more rows are added."""
        return self.num >= self._policy_batch

    def _new_layers(self, num: int) -> PolicyBatch:
        size = num * self._policy_batch
        num_rows = size * self._num_agents
        return PolicyBatch(
            observations=np.zeros((num_rows, *self._layout.shape), self._layout.dtype),
            rewards=np.zeros(num_rows, np.float32),
            masks=np.zeros(num_rows, np.bool_),
            env_ids=np.tile(self._no_ids, num),
            agent_ids=np.zeros(num_rows, np.int64),
            seeds=np.zeros(size, np.int64),
            steps=np.ones(size, np.int64),
        )

    def _keep(self, rows: PolicyBatch) -> None:
        """Take arrays with the rows of all layers."""
        if self._num_agents == 1:
            rows = rows._replace(agent_ids=rows.env_ids)
        self._rows = rows
        num = len(rows.env_ids) // self._policy_batch
        self._layers = [PolicyBatch(*parts) for parts in zip(*(np.split(part, num) for part in rows), strict=True)]
        self._compiled: Any = None
        if _native.available:
            self._compiled = _native.staging.EpisodeRows(
                self._layers[0], self._heights, *self._of_slots, self._max_steps
            )

    def add_plain(self, batch: Batch) -> int:
        """Count the steps and returns of a batch and add its rows, if all its episodes go on; return the steps' number.

        Returns -1, having changed nothing, if one of them does not go on, or the compiled path cannot do it.
        """
        num_steps: int = -1 if self._compiled is None else self._compiled.add(batch)
        if num_steps >= 0:
            self.num += len(batch.env_ids)
        return num_steps

    def add(self, batch: Batch, chosen: Array) -> None:
        """Add the rows of the chosen environments of a batch, whose steps and returns have been counted.

        chosen: bool (batch_size,).
        """
        positions = np.flatnonzero(chosen)
        if not len(positions):
            return
        slots = batch.env_ids[positions]
        places = self._seeds[slots] % self._policy_batch
        order = places.argsort(kind="stable")
        ranks = np.empty_like(order)  # among the environments of this batch with the same place
        ranks[order] = np.arange(len(order)) - np.searchsorted(places[order], places[order])
        indices = (self._heights[places] + ranks) * self._policy_batch + places
        self._heights += np.bincount(places, minlength=self._policy_batch)
        num_missing = int(self._heights.max()) - len(self._layers)
        if num_missing > 0:
            both = zip(self._rows, self._new_layers(num_missing), strict=True)
            self._keep(PolicyBatch(*map(np.concatenate, both)))
        rows = self._rows
        for source, target in (
            (batch.observations, rows.observations),
            (batch.rewards, rows.rewards),
            (batch.masks, rows.masks),
        ):
            self._by_env(target)[indices] = self._by_env(source)[positions]
        rows.env_ids[indices], rows.seeds[indices], rows.steps[indices] = slots, self._seeds[slots], self._steps[slots]
        self.num += len(positions)

    def _by_env(self, column: Array) -> Array:
        """Return a view of rows, (environments, agents, …)."""
        return column.reshape(len(column) // self._num_agents, self._num_agents, *column.shape[1:])

    def batches(self) -> Iterator[tuple[PolicyBatch, Array]]:
        """Yield the padded batches and, for each, the places whose rows are real, int64 (number,), in order of slots.

        Afterwards, no row waits.
        """
        depth, num_left = 0, self.num
        while num_left:
            layer, count = self._layers[depth], int(np.count_nonzero(self._heights > depth))
            places = layer.env_ids.argsort()[:count]  # empty ones have higher ids
            if depth == self._num_used:  # from now on, what is left of earlier rows fills the empty places
                self._fill(layer, places)
                self._num_used += 1
            if self._num_agents > 1:
                layer.agent_ids[:] = (layer.env_ids[:, None] * self._num_agents + self._agents).reshape(-1)
            yield layer, places
            layer.env_ids[:], layer.masks[:], layer.steps[:] = self._no_ids, False, 1
            depth, num_left = depth + 1, num_left - count
        self._heights[:], self.num = 0, 0

    def _fill(self, layer: PolicyBatch, places: Array) -> None:
        """Copy the rows at the first of these places to all other places."""
        others = np.setdiff1d(np.arange(self._policy_batch), places)
        for column in (layer.observations, layer.rewards):
            self._by_env(column)[others] = self._by_env(column)[places[0]]
        layer.seeds[others] = layer.seeds[places[0]]

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

    def add_plain(self, batch: Batch) -> int:
        """Return -1: there is no compiled path that adds rows."""
        return -1

    def add(self, batch: Batch, chosen: Array) -> None:
        """Add a batch. chosen: bool (batch_size,), which of its environments wait."""
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
    if num_agents > 1:
        places = (places[:, None] * num_agents + np.arange(num_agents)).reshape(-1)
    return actions[places]
