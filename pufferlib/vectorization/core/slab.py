"""The slab: every array that environments and learner share, in one piece of memory.

The rows lie in blocks of slots. A slot holds one environment's rows, and blocks are reused in rotation.

On the compiled path, which uses the ring, a block is one batch, and every batch is a view of one block. There are
ceil(num_envs / batch_size) + 2 blocks: two that the learner may still read, and enough for the outstanding rows of
every environment.

On the portable path, which works without the ring, there are three blocks, called buffers, with num_envs slots each. An
environment writes its n-th rows to its slot of buffer n % 3, and steps again only after these rows have been received.
A batch is a view if its environments are contiguous in one buffer; otherwise its rows are gathered with one copy.

On both paths, a batch stays intact until the second ``recv`` after the one that returned it. With synchronous batches,
both paths have the same memory layout.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import gymnasium
import numpy as np

from pufferlib import _native
from pufferlib.emulation.rows import Rows
from pufferlib.errors import PlatformError
from pufferlib.telemetry import timeline
from pufferlib.util.annotations import Array, DType, RowActions
from pufferlib.util.memory import memory_at_hand, memory_text
from pufferlib.vectorization.core.plan import Plan

if TYPE_CHECKING:
    from pufferlib._native.ring import Ring

__all__ = ["NUM_BUFFERS", "Slab", "SlabShape", "ring_of"]

NUM_BUFFERS = 3  # two batches that the learner reads, and one outstanding row per environment
_CONTROL_WORDS = 64
_PIPE_NBYTES = 1 << 16  # for one worker's infos not received yet; any more go through its socket
_LINE_NBYTES = 64  # arrays start on cache lines, so that no two share one

_SHM = "/dev/shm"  # files in memory, on Linux
_WAYS_OUT = {
    errno.EFBIG: "or raise the limit on the size of files (ulimit -f), which counts shared memory",
    errno.EMFILE: "or raise the limit on open files (ulimit -n)",
    errno.ENFILE: "or raise the system's limit on open files (fs.file-max)",
    errno.ENOSPC: "or make room there, or set TMPDIR to a folder that has some",
}

Column = tuple[tuple[int, ...], str]  # shape and dtype string of one row


@dataclass(frozen=True)
class SlabShape:
    """The row shapes, dtypes and counts of a slab: all that another process needs to attach to it, except the fd."""

    num_envs: int
    agents_per_env: int
    observation: Column
    actions: tuple[Column, ...]  # one per component of the action space
    reward_dtype: str
    num_blocks: int
    block_size: int  # slots in a block
    num_workers: int
    ring_nbytes: int = 0  # 0 on the portable path
    telemetry: bool = True  # whether times are recorded
    first_env: int = 0  # the lowest env id, as for Plan

    @classmethod
    def of(
        cls,
        plan: Plan,
        agents_per_env: int,
        observation_space: gymnasium.Space[object],
        action_spaces: Sequence[gymnasium.Space[object]],
        *,
        reward_dtype: str,
        num_workers: int,
        telemetry: bool,
        compiled: bool,
    ) -> SlabShape:
        """Return the slab shape for a plan: blocks are batches on the compiled path, buffers on the portable path."""
        shape = cls(
            plan.num_envs,
            agents_per_env,
            _column(observation_space),
            tuple(_column(space) for space in action_spaces),
            reward_dtype,
            num_blocks=NUM_BUFFERS,
            block_size=plan.num_envs,
            num_workers=num_workers,
            telemetry=telemetry,
            first_env=plan.first_env,
        )
        if not compiled:
            return shape
        shape = replace(shape, num_blocks=-(-plan.num_envs // plan.batch_size) + 2, block_size=plan.batch_size)
        return replace(shape, ring_nbytes=_native.ring.Ring.nbytes(*_ring_counts(shape)))

    @property
    def num_slots(self) -> int:
        """The number of slots."""
        return self.num_blocks * self.block_size

    @property
    def env_ids(self) -> range:
        """The ids of the slab's environments."""
        return range(self.first_env, self.first_env + self.num_envs)

    @property
    def num_ids(self) -> int:
        """The length of arrays indexed by env id: the highest id plus one. Elements below first_env are unused."""
        return self.first_env + self.num_envs

    def arrays(self) -> dict[str, tuple[tuple[int, ...], DType]]:
        """Return the full shape and dtype of each array, keyed by name, in the order of the arrays in memory."""
        block_rows = self.block_size * self.agents_per_env
        shape, dtype = self.observation
        arrays = {"observations": ((self.num_blocks, block_rows, *shape), np.dtype(dtype))}
        arrays["rewards"] = ((self.num_blocks, block_rows), np.dtype(self.reward_dtype))
        for name in ("terminations", "truncations", "masks"):
            arrays[name] = ((self.num_blocks, block_rows), np.dtype(np.bool_))
        arrays["env_ids"] = ((self.num_blocks, self.block_size), np.dtype(np.int64))
        arrays["agent_ids"] = ((self.num_blocks, block_rows), np.dtype(np.int64))
        num_compiled = self.num_blocks if self.ring_nbytes else 0
        arrays["episodes"] = ((num_compiled, self.block_size, 3), np.dtype(np.float64))
        for index, (shape, dtype) in enumerate(self.actions):
            arrays[f"actions{index}"] = ((self.num_ids * self.agents_per_env, *shape), np.dtype(dtype))
        arrays.update(timeline.shared_arrays(self.num_envs, self.num_workers))
        arrays["doing"] = ((self.num_workers, _LINE_NBYTES // 8), np.dtype(np.int64))
        arrays["ring"] = ((self.ring_nbytes,), np.dtype(np.uint8))
        return arrays


class Slab:
    """The arrays of a SlabShape, in private memory or in memory shared through a descriptor.

    - ``observations, rewards, terminations, truncations, agent_ids, masks``: (num_blocks, block_size * agents_per_env,
      …).
    - ``env_ids``: (num_blocks, block_size).
    - ``actions``: a tuple of arrays (num_ids * agents_per_env, …), one per component of the action space.
    - ``times, histogram, worker_times``: see telemetry/timeline.py.
    - ``doing``: int64 (num_workers, 8). Element 0 of a worker's row, which fills one cache line, is the worker's
      activity word (step_watchdog.py).
    - ``ring``: the bytes of the Ring; empty on the portable path.
    - ``episodes``: float64 (num_blocks, block_size, 3); empty on the portable path. For an environment with one agent
      whose info holds nothing else, the return, length and seconds of the episode that ended in a slot.
    """

    observations: Array
    rewards: Array
    terminations: Array
    truncations: Array
    masks: Array
    env_ids: Array
    agent_ids: Array
    times: Array
    histogram: Array
    worker_times: Array
    doing: Array
    episodes: Array
    ring: Array

    def __init__(self, shape: SlabShape, buffer: Array | mmap.mmap, fd: int | None = None) -> None:
        self.shape = shape
        self.memory = buffer  # of all arrays
        self.fd = fd
        self._rows: dict[int, Rows] = {}
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
        """Return a slab for environments that run in this process. Raises PlatformError if memory is insufficient."""
        nbytes = _nbytes(shape)
        try:
            _require_memory(nbytes)
            return cls(shape, np.zeros(nbytes, np.uint8))
        except OSError as error:
            raise _allocation_error(shape, "memory", error) from error

    @classmethod
    def shared(cls, shape: SlabShape) -> Slab:
        """Return a slab whose ``fd`` other processes can attach to. Raises PlatformError if memory is insufficient.

        The memory has no name, so it is freed no matter how the processes end. On Linux it is a memfd, which a
        container's small /dev/shm does not limit; elsewhere it is an unlinked temporary file. If Linux refuses a memfd,
        it is an unlinked file in /dev/shm or, if /dev/shm has no room, in the temporary folder, and a RuntimeWarning is
        issued.
        """
        nbytes = _nbytes(shape)
        try:
            _require_memory(nbytes)
            fd = _shared_fd(nbytes)
            try:
                return cls(shape, mmap.mmap(fd, nbytes), fd)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise _allocation_error(shape, "shared memory", error) from error

    @classmethod
    def attach(cls, shape: SlabShape, fd: int) -> Slab:
        """Return a slab over the memory behind a descriptor. The caller may close the descriptor afterwards."""
        return cls(shape, mmap.mmap(fd, _nbytes(shape)))

    def rows(self, slot: int) -> Rows:
        """Return views of a slot's rows, cached because making views costs more than storing a row."""
        rows = self._rows.get(slot)
        if rows is None:
            agents_per_env = self.shape.agents_per_env
            interval = slice(slot * agents_per_env, (slot + 1) * agents_per_env)
            observations = _joined(self.observations)[interval]
            rows = self._rows[slot] = Rows(
                observations,
                _joined(self.rewards)[interval],
                _joined(self.terminations)[interval],
                _joined(self.truncations)[interval],
                _joined(self.masks)[interval],
                tuple(observations[index, ...] for index in range(agents_per_env)),
            )
        return rows

    @property
    def timing_arrays(self) -> dict[str, Array]:
        """The ``shared_arrays`` of telemetry/timeline.py, by name."""
        return {"times": self.times, "histogram": self.histogram, "worker_times": self.worker_times}

    def name_rows(self) -> None:
        """Fill in env_ids and agent_ids once, for blocks whose slot i always belongs to the i-th environment."""
        env_ids, agents_per_env = self.shape.env_ids, self.shape.agents_per_env
        self.env_ids[...] = env_ids
        self.agent_ids[...] = range(env_ids.start * agents_per_env, env_ids.stop * agents_per_env)

    def action(self, env_id: int) -> RowActions:
        """Return an environment's actions: a view (agents_per_env, …), or a tuple of views for a Tuple space."""
        agents_per_env = self.shape.agents_per_env
        views = tuple(array[env_id * agents_per_env : (env_id + 1) * agents_per_env] for array in self.actions)
        return views[0] if len(views) == 1 else views

    @property
    def actions_by_env(self) -> list[Array]:
        """The arrays of actions, each (num_ids, agents_per_env, …)."""
        shape = self.shape
        return [array.reshape(shape.num_ids, shape.agents_per_env, *array.shape[1:]) for array in self.actions]

    def close(self) -> None:
        """Close the descriptor. The memory is freed with the last array that uses it."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def _require_memory(nbytes: int) -> None:
    """Raise OSError if ``nbytes`` bytes are not available.

    Without this check, the system would grant the memory, and kill the process later. For less than a mebibyte, nothing
    is checked, because the check takes a millisecond in each worker.
    """
    if nbytes < 2**20:
        return
    at_hand = memory_at_hand()
    if nbytes > at_hand:
        raise OSError(errno.ENOMEM, f"{memory_text(at_hand)} are available")


def _allocation_error(shape: SlabShape, what: str, error: OSError) -> PlatformError:
    nbytes = _nbytes(shape)
    size = memory_text(nbytes) if nbytes >= 2**30 else f"{nbytes / 2**20:.3g} MiB"
    way_out = _WAYS_OUT.get(error.errno or 0, "or raise the memory limit")
    where = f"; {error.filename}" if error.filename else ""
    return PlatformError(
        error.errno,
        f"could not allocate {size} of {what} for {shape.num_envs} environments "
        f"({error.strerror}{where}); use fewer environments or smaller observations, {way_out}",
    )


def _shared_fd(nbytes: int) -> int:
    """Return a descriptor for nbytes of unnamed memory, or for an unnamed file of that size (see ``Slab.shared``).

    Issues a RuntimeWarning if a file is used on Linux, because a memfd is refused or not supported.
    """
    refused = ""
    if hasattr(os, "memfd_create"):
        try:
            fd = os.memfd_create("pufferlib", os.MFD_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EINVAL):  # the error in sandboxes
                raise
            refused = f"memfd_create is refused here ({error.strerror})"
        else:
            _fill(fd, nbytes)
            return fd
    elif sys.platform == "linux":
        refused = "this Python was built without memfd_create"
    folders = [tempfile.gettempdir()]
    if refused and os.access(_SHM, os.W_OK | os.X_OK):
        folders.insert(0, _SHM)
    for folder in folders:
        with tempfile.TemporaryFile(prefix="pufferlib", dir=folder) as file:
            fd = os.dup(file.fileno())
        try:
            _fill(fd, nbytes)
        except OSError as error:
            if folder != folders[-1] and error.errno in (errno.ENOSPC, errno.EDQUOT):
                refused += f" and {folder} has no room for {nbytes / 2**20:.3g} MiB"
                continue
            error.filename = folder
            raise
        if refused:
            slow = "" if folder == _SHM else ", which is slow if that is on a disk; set TMPDIR to a folder in memory"
            warnings.warn(
                f"{refused}: environments and learner share a file in {folder}{slow}", RuntimeWarning, stacklevel=2
            )
        return fd
    raise AssertionError("the last folder's error is raised")


def _fill(fd: int, nbytes: int) -> None:
    """Set the size of the file behind a descriptor and allocate its memory.

    If this fails, closes the descriptor and raises OSError.
    """
    try:
        os.ftruncate(fd, nbytes)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, nbytes)  # fail here, with a message, rather than by SIGBUS at a store
    except BaseException:
        os.close(fd)
        raise


def ring_of(slab: Slab) -> Ring | None:
    """Return a new Ring over a slab's ``ring`` bytes, for use in this process, or None on the portable path."""
    return _native.ring.Ring(slab.ring, *_ring_counts(slab.shape)) if slab.shape.ring_nbytes else None


def _ring_counts(shape: SlabShape) -> tuple[int, int, int, int, int]:
    # A mailbox holds one request for each environment of the largest share, and some control requests.
    box_size = 1 << (-(-shape.num_envs // shape.num_workers) + _CONTROL_WORDS - 1).bit_length()
    return shape.num_blocks, shape.block_size, shape.num_workers, box_size, _PIPE_NBYTES


def _column(space: gymnasium.Space[object]) -> Column:
    return tuple(space.shape or ()), np.dtype(space.dtype).str


def _joined(array: Array) -> Array:
    """Return a view (rows, …) of an array (blocks, rows in a block, …)."""
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])  # -1 is refused where rows are empty


def _aligned(offset: int) -> int:
    return -(-offset // _LINE_NBYTES) * _LINE_NBYTES


def _nbytes(shape: SlabShape) -> int:
    return max(
        _LINE_NBYTES,
        sum(_aligned(int(np.prod(array_shape)) * dtype.itemsize) for array_shape, dtype in shape.arrays().values()),
    )
