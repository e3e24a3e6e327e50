"""Batches: finished rows as the learner sees them, by view where they are neighbours, else gathered once."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from pufferlib.vectorization.plan import Plan
from pufferlib.vectorization.slab import LAPS, Slab

__all__ = ["Batch", "Batches"]

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, Array, Array, Array, Array]  # observations, rewards, terminations, truncations, masks


class Batch(NamedTuple):
    """What ``recv`` returns: the rows of ``batch_size`` environments, ``agents_per_env`` each.

    The arrays are valid until the second ``recv`` after this one (for good with ``copy=True``); treat them as
    read-only.
    """

    observations: Array  # (rows, *single_observation_space.shape)
    rewards: Array  # (rows,) float32
    terminations: Array  # (rows,) bool: the agent's life ended
    truncations: Array  # (rows,) bool: the agent was cut off
    infos: list[dict[str, Any]]  # those not empty, each with its env_id, and its agent_id where it is one agent's
    env_ids: Array  # (batch_size,) int64
    agent_ids: Array  # (rows,) int64: env_id * agents_per_env + place
    masks: Array  # (rows,) bool: the transition into this row is real and counts


class Batches:
    """Makes batches out of the slab, and knows for how long they are valid."""

    def __init__(self, slab: Slab, plan: Plan, *, copy: bool, debug: bool) -> None:
        shape = slab.shape
        self._columns = (slab.observations, slab.rewards, slab.terminations, slab.truncations, slab.masks)
        self._num_envs, self._agents_per_env = shape.num_envs, shape.agents_per_env
        self._synchronous = plan.synchronous
        self._copy = copy
        self._debug = debug
        self._leased: deque[Arrays] = deque()
        num_rows = plan.batch_size * shape.agents_per_env
        self._own: deque[Arrays] = deque()  # what gathers fill in turn, one more than the learner holds
        if not plan.synchronous:
            for _ in range(LAPS):
                observations, *rest = (np.zeros((num_rows, *array.shape[2:]), array.dtype) for array in self._columns)
                self._own.append((observations, *rest))  # type: ignore[arg-type]
        self._env_ids = _frozen(np.arange(shape.num_envs))
        self._agent_ids = _frozen(np.arange(shape.num_envs * shape.agents_per_env))

    def take(self, env_ids: list[int], laps: list[int]) -> Arrays:
        """Return (observations, rewards, terminations, truncations, masks) of the rows in these environments' laps."""
        first, num, n = env_ids[0], len(env_ids), self._agents_per_env
        lap = laps[first]
        arrays: Arrays
        if self._synchronous or (
            env_ids == list(range(first, first + num)) and all(laps[env_id] == lap for env_id in env_ids)
        ):
            place = slice(first * n, (first + num) * n)
            arrays = tuple(array[lap, place] for array in self._columns)  # type: ignore[assignment]
        else:
            index = [laps[env_id] * self._num_envs + env_id for env_id in env_ids]
            arrays = self._own[0]
            self._own.rotate(-1)
            for source, target in zip(self._columns, arrays, strict=True):
                rows = source.reshape(LAPS * self._num_envs, n, *source.shape[2:])
                np.take(rows, index, axis=0, out=target.reshape(num, n, *target.shape[1:]), mode="clip")
        if self._copy:
            return tuple(array.copy() for array in arrays)  # type: ignore[return-value]
        if self._debug:
            self._leased.append(arrays)
            if len(self._leased) == LAPS:
                _poison(self._leased.popleft())
        return arrays

    def ids(self, env_ids: list[int]) -> tuple[Array, Array]:
        """Return (env_ids, agent_ids) of a batch of these environments."""
        if self._synchronous:
            return self._env_ids, self._agent_ids
        index = np.array(env_ids)
        return index, self._agent_ids.reshape(-1, self._agents_per_env)[index].reshape(-1)


def _poison(arrays: Arrays) -> None:
    """Fill a batch that has expired, so that who still reads it sees NaN, or absurd numbers."""
    for array in arrays:
        if array.dtype == np.bool_:
            array[...] = True
        elif np.issubdtype(array.dtype, np.inexact):
            array[...] = np.nan
        else:
            array[...] = np.frombuffer(b"\xcb" * array.itemsize, array.dtype)[0]


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array
