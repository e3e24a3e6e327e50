"""The batches of finished rows that the learner receives: views of contiguous slots, or gathered copies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.infos import Infos
from pufferlib.vectorization.core.plan import Plan
from pufferlib.vectorization.core.slab import NUM_BUFFERS, Slab
from pufferlib.vectorization.core.tensors import Tensors

if TYPE_CHECKING:
    from pufferlib.vectorization.core.tensors import Tensor

__all__ = ["IDS", "Batch", "Batches", "WeightedBatch", "poison"]

Arrays = tuple[Array, ...]  # observations, rewards, terminations, truncations, env_ids, agent_ids, masks
IDS = (4, 5)


class Batch(NamedTuple):
    """The result of ``recv``: the rows of ``batch_size`` environments, ``agents_per_env`` rows each.

    With ``as_torch`` or ``device``, all fields except ``infos`` are torch tensors instead of arrays. Arrays and tensors
    are valid until the second ``recv`` after the one that returned them, and must not be written. Storing them into a
    rollout buffer copies them anyway. To keep the Batch itself, pass ``copy=True`` to ``make``; otherwise later rows
    overwrite it.
    """

    observations: Array  # (rows, *single_observation_space.shape)
    rewards: Array  # (rows,) float32
    terminations: Array  # (rows,) bool: the agent reached a terminal state
    truncations: Array  # (rows,) bool: the episode was cut off
    infos: Infos  # the non-empty infos, each with its env_id, and with an agent_id if it belongs to one agent
    env_ids: Array  # (batch_size,) int64
    agent_ids: Array  # (rows,) int64: env_id * agents_per_env + agent index
    masks: Array  # (rows,) bool: True if the row ends a transition of an agent, to train on

    @classmethod
    def of(cls, arrays: Arrays, infos: Infos) -> Batch:
        """Return a Batch of arrays and infos. arrays: one per field other than infos, in the order of the fields."""
        observations, rewards, terminations, truncations, env_ids, agent_ids, masks = arrays
        return cls(observations, rewards, terminations, truncations, infos, env_ids, agent_ids, masks)

    @property
    def weights(self) -> Array | None:
        """The rows' weights, (rows,) float32, with ``make(fair="weights")``; else None. They stay valid.

        A weight is the mean number of rows that environments have delivered so far, divided by that of the row's own
        environment. Weighted by it, rows are as if all environments were equally fast.
        """
        return None


class WeightedBatch(Batch):
    """A Batch of a VecEnv that was made with ``fair="weights"``."""

    _weights: Array

    @classmethod
    def weighted(cls, batch: Batch, weights: Array) -> WeightedBatch:
        """Return a batch with weights."""
        weighted = cls._make(batch)
        weighted._weights = weights
        return weighted

    @property
    def weights(self) -> Array:
        return self._weights


class Batches:
    """The batches that a slab lends to the learner, with the leases that keep them valid.

    copy: whether batches are copies, which stay valid. debug: whether a batch is overwritten when its lease ends.
    tensors: the Tensors that makes batches of tensors; None for arrays.
    """

    def __init__(self, slab: Slab, plan: Plan, *, copy: bool, debug: bool, tensors: Tensors | None) -> None:
        shape = slab.shape
        columns = (
            slab.observations,
            slab.rewards,
            slab.terminations,
            slab.truncations,
            slab.env_ids,
            slab.agent_ids,
            slab.masks,
        )
        self._slots = [
            column.reshape(shape.num_slots, column.shape[1] // shape.block_size, *column.shape[2:])
            for column in columns
        ]
        self.slab, self.copies, self._debug, self.tensors = slab, copy, debug, tensors
        self._leased: deque[tuple[Hashable, Arrays]] = deque()
        self.host: Arrays = ()  # the arrays lent last, before they became tensors; not in the plain case
        self.blocks: list[Arrays] = [tuple(column[block] for column in columns) for block in range(shape.num_blocks)]
        if shape.block_size == shape.num_envs:  # ids never change: ``Tensors`` copies read-only arrays only once
            for arrays in self.blocks:
                for index in IDS:
                    arrays[index].flags.writeable = False
        # The plain case: each time, a block is lent as the same arrays, or as a copy of them, and no lease is recorded.
        self.plain = not debug and (tensors is None or tensors.device.type == "cpu")
        self.lent = self.blocks
        if tensors is not None and self.plain:
            # The fields of a Batch are annotated as arrays, also where they are tensors.
            self.lent = [
                tensors.views(block, arrays)  # type: ignore[misc]
                for block, arrays in enumerate(self.blocks)
            ]
        # In the plain case: copies an array or tensor.
        self.copier: Callable[[Array], Array] | Callable[[Tensor], Tensor] | None = None
        if copy and self.plain:
            self.copier = np.ndarray.copy if tensors is None else tensors.clone
        # By the id of a lent block's observations, the block's arrays. They are the same objects each time.
        self.arrays_of = {id(lent[0]): arrays for lent, arrays in zip(self.lent, self.blocks, strict=True)}
        num_rows = plan.batch_size * shape.agents_per_env
        self._buffer_index = 0
        self._gathers: deque[Arrays] = deque()  # targets of gathers, used in rotation; one more than the learner holds
        if shape.block_size != plan.batch_size:
            for _ in range(NUM_BUFFERS):
                self._gathers.append(
                    tuple(
                        np.zeros(
                            (plan.batch_size if column is slab.env_ids else num_rows, *column.shape[2:]), column.dtype
                        )
                        for column in columns
                    )
                )

    def gather(self, slots: list[int]) -> tuple[Hashable, Arrays]:
        """Return (key, arrays) for the rows in these slots: views of contiguous slots, or else a gathered copy.

        key: an identifier of the arrays' memory.
        """
        first, num = slots[0], len(slots)
        if slots == list(range(first, first + num)):
            return (first, num), tuple(
                column[first : first + num].reshape(num * column.shape[1], *column.shape[2:]) for column in self._slots
            )
        arrays = self._gathers[0]
        self._gathers.rotate(-1)
        self._buffer_index = (self._buffer_index + 1) % NUM_BUFFERS
        for source, target in zip(self._slots, arrays, strict=True):
            np.take(source, slots, axis=0, out=target.reshape(num, *source.shape[1:]), mode="clip")
        return self._buffer_index, arrays

    def lend(self, key: Hashable, arrays: Arrays) -> Arrays:
        """Lease a key's arrays to the learner, and return them, as tensors or copies if so configured.

        Once NUM_BUFFERS batches are leased, the oldest lease ends.
        """
        self._leased.append((key, arrays))
        self.host = arrays
        if len(self._leased) == NUM_BUFFERS:
            old_key, expired = self._leased.popleft()
            if self.tensors is not None:
                self.tensors.finish(old_key)
            if self._debug:
                poison(expired)
        if self.tensors is not None:
            return self.tensors.of(key, arrays)  # type: ignore[return-value]  # as in ``lent``
        return tuple(array.copy() for array in arrays) if self.copies else arrays


def poison(arrays: Arrays) -> None:
    """Overwrite an expired batch, apart from its ids, so that a late read is noticed.

    The new values are NaN for floats, True for bools, and an absurd number for ints.
    """
    for index, array in enumerate(arrays):
        if index in IDS:  # ids are left unchanged
            continue
        if array.dtype == np.bool_:
            array[...] = True
        elif np.issubdtype(array.dtype, np.inexact):
            array[...] = np.nan
        else:
            array[...] = np.frombuffer(b"\xcb" * array.itemsize, array.dtype)[0]
