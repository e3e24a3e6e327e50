"""Compile kernels by NVRTC, for a device that is there or not: what tests compile and weigh is what a device runs.

NVRTC comes in the wheel nvidia-cuda-nvrtc, or with a CUDA toolkit, and needs no device.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cuda_ext.functions import Shape, cache_folder, check_source, explained
from cuda_ext.schema import KernelEnv
from cuda_ext.sources import entry, for_device
from pufferlib.errors import KernelError, MissingExtra
from pufferlib.util.files import written_whole

__all__ = ["Cubin", "architecture_of", "architectures", "compiled", "cubin_file", "version"]

OPTIONS = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")  # rounding is the reference's
TOOLKITS = ("CUDA_PATH", "CUDA_HOME")  # variables
NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")  # where the loader finds it
NO_HEADER = re.compile(r'could not open source file "([^"]+)"')


@dataclass(frozen=True)
class Cubin:
    """A kernel in machine code, and what a thread or block of it takes: registers a thread, bytes a thread or block."""

    code: bytes
    num_registers: int
    shared_nbytes: int  # a block
    stack_nbytes: int  # a thread: arrays that are no registers
    spilled_nbytes: int  # a thread: written to memory for want of registers


def compiled(
    kernel: KernelEnv, shape: Shape, constants: Mapping[str, int | float], architecture: str = "sm_90"
) -> Cubin:
    """Return a kernel compiled for an architecture. Raises MissingExtra without NVRTC, KernelError for wrong source."""
    check_source(kernel)
    name = entry(kernel)
    source = for_device(kernel, name, constants, shape.macros)
    code, log = _compile(kernel, source, _options(architecture))

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


def cubin_file(kernel: KernelEnv, shape: Shape, constants: Mapping[str, int | float], architecture: str) -> Path:
    """Return the file of what ``compiled`` returns, compiled unless the cache folder has it."""
    check_source(kernel)
    source = for_device(kernel, entry(kernel), constants, shape.macros)
    told = "\0".join([source, *_options(architecture), *map(str, version())])
    digest = hashlib.sha256(told.encode()).hexdigest()[:32]
    path = cache_folder() / f"{entry(kernel)}-{architecture}-{digest}.cubin"
    if not path.exists():
        cubin = compiled(kernel, shape, constants, architecture)
        with written_whole(path) as part:
            part.write_bytes(cubin.code)
    return path


def architecture_of(kernel: KernelEnv, capability: str) -> str:
    """Return what to compile for a device of a compute capability, "90" say. Raises KernelError where that is too new.

    A device runs what is compiled for one of the same generation that is no newer.
    """
    wanted, known = int(capability), architectures()
    found = max((each for each in known if each // 10 == wanted // 10 and each <= wanted), default=None)
    if found is None:
        major, minor = version()
        raise KernelError(
            f'"{kernel.name}": NVRTC {major}.{minor} compiles for sm_{min(known)} to sm_{max(known)}, and the device '
            f"is an sm_{wanted}; install a version of nvidia-cuda-nvrtc that knows it"
        )
    return f"sm_{found}"


def architectures() -> list[int]:
    """Return what NVRTC compiles for: 90 is sm_90. Raises MissingExtra without NVRTC."""
    library, num = _library(), ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(num))
    known = (ctypes.c_int * num.value)()
    library.nvrtcGetSupportedArchs(known)
    return list(known)


def version() -> tuple[int, int]:
    """Return NVRTC's version: major, minor."""
    numbers = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(*map(ctypes.byref, numbers))
    return numbers[0].value, numbers[1].value


def _options(architecture: str) -> list[str]:
    """Return what kernels are compiled with. CUDA's headers are there for those of others that include some."""
    headers = next((each for each in _folders("include") if (each / "cuda_runtime_api.h").exists()), None)
    return [*OPTIONS, f"--gpu-architecture={architecture}", *([f"--include-path={headers}"] if headers else [])]


def _folders(name: str) -> Iterator[Path]:
    """Yield folders of this name in NVIDIA's wheels, and those that begin with it in CUDA toolkits."""
    spec = importlib.util.find_spec("nvidia")
    for each in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(each).glob(f"*/{name}"))
    for toolkit in [*filter(None, map(os.environ.get, TOOLKITS)), "/usr/local/cuda"]:
        yield from sorted(Path(toolkit).glob(f"{name}*"))


@functools.cache
def _library() -> ctypes.CDLL:
    for folder in _folders("lib"):
        for path in sorted(folder.glob("libnvrtc.so*")):
            for part in path.parent.glob("libnvrtc-builtins.so*"):  # which NVRTC looks for by its bare name
                ctypes.CDLL(str(part), ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    for name in NAMES:
        with suppress(OSError):
            return ctypes.CDLL(name)
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
            told = log.value.decode()
            header = NO_HEADER.search(told)
            if header is not None:
                told = f"{header[1]}: CUDA's own headers come with pip install nvidia-cuda-runtime\n{told}"
            raise KernelError(explained(kernel, told))
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, code)
        return code.raw, log.value.decode()
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
