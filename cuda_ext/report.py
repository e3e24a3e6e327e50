"""Descriptions of this machine's support for kernels: the built kernels, the compilers and the devices."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module, metadata

from cuda_ext import functions, nvrtc, sources
from pufferlib.errors import KernelError, MissingExtra

__all__ = ["built", "compiler", "device"]

CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")


def built() -> str:
    """Describe which kernels are built for the host, and which are not built or have changed since the build."""
    kernels = [import_module(f"cuda_ext.{stem}").KERNEL for stem in sources.stems()]
    try:
        library = functions.built_library()
    except OSError as error:
        return f"built, but the library cannot be loaded: {error}"
    if library is None:
        return f"none is built; these are compiled on first use: {', '.join(kernel.name for kernel in kernels)}"
    fresh: list[str] = []
    changed: list[str] = []
    for kernel in kernels:
        (fresh if functions.is_built(library, kernel) else changed).append(kernel.name)
    parts = [f"built: {', '.join(fresh)}"] if fresh else []
    parts += [f"not built or out of date, compiled on first use: {', '.join(changed)}"] if changed else []
    return "; ".join(parts)


def compiler() -> str:
    """Describe the C++ compiler for the host and the cache of compiled kernels."""
    command = functions.compiler_command()
    try:
        output = subprocess.run([*command, "--version"], capture_output=True, text=True).stdout
        version = output.partition("\n")[0] or command[0]
    except OSError:
        version = f"there is no {command[0]}"
    return f"{version}; {_cache()}"


def _cache() -> str:
    try:
        folder = functions.cache_folder()
    except KernelError as error:
        return str(error)
    sizes = [path.stat().st_size for path in folder.iterdir() if path.suffix in (".so", ".cubin")]
    short = str(folder).replace(os.path.expanduser("~"), "~", 1)  # does not name the user
    return f"{len(sizes)} kernel{'s' * (len(sizes) != 1)} ({sum(sizes) / 2**20:.1f} MiB) are kept in {short}"


def device() -> str:
    """Report the versions of CuPy and NVRTC, and the number of devices that CuPy finds."""
    return f"{_cupy()}; {_nvrtc()}"


def _nvrtc() -> str:
    try:
        return "NVRTC {}.{}".format(*nvrtc.version())
    except MissingExtra:
        return "no NVRTC"


def _cupy() -> str:
    name = next(_versions(CUPY), None)
    if name is None:
        return "no CuPy"
    try:
        cupy = import_module("cupy")
        num = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy's own error, if there is no driver
        return f"{name} sees no device: {str(error).partition(chr(10))[0]}"
    return f"{name} sees {num} device{'s' * (num != 1)}"


def _versions(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"
