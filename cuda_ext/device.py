"""Run kernels on a CUDA device. nvrtc.py compiles them; CuPy loads and launches the machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cuda_ext import nvrtc
from cuda_ext.functions import Shape
from cuda_ext.schema import KernelEnv
from cuda_ext.sources import entry
from pufferlib.errors import KernelError, MissingExtra

__all__ = ["DeviceFunctions", "DeviceKernel"]


class DeviceFunctions:
    """The functions of a program, loaded on the current CUDA device.

    subject: the program's name in error messages. host: what to use without CuPy, the end of its error message.
    cubin_file: a function that takes an architecture, such as "sm_90", and returns the path of machine code for it.
    num_multiprocessors: those of the device.

    Raises MissingExtra if CuPy or NVRTC is not installed. Raises KernelError if NVRTC does not support the device, or
    if the driver does not load the machine code; and the errors of cubin_file.
    """

    def __init__(self, subject: str, names: Iterable[str], cubin_file: Callable[[str], Path], host: str) -> None:
        try:
            import cupy
        except ImportError as error:
            raise MissingExtra(
                f'{subject} on a CUDA device needs CuPy: pip install "pufferlib[cuda]"; or use {host}'
            ) from error
        self._device = cupy.cuda.Device()  # the current device, for which the program is compiled
        self.num_multiprocessors: int = self._device.attributes["MultiProcessorCount"]
        self._present_device = cupy.cuda.runtime.getDevice
        architecture = nvrtc.architecture_of(subject, self._device.compute_capability)
        # CuPy's own compilation would add options, -ftz=true among them, which rounds differently, and look for CUDA's
        # headers, which no kernel here includes.
        path = cubin_file(architecture)
        try:
            module = cupy.RawModule(path=str(path))
            self._functions = {name: module.get_function(name).kernel for name in names}  # loads it
        except RuntimeError as error:  # from the driver
            major, minor = nvrtc.version()
            raise KernelError(
                f"{subject}: the driver does not load what NVRTC {major}.{minor} has compiled for {architecture}: "
                f"{error}; nvidia-smi shows the driver's version of CUDA; install the NVRTC of that version: "
                'pip install "nvidia-cuda-nvrtc==13.0.*"'
            ) from error

    def bound(self, name: str, arguments: Any, num_blocks: int, block_size: int) -> Callable[[int], None]:
        """Return a function that takes a stream's address and launches a kernel on that stream, without waiting.

        arguments: a NumPy array of one structure, copied at each call.
        """
        grid, block = (num_blocks, 1, 1), (block_size, 1, 1)
        # CuPy reads the array's interface, for which NumPy describes all fields at every launch: 46 to 71 µs for the
        # structs of cuda_ext, 1 µs for the same bytes without fields (benchmarks/gpu.py).
        packed = (arguments.view(np.dtype((np.void, arguments.nbytes))),)
        function, device, present_device = self._functions[name], self._device, self._present_device
        target = _Stream()

        def launch(stream: int) -> None:
            target.ptr = stream
            if present_device() == device.id:
                function(grid, block, packed, 0, target)
                return
            with device:  # a stream, especially the default one, belongs to the current device
                function(grid, block, packed, 0, target)

        return launch


class DeviceKernel:
    """A kernel for the current CUDA device, compiled for a fixed number of agents and other constants.

    Raises the errors of DeviceFunctions, and KernelError if the kernel does not compile.
    """

    def __init__(self, kernel: KernelEnv, shape: Shape, constants: Mapping[str, int | float]) -> None:
        self.shape, self._name = shape, entry(kernel)
        self._functions = DeviceFunctions(
            f'"{kernel.name}"',
            [self._name],
            lambda architecture: nvrtc.cubin_file(kernel, shape, constants, architecture),
            'device="host", which plays the same kernel on the CPU',
        )

    def bound(self, arguments: Any, num_envs: int) -> Callable[[int], None]:
        """Return a function that takes a stream's address and launches the kernel on that stream, without waiting.

        arguments: a NumPy array of one ``struct Env``, copied at each call.
        """
        shape = self.shape.split(num_envs, self._functions.num_multiprocessors)
        return self._functions.bound(self._name, arguments, shape.num_blocks(num_envs), shape.block_size)


class _Stream:
    """A stand-in for a CuPy stream: CuPy accepts any object with a stream's address in ``ptr``."""

    ptr = 0
