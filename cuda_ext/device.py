"""Run kernels on a CUDA device. nvrtc.py compiles them; CuPy loads and launches the machine code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cuda_ext import nvrtc
from cuda_ext.functions import Shape
from cuda_ext.schema import KernelEnv
from cuda_ext.sources import entry
from pufferlib.errors import KernelError, MissingExtra

__all__ = ["DeviceKernel"]


class DeviceKernel:
    """A kernel for the current CUDA device, compiled for a fixed number of agents and other constants.

    Raises MissingExtra if CuPy or NVRTC is not installed. Raises KernelError if NVRTC does not support the device, if
    the kernel does not compile, or if the driver does not load the machine code.
    """

    def __init__(self, kernel: KernelEnv, shape: Shape, constants: Mapping[str, int | float]) -> None:
        try:
            import cupy
        except ImportError as error:
            raise MissingExtra(
                f'"{kernel.name}" on a CUDA device needs CuPy: pip install "pufferlib[cuda]"; '
                'or use device="host", which plays the same kernel on the CPU'
            ) from error
        self.shape = shape
        self._device = cupy.cuda.Device()  # the current device, for which the kernel is compiled
        self._num_multiprocessors: int = self._device.attributes["MultiProcessorCount"]
        self._present_device = cupy.cuda.runtime.getDevice
        architecture = nvrtc.architecture_of(kernel, self._device.compute_capability)
        # CuPy's own compilation would add options, -ftz=true among them, which rounds differently, and look for CUDA's
        # headers, which no kernel here includes.
        path = nvrtc.cubin_file(kernel, shape, constants, architecture)
        try:
            self._function = cupy.RawModule(path=str(path)).get_function(entry(kernel)).kernel  # loads it
        except RuntimeError as error:  # from the driver
            major, minor = nvrtc.version()
            raise KernelError(
                f'"{kernel.name}": the driver does not load what NVRTC {major}.{minor} has compiled for '
                f"{architecture}: {error}; nvidia-smi shows the driver's version of CUDA; install the NVRTC of that "
                'version: pip install "nvidia-cuda-nvrtc==13.0.*"'
            ) from error

    def bound(self, arguments: Any, num_envs: int) -> Callable[[int], None]:
        """Return a function that takes a stream's address and launches the kernel on that stream, without waiting.

        arguments: a NumPy array of one ``struct Env``, copied at each call.
        """
        shape = self.shape.split(num_envs, self._num_multiprocessors)
        grid, block = (shape.num_blocks(num_envs), 1, 1), (shape.block_size, 1, 1)
        # CuPy reads the array's interface, for which NumPy describes all fields at every launch: 46 to 71 µs for the
        # structs of cuda_ext, 1 µs for the same bytes without fields (benchmarks/gpu.py).
        packed = (arguments.view(np.dtype((np.void, arguments.nbytes))),)
        function, device, present_device, target = self._function, self._device, self._present_device, _Stream()

        def launch(stream: int) -> None:
            target.ptr = stream
            if present_device() == device.id:
                function(grid, block, packed, 0, target)
                return
            with device:  # a stream, especially the default one, belongs to the current device
                function(grid, block, packed, 0, target)

        return launch


class _Stream:
    """A stand-in for a CuPy stream: CuPy accepts any object with a stream's address in ``ptr``."""

    ptr = 0
