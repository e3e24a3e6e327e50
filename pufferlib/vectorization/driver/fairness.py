"""RowWeights and Quota, for ``make(fair=…)`` in a pool, where batches hold the first environments to finish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pufferlib.errors import CallError
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.batch import Batch, WeightedBatch
from pufferlib.vectorization.core.call_errors import FLYING, READY
from pufferlib.vectorization.core.plan import Plan
from pufferlib.vectorization.core.tensors import Tensors
from pufferlib.vectorization.driver.scheduler import Scheduler
from pufferlib.vectorization.driver.workers import Workers

if TYPE_CHECKING:
    from pufferlib._native.fast_path import FastPath

__all__ = ["Quota", "RowWeights", "WeightedPath"]


class RowWeights:
    """The weights of rows, which undo that fast environments deliver more rows than slow ones.

    A row's weight is the mean number of rows of all environments, divided by the number of rows of its own. Both count
    the batches received since the VecEnv was made, the present one included; resets do not clear them. So in the long
    run the rows of each environment have the same total weight, and where speed changes from episode to episode, the
    numbers, and with them the weights, become equal.

    first_finished: whether batches hold the first environments to finish. If not, every environment gets its turn, and
    all weights are 1. tensors: as for ``Batches``; the weights are of the same kind as the batch.
    """

    def __init__(self, plan: Plan, agents_per_env: int, *, first_finished: bool, tensors: Tensors | None) -> None:
        self._num_rows: Array | None = np.zeros(plan.num_envs, np.int64) if first_finished else None
        self._total = 0
        self._ones: Array = np.ones(plan.batch_size * agents_per_env, np.float32)
        self._agents_per_env, self._tensors = agents_per_env, tensors
        self._converted_ones = self._converted(self._ones)
        self.batch: WeightedBatch | None = None  # the last one
        self.host: Array = self._ones  # its weights as an array

    def weigh(self, batch: Batch, env_ids: Sequence[int]) -> WeightedBatch:
        """Count the rows of a batch, once, and return the batch with their weights. env_ids: its environments."""
        if self._num_rows is None:
            weights = self._converted_ones
        else:
            ids = np.array(env_ids)
            num_rows = self._num_rows[ids] + 1  # a batch has an environment once
            self._num_rows[ids] = num_rows
            self._total += len(ids)
            of_envs = np.divide(self._total / len(self._num_rows), num_rows, dtype=np.float32)
            self.host = of_envs if self._agents_per_env == 1 else of_envs.repeat(self._agents_per_env)
            weights = self._converted(self.host)
        self.batch = WeightedBatch.weighted(batch, weights)
        return self.batch

    def _converted(self, weights: Array) -> Array:
        # The fields of a Batch are annotated as arrays, also where they are tensors.
        return weights if self._tensors is None else self._tensors.on_device(weights)  # type: ignore[return-value]


class WeightedPath:
    """A FastPath whose batches get weights."""

    def __init__(self, fast_path: FastPath, weights: RowWeights) -> None:
        self._fast_path, self._weights = fast_path, weights
        self.send, self.is_full = fast_path.send, fast_path.is_full

    @property
    def half_done(self) -> bool:
        return self._fast_path.half_done

    @property
    def clear(self) -> bool:
        return self._fast_path.clear

    def recv(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None, as ``FastPath.recv`` does."""
        batch = self._fast_path.recv(timeout_s)
        return None if batch is None else self._weights.weigh(batch, self._fast_path.last_ids or ())


class Quota:
    """A bound on how many rows an environment may be ahead of the slowest.

    The next action of an environment that is ``num_rows`` ahead is withheld from its worker until the slowest has
    finished another row; to the scheduler, the environment is in flight. Send and recv pass on withheld actions. Every
    row counts, also those of resets and crashes, since the last reset of all environments.

    It cannot block: the slowest environment's row has arrived before those of the environments that are ahead of it,
    and batches take rows in the order of arrival, so it is received, and its environment gets its next action, before
    these could fill all batches. Resets are not withheld, so they can take environments further ahead; if then a batch
    lacks rows, and the slowest environment has finished its own, those that are least ahead go on.
    """

    def __init__(self, workers: Workers, scheduler: Scheduler, plan: Plan, num_rows: int) -> None:
        self._workers, self._scheduler, self._num_rows = workers, scheduler, num_rows
        self._batch_size = plan.batch_size
        self._begun: Array = np.zeros(plan.num_envs, np.int64)  # rows that each environment was asked for
        self._slots: dict[int, int] = {}  # of environments whose action is withheld
        scheduler.withheld = self._slots.keys()

    def step(self, env_ids: Sequence[int], slots: Sequence[int]) -> None:
        """Start a step of these environments, as ``Workers.step`` does, at once or once the quota allows it."""
        self._slots.update(zip(env_ids, slots, strict=True))
        self.release(waits=False)

    def count(self, env_ids: Sequence[int]) -> None:
        """Count a row of environments that was asked for elsewhere, such as that of a reset."""
        self._begun[env_ids] += 1

    def release(self, *, waits: bool = True) -> bool:
        """Pass on the withheld actions that the quota allows; return whether others remain.

        waits: whether the caller waits for a batch. Raises CallError if others could then never be passed on while the
        batch needs them: environments that wait for an action, or have failed, hold them back.
        """
        if not self._slots:
            return False
        flying = set(self._scheduler.in_flight)  # first: it refreshes the states
        lost = [env_id for env_id in self._slots if env_id not in flying]
        for env_id in lost:  # a crash row has answered the action, or the environment has failed
            del self._slots[env_id]
        self.count(lost)
        begun = flying.difference(self._slots)
        finished = self._begun.copy()
        finished[list(begun)] -= 1
        least = finished.min()
        allowed = [env_id for env_id in self._slots if finished[env_id] - least < self._num_rows]
        if allowed:
            self._begin(allowed)
        elif waits and self._slots and not begun and (num_lacking := self._batch_size - self._scheduler.num_ready) > 0:
            slowest, states = np.flatnonzero(finished == least).tolist(), self._scheduler.states
            if any(states[env_id] != READY for env_id in slowest):
                raise CallError(
                    f"recv could never return: fair={self._num_rows} lets environments {sorted(self._slots)} get no "
                    f"further ahead of environments {slowest}, which have no action; send them one, or reset all"
                )
            self._begin(sorted(self._slots, key=lambda env_id: finished[env_id])[:num_lacking])
        return bool(self._slots)

    def restart(self) -> None:
        """Pass on all withheld actions, and count from zero: all environments are about to be reset."""
        states = self._scheduler.states
        self._begin([env_id for env_id in self._slots if states[env_id] == FLYING])
        self._slots.clear()
        self._begun[:] = 0

    def _begin(self, env_ids: list[int]) -> None:
        if env_ids:
            self._workers.step(env_ids, [self._slots.pop(env_id) for env_id in env_ids])
            self._begun[env_ids] += 1
