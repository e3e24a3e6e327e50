"""The slab: every array that environments and learner share, in one piece of memory.

Each environment owns one row set in each of three laps. Its n-th rows go to lap n % 3, and it steps again only after
they have been received. So what ``recv`` returned stays intact until the second ``recv`` after it, however the
environments interleave: its own lap comes round no earlier. When all environments of a batch are neighbours in one
lap, the batch is a view of it; otherwise the rows are gathered once.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from pufferlib.emulation.rows import Rows
from pufferlib.errors import PlatformError

__all__ = ["LAPS", "Slab", "SlabShape"]

LAPS = 3  # two batches with the learner, and one outstanding row an environment
_LINE_NBYTES = 64  # arrays start on cache lines, so that no two share one

Array = np.ndarray[Any, Any]
Column = tuple[tuple[int, ...], str]  # shape and dtype string of one row


@dataclass(frozen=True)
class SlabShape:
    """What the slab holds; the same value on both sides of a process boundary. Row shapes and dtypes, and counts."""

    num_envs: int
    agents_per_env: int
    observation: Column
    actions: tuple[Column, ...]  # one array a component of the action space
    reward_dtype: str = "float32"

    def arrays(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return the full shape and dtype of each array, in order of their addresses."""
        num_rows = self.num_envs * self.agents_per_env
        shape, dtype = self.observation
        arrays = {"observations": ((LAPS, num_rows, *shape), np.dtype(dtype))}
        arrays["rewards"] = ((LAPS, num_rows), np.dtype(self.reward_dtype))
        for name in ("terminations", "truncations", "masks"):
            arrays[name] = ((LAPS, num_rows), np.dtype(np.bool_))
        for index, (shape, dtype) in enumerate(self.actions):
            arrays[f"actions{index}"] = ((num_rows, *shape), np.dtype(dtype))
        return arrays


class Slab:
    """The arrays of a SlabShape in private memory, or in memory shared by descriptor.

    ``observations, rewards, terminations, truncations, masks``: (LAPS, num_envs * agents_per_env, …);
    ``actions``: a tuple of arrays (num_envs * agents_per_env, …), one a component of the action space.
    """

    observations: Array
    rewards: Array
    terminations: Array
    truncations: Array
    masks: Array

    def __init__(self, shape: SlabShape, buffer: Any, fd: int | None = None) -> None:
        self.shape = shape
        self.fd = fd
        self._rows: dict[tuple[int, int], Rows] = {}
        offset = 0
        actions = []
        for name, (array_shape, dtype) in shape.arrays().items():
            count = int(np.prod(array_shape))
            array = np.frombuffer(buffer, dtype, count, offset).reshape(array_shape)
            offset = _aligned(offset + array.nbytes)
            if name.startswith("actions"):
                actions.append(array)
            else:
                setattr(self, name, array)
        self.actions = tuple(actions)

    @classmethod
    def private(cls, shape: SlabShape) -> Slab:
        """Return a slab for environments that run in this process."""
        return cls(shape, np.zeros(_nbytes(shape), np.uint8))

    @classmethod
    def shared(cls, shape: SlabShape) -> Slab:
        """Return a slab whose ``fd`` other processes can attach to. Raises PlatformError if memory is not to be had.

        The memory has no name, so nothing is left behind however the processes end, and a container's small
        /dev/shm does not limit it: a memfd on Linux, an unlinked temporary file elsewhere.
        """
        nbytes = _nbytes(shape)
        try:
            if hasattr(os, "memfd_create"):
                fd = os.memfd_create("pufferlib", os.MFD_CLOEXEC)
            else:
                with tempfile.TemporaryFile(prefix="pufferlib") as file:
                    fd = os.dup(file.fileno())
            try:
                os.ftruncate(fd, nbytes)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(fd, 0, nbytes)  # fail here, with a message, rather than by SIGBUS at a store
                return cls(shape, mmap.mmap(fd, nbytes), fd)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise PlatformError(
                error.errno,
                f"{nbytes / 2**20:.0f} MiB of shared memory for {shape.num_envs} environments are not to be had "
                f"({error.strerror}); use fewer environments or smaller observations, or raise the memory limit",
            ) from error

    @classmethod
    def attach(cls, shape: SlabShape, fd: int) -> Slab:
        """Return the slab behind a descriptor, which may be closed afterwards."""
        return cls(shape, mmap.mmap(fd, _nbytes(shape)))

    def rows(self, env_id: int, lap: int) -> Rows:
        """Return where an environment writes in a lap; made once, as views cost more than stores."""
        rows = self._rows.get((env_id, lap))
        if rows is None:
            place = self.places(env_id)
            observations = self.observations[lap, place]
            rows = self._rows[env_id, lap] = Rows(
                observations,
                self.rewards[lap, place],
                self.terminations[lap, place],
                self.truncations[lap, place],
                self.masks[lap, place],
                tuple(observations[index, ...] for index in range(self.shape.agents_per_env)),
            )
        return rows

    def places(self, env_id: int) -> slice:
        """Return the rows of an environment."""
        agents_per_env = self.shape.agents_per_env
        return slice(env_id * agents_per_env, (env_id + 1) * agents_per_env)

    def action(self, env_id: int) -> Any:
        """Return an environment's actions: a view (agents_per_env, …), or a tuple of them for a Tuple space."""
        views = tuple(array[self.places(env_id)] for array in self.actions)
        return views[0] if len(views) == 1 else views

    def close(self) -> None:
        """Close the descriptor. The memory goes when the last array that lies in it does."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def _aligned(offset: int) -> int:
    return -(-offset // _LINE_NBYTES) * _LINE_NBYTES


def _nbytes(shape: SlabShape) -> int:
    return max(
        _LINE_NBYTES,
        sum(_aligned(int(np.prod(array_shape)) * dtype.itemsize) for array_shape, dtype in shape.arrays().values()),
    )
