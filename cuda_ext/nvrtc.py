"""Compile kernels with NVRTC. It needs no device, so tests can compile and measure the code that a device runs.

NVRTC comes with the wheel nvidia-cuda-nvrtc, or with a CUDA toolkit.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cuda_ext.functions import Shape, cache_folder, check_source, explained
from cuda_ext.schema import KernelEnv
from cuda_ext.sources import LEARNER_KERNELS, entry, for_device, for_learner_device
from pufferlib.errors import KernelError, MissingExtra
from pufferlib.util.files import written_whole

__all__ = [
    "Cubin",
    "architecture_of",
    "architectures",
    "compiled",
    "compiled_learner",
    "cubin_file",
    "learner_cubin_file",
    "version",
]

OPTIONS = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")  # rounds as the reference does
TOOLKITS = ("CUDA_PATH", "CUDA_HOME")  # environment variables
NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")  # for the dynamic loader
LEAST_TENSOR_CORES = 80  # the first architecture whose tensor cores compute in bfloat16
NO_HEADER = re.compile(r'could not open source file "([^"]+)"')


@dataclass(frozen=True)
class Cubin:
    """A kernel's machine code and the resources that it uses."""

    code: bytes
    num_registers: int  # per thread
    shared_nbytes: int  # per block
    stack_nbytes: int  # per thread, for arrays that are not in registers
    spilled_nbytes: int  # per thread, written to memory because registers ran out

    @classmethod
    def of(cls, code: bytes, log: str, name: str) -> Cubin:
        """Return the resources of one of a program's kernels. log: NVRTC's.

        Raises KernelError if the log does not have the number of registers.
        """
        sections = log.split("Compiling entry function ")
        section = next((section for section in sections if section.startswith(f"'{name}'")), log)

        def amount(pattern: str) -> int:
            match = re.search(pattern, section)
            return int(match[1]) if match else 0

        if "registers" not in section:
            raise KernelError(f"NVRTC does not say how many registers {name} uses:\n{log}")
        return cls(
            code,
            amount(r"Used (\d+) registers"),
            amount(r"(\d+) bytes smem"),
            amount(r"(\d+) bytes stack frame"),
            amount(r"(\d+) bytes spill stores"),
        )


def compiled(
    kernel: KernelEnv, shape: Shape, constants: Mapping[str, int | float], architecture: str = "sm_90"
) -> Cubin:
    """Compile a kernel for an architecture; return its machine code and the resources that it uses.

    Raises MissingExtra if NVRTC is not installed. Raises KernelError if the source is missing or does not compile, if
    NVRTC's log does not have the number of registers, or if the architecture lacks tensor cores that the shape needs.
    """
    check_source(kernel)
    _require_tensor_cores(kernel, shape, architecture)
    name = entry(kernel)
    source = for_device(kernel, name, constants, shape.macros)
    return Cubin.of(*_compile(kernel, source, _options(architecture)), name)


def compiled_learner(architecture: str = "sm_90") -> dict[str, Cubin]:
    """Compile the learner's kernels; return for each its resources, and the machine code of all.

    Raises the errors of ``compiled``.
    """
    code, log = _compile(None, for_learner_device(), _options(architecture))
    return {name: Cubin.of(code, log, name) for name in LEARNER_KERNELS}


def cubin_file(kernel: KernelEnv, shape: Shape, constants: Mapping[str, int | float], architecture: str) -> Path:
    """Return the path of a kernel's machine code in the cache folder, compiling the kernel first if necessary.

    Raises the errors of ``compiled``, and KernelError if the cache folder cannot be created.
    """
    check_source(kernel)
    _require_tensor_cores(kernel, shape, architecture)
    source = for_device(kernel, entry(kernel), constants, shape.macros)
    return _cached(entry(kernel), source, architecture, lambda: compiled(kernel, shape, constants, architecture).code)


def learner_cubin_file(architecture: str) -> Path:
    """Return the path of the learner's machine code in the cache folder, as ``cubin_file`` does."""
    return _cached(
        "learner", for_learner_device(), architecture, lambda: compiled_learner(architecture)["learner_step"].code
    )


def _cached(name: str, source: str, architecture: str, compiled_code: Callable[[], bytes]) -> Path:
    """Return the path of a program's machine code in the cache folder, compiling the program first if necessary."""
    inputs = "\0".join([source, *_options(architecture), *map(str, version())])
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:32]
    path = cache_folder() / f"{name}-{architecture}-{digest}.cubin"
    if not path.exists():
        code = compiled_code()
        with written_whole(path) as part:
            part.write_bytes(code)
    return path


def architecture_of(subject: str, capability: str) -> str:
    """Return the newest architecture, such as "sm_90", that NVRTC supports and a device can run.

    subject: what is to be compiled, for the error message. capability: the device's compute capability, such as "90".
    A device runs code for architectures of its own generation that are not newer than itself. Raises KernelError if
    NVRTC supports none of them, MissingExtra if NVRTC is not installed.
    """
    device, available = int(capability), architectures()
    matches = (number for number in available if number // 10 == device // 10 and number <= device)
    newest = max(matches, default=None)
    if newest is None:
        major, minor = version()
        raise KernelError(
            f"{subject}: NVRTC {major}.{minor} compiles for sm_{min(available)} to sm_{max(available)}, and the "
            f"device is an sm_{device}; install a version of nvidia-cuda-nvrtc that knows it"
        )
    return f"sm_{newest}"


def architectures() -> list[int]:
    """Return the numbers of the architectures that NVRTC supports, such as 90 for sm_90.

    Raises MissingExtra if NVRTC is not installed.
    """
    library, num = _library(), ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(num))
    numbers = (ctypes.c_int * num.value)()
    library.nvrtcGetSupportedArchs(numbers)
    return list(numbers)


def version() -> tuple[int, int]:
    """Return NVRTC's version, (major, minor). Raises MissingExtra if NVRTC is not installed."""
    numbers = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(*map(ctypes.byref, numbers))
    return numbers[0].value, numbers[1].value


def _require_tensor_cores(kernel: KernelEnv, shape: Shape, architecture: str) -> None:
    """Raise KernelError if a launch needs tensor cores that compute in bfloat16 and the architecture has none."""
    if shape.tensor_cores and int(architecture.removeprefix("sm_")) < LEAST_TENSOR_CORES:
        raise KernelError(
            f'"{kernel.name}": a network in bfloat16 needs tensor cores of sm_{LEAST_TENSOR_CORES} or later, and the '
            f'device is an {architecture}; use precision="float32"'
        )


def _options(architecture: str) -> list[str]:
    """Return NVRTC's options for an architecture.

    If CUDA's headers are installed, the options include their folder, for users' kernels that need these headers. The
    options also disable the cache of NVRTC 13 and later, because the log of a cached result lacks the number of
    registers.
    """
    headers = next((folder for folder in _folders("include") if (folder / "cuda_runtime_api.h").exists()), None)
    uncached = ["--no-cache"] if version() >= (13, 0) else []
    paths = [f"--include-path={headers}"] if headers else []
    return [*OPTIONS, *uncached, f"--gpu-architecture={architecture}", *paths]


def _folders(name: str) -> Iterator[Path]:
    """Yield NVIDIA wheels' folders called ``name``, then CUDA toolkits' folders whose names start with ``name``."""
    spec = importlib.util.find_spec("nvidia")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(location).glob(f"*/{name}"))
    for toolkit in [*filter(None, map(os.environ.get, TOOLKITS)), "/usr/local/cuda"]:
        yield from sorted(Path(toolkit).glob(f"{name}*"))


@functools.cache
def _library() -> ctypes.CDLL:
    for folder in _folders("lib"):
        for path in sorted(folder.glob("libnvrtc.so*")):
            for part in path.parent.glob("libnvrtc-builtins.so*"):  # NVRTC loads it by its bare name
                ctypes.CDLL(str(part), ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    for name in NAMES:
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise MissingExtra("compiling for a GPU needs NVRTC: pip install nvidia-cuda-nvrtc")


def _compile(kernel: KernelEnv | None, source: str, options: Sequence[str]) -> tuple[bytes, str]:
    library, program, size = _library(), ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        listed = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        failed = library.nvrtcCompileProgram(program, len(options), listed)
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        if failed:
            message = log.value.decode()
            header = NO_HEADER.search(message)
            if header is not None:
                message = f"{header[1]}: CUDA's own headers come with pip install nvidia-cuda-runtime\n{message}"
            raise KernelError(
                explained(kernel, message) if kernel else f"the fused learner does not compile:\n{message}"
            )
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, code)
        return code.raw, log.value.decode()
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
