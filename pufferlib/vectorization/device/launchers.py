"""Compiled kernels, the arrays that they read and write, and counts of their launches."""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pufferlib.util.annotations import Array
from pufferlib.vectorization.core.call_errors import closed_error
from pufferlib.vectorization.device.block_shape import BlockShape
from pufferlib.vectorization.device.streams import require_uncaptured

__all__ = ["KernelStats", "Launchers"]


@dataclass(frozen=True)
class KernelStats:
    """Counts of launches, steps and bytes.

    seconds: the time since counting began. Launches that are counted may still be running.
    """

    num_launches: int
    num_env_steps: int
    seconds: float
    host_to_device_nbytes: int  # arrays written through the data manager, seeds and actions
    device_to_host_nbytes: int  # infos and attributes that were read

    @property
    def env_steps_per_s(self) -> float:
        return self.num_env_steps / self.seconds

    @property
    def steps_per_s(self) -> float:
        """The same as ``env_steps_per_s``, under the name that other backends' statistics use."""
        return self.env_steps_per_s

    def __str__(self) -> str:
        return (
            f"{self.num_env_steps:,} environment steps in {self.num_launches:,} launches and {self.seconds:.3g} s, "
            f"{self.env_steps_per_s:,.0f} a second; {self.host_to_device_nbytes:,} bytes went to the device, "
            f"{self.device_to_host_nbytes:,} came back"
        )


class Launchers:
    """The launchers of one kernel's variants, with the kernel's arrays on the device.

    torch: the module. device: the device of the arrays. kernel: a cuda_ext.schema.KernelEnv. reference: one of the
    kernel's reference environments. fixed: the arguments that all launches share. num_threads, checked: ``threads`` and
    ``checked`` of ``CUDA``'s backend_kwargs.

    data: the arrays (a cuda_ext.data.Data). step: the launcher of a single step, to which actions are passed. variant:
    a function that takes other constants, and the items of ``network.described`` if a network chooses actions, and
    returns the launcher for them, which is compiled on first use. ``close``
    deletes ``data``, ``step`` and ``variant``. num_launches, num_env_steps: the counts since ``clear_stats``; the code
    that launches increments them. closed: whether ``close`` has been called.
    """

    def __init__(
        self,
        torch: Any,
        device: Any,
        kernel: Any,
        reference: Any,
        shape: BlockShape,
        fixed: Mapping[str, Any],
        num_threads: int,
        checked: bool,
    ) -> None:
        self._torch, self.device = torch, device
        self._on_host = device.type == "cpu"
        self.closed = False
        self.data = importlib.import_module("cuda_ext.data").Data(
            kernel, shape.num_envs, shape.agents_per_env, device, reference
        )
        self._make = functools.partial(importlib.import_module("cuda_ext.launcher").Launcher, kernel, self.data)
        self._rest = num_threads, checked
        self._fixed = {
            **self.data.parameters,
            "num_agents": shape.agents_per_env,
            "observation_size": int(np.prod(shape.observation_shape or (1,))),
            **fixed,
        }
        self._opened: list[Any] = []
        self.step = self._open(num_steps=1, step_slots=0)
        self.variant: Callable[..., Any] = functools.cache(self._open)
        self.clear_stats()

    def _open(self, network: tuple[tuple[str, Any], ...] = (), **more: Any) -> Any:
        context: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if not self._on_host:
            context = self._torch.cuda.device(self.device)
            require_uncaptured(
                self._torch,
                self._torch.cuda.current_stream(self.device),
                "this call is the first that needs its kernel, which is compiled and loaded during the call; that "
                "cannot be captured, so make it once before the capture",
            )
        with context:
            launcher = self._make({**self._fixed, **more}, *self._rest, dict(network))
        self._opened.append(launcher)
        return launcher

    def to_device(self, array: Array, tensors: list[Any]) -> int:
        """Copy an array to the device, append the new tensor to ``tensors``, and return the tensor's address."""
        tensor = self._torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
        self.data.host_to_device_nbytes += array.nbytes
        tensors.append(tensor)
        return int(tensor.data_ptr())

    def count_read(self, nbytes: int) -> None:
        """Add to the count of bytes copied to the host. After ``close``, nothing is counted."""
        if not self.closed:
            self.data.device_to_host_nbytes += nbytes

    def stats(self) -> KernelStats:
        """Return the counts since ``clear_stats``."""
        return KernelStats(
            self.num_launches,
            self.num_env_steps,
            time.perf_counter() - self._start_s,
            self.data.host_to_device_nbytes - self._nbytes[0],
            self.data.device_to_host_nbytes - self._nbytes[1],
        )

    def clear_stats(self) -> None:
        """Restart all counts, and the time, from zero."""
        self.num_launches = self.num_env_steps = 0
        self._start_s = time.perf_counter()
        self._nbytes = (self.data.host_to_device_nbytes, self.data.device_to_host_nbytes)

    def require_open(self) -> None:
        """Raise ClosedError if ``close`` has been called."""
        if self.closed:
            raise closed_error("CUDA")

    def close(self) -> None:
        """Wait for the device to finish, and close all launchers."""
        self.closed = True
        if self.device.type == "cuda":
            self._torch.cuda.synchronize(self.device)  # running kernels write to memory that is freed next
        for launcher in self._opened:
            launcher.close()
        del self.data, self.step, self.variant, self._make, self._opened
