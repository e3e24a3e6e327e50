"""Run a kernel on the host as a device would: a fibre per thread, in shuffled order, with checked barriers.

To test your own kernels this way, also on machines without a GPU, pass ``backend_kwargs={"checked": True}`` with
``device="host"``. A checked kernel is ten to a hundred times slower than plain loops. Fibres switch only at barriers,
so the check misses races that show only if threads interleave between barriers. ThreadSanitizer finds these races in
the program that ``sources.for_checks(…, threads=True)`` returns.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from typing import Any

from cuda_ext import sources
from cuda_ext.functions import Shape, compiled_library
from cuda_ext.schema import KernelEnv
from pufferlib.errors import KernelError

__all__ = ["CheckedKernel"]

NUM_MULTIPROCESSORS = 3  # of the device whose choice of blocks is checked
PLAYING = threading.Lock()  # a library plays one block at a time


class CheckedKernel:
    """A kernel that runs on fibres of this process, in a device's layout, with a new order of threads in each launch.

    It is compiled once per shape. Every second launch has smaller blocks, if a device might choose them. Every byte of
    shared memory is 0xAB until the kernel writes it.
    """

    def __init__(self, kernel: KernelEnv, shape: Shape) -> None:
        self._name, self._shape = kernel.name, shape
        library = compiled_library(kernel, sources.for_checks(kernel, shape.macros), sources.CHECK_FLAGS)
        self._play = getattr(library, f"{sources.entry(kernel)}_check")
        self._play.argtypes = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)
        self._play.restype = ctypes.c_char_p
        self._order_seeds = itertools.count(1)

    def bound(self, arguments: Any, num_envs: int) -> Callable[[int], None]:
        """Return a function that launches the kernel. arguments: an array of one ``struct Env``, read at each call.

        The function takes a stream, which it ignores. It raises KernelError if threads wait at different barriers, or
        if they wait for a thread that has ended.
        """
        play, address, seeds = self._play, arguments.ctypes.data, self._order_seeds
        shapes = self._shape, self._shape.split(num_envs, NUM_MULTIPROCESSORS)

        def run(stream: int) -> None:
            seed = next(seeds)
            shape = shapes[seed % 2]
            with PLAYING:
                wrong = play(address, shape.num_blocks(num_envs), shape.block_size, seed)
            if wrong is not None:
                raise KernelError(
                    f'"{self._name}" would hang on a device: {wrong.decode()}; '
                    "all threads of a group must reach each of its barriers"
                )

        return run
