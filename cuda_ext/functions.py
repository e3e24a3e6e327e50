"""The function manager, which compiles, caches and runs kernels on the host, and chooses the layout of launches.

setup.py builds a library of this package's kernels for the host. Kernels that this library lacks, such as users' own,
are compiled on first use with the system's C++ compiler. NVRTC compiles kernels for a device (device.py). Kernels
compiled at run time are stored in the user's cache folder.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuda_ext import sources
from cuda_ext.schema import KernelEnv
from cuda_ext.staging import envs_per_block
from pufferlib.errors import KernelError
from pufferlib.util.files import written_whole

__all__ = [
    "HostKernel",
    "Shape",
    "built_library",
    "cache_folder",
    "check_source",
    "compile_command",
    "compiled_library",
    "compiler_command",
    "explained",
    "fitting",
    "is_built",
    "loaded",
]

NUM_LANES = 32
MOST_THREADS = 768  # with 1,024 a thread has at most 64 registers, and tag/continuous spills some
TENSOR_CORE_THREADS = 256  # with more, a thread has too few registers for a network's layers
TILE_NBYTES = 16384  # of shared memory for a block's observations; more would fit fewer blocks on a multiprocessor
GROUP_TILE_NBYTES = 30720  # if a block plays one environment, whose rows would otherwise be written out of order
WEIGHTS_NBYTES = 24576  # for a network's weights
MOST_OPTIONS = 64  # of all choices, for code without loops over them
# The messages of NVRTC and GCC, and of Clang.
MEMBER = re.compile(r"Env\W{1,4} has no member (?:named )?\W(\w+)|no member named \W(\w+)\W in \W[^'\n]*\bEnv\b")
THREAD_NS = 1e4  # the work that justifies another thread on the host; ten times as much if the thread sleeps


@dataclass(frozen=True)
class Shape:
    """The layout of a launch.

    num_agents: agents per environment. group_size: the number of threads that play an environment together. block_size:
    the most threads per block. tile: the number of floats of shared memory that collect the observations of a warp or,
    if an environment has more threads, of a block; 0 for none.
    network_width: the padded width of the widest layer of the network that chooses actions; 0 without a network.
    num_weights: the number of 32-bit words of the network's weights if each block keeps them in shared memory, else 0.
    tensor_cores: whether the network is computed in bfloat16, by the tensor cores of a device.
    layers: the network's number of inputs and, for each layer, the number of outputs and the activation, numbered as in
    ``layers.cuh``. options: the number of options of each choice that it makes. () without a network.
    """

    num_agents: int
    group_size: int
    block_size: int
    tile: int
    network_width: int = 0
    num_weights: int = 0
    tensor_cores: bool = False
    layers: tuple[int, ...] = ()
    options: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        num_agents: int,
        observation_size: int,
        network_width: int = 0,
        num_weights: int = 0,
        tensor_cores: bool = False,
        layers: tuple[int, ...] = (),
        options: tuple[int, ...] = (),
    ) -> Shape:
        """Return the layout for environments with num_agents agents.

        With up to MOST_THREADS agents, each agent has its own thread. With more, each thread serves the smallest number
        of agents for which MOST_THREADS threads per environment are enough. With tensor cores, the limit is
        TENSOR_CORE_THREADS. If there are more than NUM_LANES agents, the number of threads per environment is a
        multiple of NUM_LANES.

        Observations are collected in shared memory if those of a block fit in TILE_NBYTES or, if the block plays one
        environment and no network chooses actions, in GROUP_TILE_NBYTES. The network's weights are kept in shared
        memory if they fit in WEIGHTS_NBYTES.
        """
        if num_agents <= NUM_LANES:
            group_size, block_size = num_agents, 128
        else:
            most_threads = TENSOR_CORE_THREADS if tensor_cores else MOST_THREADS
            agents_per_thread = -(-num_agents // most_threads)  # even: no second round for a few agents
            group_size = block_size = -(-num_agents // (NUM_LANES * agents_per_thread)) * NUM_LANES
        num_warps, in_warp = (block_size // NUM_LANES, NUM_LANES // group_size) if group_size <= NUM_LANES else (1, 1)
        floats = -(-in_warp * num_agents * observation_size // 4) * 4  # aligned to 16 bytes
        most = TILE_NBYTES if group_size <= NUM_LANES or network_width else GROUP_TILE_NBYTES
        tile = floats if 4 * num_warps * floats <= most else 0
        num_kept = num_weights if 4 * num_weights <= WEIGHTS_NBYTES else 0
        network = (network_width, num_kept, tensor_cores, layers, options)
        return cls(num_agents, group_size, block_size, tile, *network)

    @property
    def envs_per_block(self) -> int:
        return envs_per_block(self.group_size, self.block_size)

    @property
    def macros(self) -> dict[str, Any]:
        """The macros that a program for this layout is compiled with (see kernel.cuh)."""
        macros: dict[str, Any] = {"NUM_AGENTS": self.num_agents, "GROUP_SIZE": self.group_size}
        macros |= {"BLOCK_SIZE": self.block_size, "TILE": self.tile}
        if self.network_width:
            macros |= {"NETWORK_WIDTH": self.network_width, "NUM_WEIGHTS": self.num_weights}
        if self.layers:
            macros["NETWORK_LAYERS"] = ", ".join(map(str, self.layers))
        if self.options and sum(self.options) <= MOST_OPTIONS:
            macros["POLICY_OPTIONS"] = ", ".join(map(str, self.options))
        return macros | ({"TENSOR_CORES": 1} if self.tensor_cores else {})

    def num_blocks(self, num_envs: int) -> int:
        return -(-num_envs // self.envs_per_block)

    def split(self, num_envs: int, num_multiprocessors: int) -> Shape:
        """Return a layout with smaller blocks if otherwise some multiprocessors would have none of a launch's blocks.

        The program that was compiled for this layout plays it, too.
        """
        shape = self
        while shape.group_size <= NUM_LANES < shape.block_size and shape.num_blocks(num_envs) < num_multiprocessors:
            shape = replace(shape, block_size=shape.block_size // 2)
        return shape


def fitting(compiled: Callable[[Shape], Any], shape: Shape) -> Any:
    """Return compiled(shape). If that raises KernelError, retry without weights and then without a tile.

    A kernel with shared memory of its own may leave no room for them.
    """
    without_weights = replace(shape, num_weights=0)
    shapes = list(dict.fromkeys([shape, without_weights, replace(without_weights, tile=0)]))
    for smaller in shapes[:-1]:
        with suppress(KernelError):
            return compiled(smaller)
    return compiled(shapes[-1])


class HostKernel:
    """A kernel that runs in this process. Each launch uses as many threads as its work justifies, up to num_threads.

    ``close`` ends the threads.
    """

    def __init__(self, kernel: KernelEnv, num_threads: int) -> None:
        library, name = _library(kernel), sources.entry(kernel)
        opens, self._play, closes = (getattr(library, f"{name}_{what}") for what in ("open", "play", "close"))
        opens.argtypes, opens.restype = (ctypes.c_int, ctypes.c_double), ctypes.c_void_p
        self._play.argtypes, self._play.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
        closes.argtypes, closes.restype = (ctypes.c_void_p,), None
        self._thread_pool = opens(max(1, num_threads), THREAD_NS)
        self.close = weakref.finalize(self, closes, self._thread_pool)

    @property
    def addresses(self) -> tuple[int, int]:
        """The addresses of the C function that plays a launch, and of its first argument, for use until ``close``."""
        address = ctypes.cast(self._play, ctypes.c_void_p).value
        assert address is not None
        return address, self._thread_pool

    def bound(self, arguments: Any, num_envs: int) -> Callable[[int], Any]:
        """Return a function that launches the kernel. arguments: an array of one ``struct Env``, read at each call.

        The function takes a stream, which it ignores. It returns 0 or, if an action is out of range, runs nothing and
        returns 1. It checks actions only if ``policy_nvec`` is set, the launch is a single step of consecutive
        environments, and the kernel does not choose the actions itself.
        """
        play, thread_pool, address = self._play, self._thread_pool, arguments.ctypes.data
        return lambda stream: play(thread_pool, address)


def check_source(kernel: KernelEnv) -> None:
    if not Path(kernel.source).is_file():
        raise KernelError(f'"{kernel.name}": there is no file {kernel.source}; the kernel\'s source= names it')


def _library(kernel: KernelEnv) -> ctypes.CDLL:
    """Return a host library that contains a kernel.

    If the library that setup.py built contains the kernel, compiled from its current sources, return that library.
    Otherwise return a library with this kernel alone, from the cache or newly compiled.
    """
    check_source(kernel)
    library = built_library()
    if library is not None and is_built(library, kernel):
        return library
    return compiled_library(kernel, sources.for_host(kernel))


def built_library() -> ctypes.CDLL | None:
    """Return the library that setup.py built, or None if there is none. Raises OSError if it cannot be loaded."""
    spec = importlib.util.find_spec("cuda_ext._host")
    return None if spec is None or spec.origin is None else ctypes.CDLL(spec.origin)


def is_built(library: ctypes.CDLL, kernel: KernelEnv) -> bool:
    """Return whether a library contains a kernel compiled from its current sources."""
    digest = getattr(library, f"{sources.entry(kernel)}_digest", None)
    if digest is None:
        return False
    digest.restype = ctypes.c_char_p
    same: bool = digest().decode() == sources.digest(kernel)
    return same


def compiled_library(kernel: KernelEnv, program: str, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """Return the library of a kernel's C++ program, from the cache or newly compiled.

    flags: more flags for the compiler, after HOST_FLAGS.
    Raises KernelError if the kernel's file or a compiler is missing, if the program does not compile, or if the cache
    folder cannot be created.
    """
    check_source(kernel)
    command = compile_command(f'"{kernel.name}"', flags, ", or use a CUDA device, which needs none")
    path = cache_folder() / f"{sources.entry(kernel)}-{sources.digest(kernel, program, *command)}.so"
    return loaded(path, command, program, lambda log: explained(kernel, log))


def compile_command(subject: str, flags: Sequence[str] = (), alternative: str = "") -> list[str]:
    """Return the command that compiles a C++ program from standard input to a library, without the library's path.

    subject: what is to be compiled, and alternative: what else a user could do, both for the error message. flags: more
    flags, after HOST_FLAGS. Raises KernelError if there is no compiler.
    """
    compiler = compiler_command()
    if shutil.which(compiler[0]) is None:
        raise KernelError(
            f"{subject} has to be compiled for the host, and there is no {compiler[0]}: install a C++ compiler "
            f"(Debian and Ubuntu: apt-get install g++) or name one in CXX{alternative}"
        )
    command = [*compiler, *sources.HOST_FLAGS, *flags, "-shared", "-fPIC"]
    return [*command, "-I", str(sources.FOLDER), "-x", "c++", "-"]


def loaded(path: Path, command: Sequence[str], program: str, explain: Callable[[str], str]) -> ctypes.CDLL:
    """Load the library at a path, after compiling it if it does not exist.

    command: the result of ``compile_command``. explain: returns the error message for a compiler's log. Raises
    KernelError if the program does not compile.
    """
    if not path.exists():
        with written_whole(path) as part:
            arguments = [*command, "-o", str(part)]
            result = subprocess.run(arguments, input=program, capture_output=True, text=True)
            if result.returncode:
                raise KernelError(explain(result.stderr))
    return ctypes.CDLL(str(path))


def compiler_command() -> list[str]:
    """Return the words of the command in the environment variable CXX, or else the system's C++ compiler.

    Does not check whether the compiler exists.
    """
    return shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or "g++"]


def cache_folder() -> Path:
    """Return the folder of compiled kernels, creating it if necessary. Raises KernelError if that fails."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "pufferlib" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KernelError(f"there is no {folder} to keep compiled kernels in: {error}; set XDG_CACHE_HOME") from None
    return folder


def explained(kernel: KernelEnv, log: str) -> str:
    """Return the error message for a compiler's log, with advice on fields that the kernel's schema lacks, if any."""
    lacking = [match[match.lastindex] for match in MEMBER.finditer(log) if match.lastindex]
    advice = "".join(
        f'\n{Path(kernel.source).name} uses env.{name}, which the schema of "{kernel.name}" lacks; '
        f'add Field("{name}", …) or Parameter("{name}", …) to it'
        for name in dict.fromkeys(lacking)
    )
    return f'"{kernel.name}" does not compile:{advice}\n{log.strip()}'
