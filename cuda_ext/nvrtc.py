"""Compile kernels for GPUs that are not there: what CuPy will compile, checked and weighed where there is no driver.

NVRTC comes in the wheel nvidia-cuda-nvrtc, and needs no device.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_ext.functions import OPTIONS, Shape, explained
from cuda_ext.schema import KernelEnv
from cuda_ext.sources import entry, for_device
from pufferlib.errors import KernelError, MissingExtra

__all__ = ["Cubin", "compiled"]


@dataclass(frozen=True)
class Cubin:
    """A kernel in machine code, and what a thread or block of it takes: registers a thread, bytes a thread or block."""

    code: bytes
    num_registers: int
    shared_nbytes: int  # a block
    stack_nbytes: int  # a thread: arrays that are no registers
    spilled_nbytes: int  # a thread: written to memory for want of registers


def compiled(kernel: KernelEnv, shape: Shape, constants: dict[str, int | float], architecture: str = "sm_90") -> Cubin:
    """Return a kernel compiled for an architecture. Raises MissingExtra without NVRTC, KernelError for wrong source."""
    name = entry(kernel)
    source = for_device(kernel, name, constants, shape.macros)
    code, log = _compile(kernel, source, [*OPTIONS, f"--gpu-architecture={architecture}", "--ptxas-options=-v"])

    def found(pattern: str) -> int:
        match = re.search(pattern, log)
        return int(match[1]) if match else 0

    if "registers" not in log:
        raise KernelError(f"NVRTC does not say how many registers {name} uses:\n{log}")
    return Cubin(
        code,
        found(r"Used (\d+) registers"),
        found(r"(\d+) bytes smem"),
        found(r"(\d+) bytes stack frame"),
        found(r"(\d+) bytes spill stores"),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(each) for each in (spec.submodule_search_locations or ())] if spec is not None else []
    for folder in folders:
        for path in sorted(folder.rglob("libnvrtc.so*")):
            for part in path.parent.glob("libnvrtc-builtins.so*"):  # which NVRTC looks for by its bare name
                ctypes.CDLL(str(part), ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    raise MissingExtra("compiling for a GPU needs NVRTC: pip install nvidia-cuda-nvrtc")


def _compile(kernel: KernelEnv, source: str, options: Sequence[str]) -> tuple[bytes, str]:
    library, program, size = _library(), ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        listed = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        failed = library.nvrtcCompileProgram(program, len(options), listed)
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        if failed:
            raise KernelError(explained(kernel, log.value.decode()))
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, code)
        return code.raw, log.value.decode()
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
