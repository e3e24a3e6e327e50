"""`puffer doctor`: report this machine's features, how pufferlib uses them, and anything that is broken."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import pufferlib
from pufferlib import _native
from pufferlib.util.memory import memory_at_hand, memory_text, memory_there
from pufferlib.vectorization.core.plan import available_cpus, cpu_quota
from pufferlib.vectorization.processes.start import running_threads, start_method

__all__ = ["Finding", "diagnose"]

NEEDED = ("numpy", "gymnasium", "cloudpickle", "threadpoolctl")
OPTIONAL = (
    *("torch", "pettingzoo", "rich", "tyro", "tensorboard", "matplotlib", "pillow", "scipy"),
    *("ale-py", "minigrid", "mpe2", "envpool"),
)
SELF_TEST = "ocean/squared"


class Finding(NamedTuple):
    """A line of the report. fine: whether this part of pufferlib works."""

    name: str
    text: str
    fine: bool = True


def diagnose() -> Iterator[Finding]:
    """Yield the findings about this machine, ending with the self test."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()}, {platform.machine()}"
    yield Finding("pufferlib", f"{pufferlib.__version__}, {_installed()}; {system}")
    if foreign := _foreign_files(Path(pufferlib.__file__).parent):
        yield Finding("files", foreign, fine=False)
    yield Finding("packages", ", ".join(_versions(NEEDED)))
    yield Finding("optional", _optional())
    yield Finding("path", "compiled" if _native.available else f"portable: {_native.reason}")
    yield Finding("cores", _cores())
    yield Finding("memory", f"{_memory()}{_shm()}")
    yield Finding("processes", _processes())
    yield _kernel()
    kernels: Any = import_module("cuda_ext.report")  # by name, because it is in a higher layer
    yield Finding("kernels", kernels.built())
    yield Finding("compiler", kernels.compiler())
    yield Finding("CUDA", f"{_cuda()}; {kernels.device()}")
    yield Finding("Ray", f"{next(_versions(('ray',)), 'not installed')}; --ray also checks a cluster")
    yield _self_test()


def _installed() -> str:
    """Describe how pufferlib is installed.

    The report includes this because, in an editable installation, compiled files may be older than their sources.
    """
    try:
        url = metadata.distribution("pufferlib").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return "not installed"
    return "installed editable" if url and json.loads(url).get("dir_info", {}).get("editable") else "installed"


def _foreign_files(package: Path) -> str:
    """Return a sentence about files of PufferLib in the folder of this package, or "" if there are none.

    Programs would import these modules in place of those in compat/modules.
    """
    modules = {path.stem for path in (package / "compat/modules").iterdir()} - {"__init__", "__pycache__"}
    paths = [package / path for name in sorted(modules) for path in (f"{name}.py", f"{name}/__init__.py")]
    names = [path.relative_to(package).as_posix() for path in paths if path.exists()]
    if not names:
        return ""
    others = {name for name in metadata.packages_distributions().get("pufferlib", ()) if name != "pufferlib"}
    packages = " ".join(["pufferlib", *sorted(others)])
    return (
        f"{package} has modules of PufferLib ({', '.join(names)}), which hide those of pufferlib "
        f"{pufferlib.__version__}; uninstall both (pip uninstall {packages}), delete the folder, and install pufferlib "
        "again"
    )


def _versions(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"


def _optional() -> str:
    lacking = [name for name in OPTIONAL if not [*_versions((name,))]]
    return (", ".join(_versions(OPTIONAL)) or "none") + (f"; not installed: {', '.join(lacking)}" if lacking else "")


def _cores() -> str:
    usable, installed = available_cpus(), os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else installed
    limits = [f"affinity allows {affinity}"] if affinity < installed else []
    limits.append("no quota" if math.isinf(cpu_quota()) else f"the cgroup's quota is {cpu_quota():g}")
    return f"{usable} of {installed} usable ({', '.join(limits)})"


def _memory() -> str:
    system, limit = memory_there()
    limited = "no limit" if math.isinf(limit) else f"the cgroup's limit is {memory_text(limit)}"
    return f"{memory_text(memory_at_hand())} of {memory_text(system)} available ({limited})"


def _shm() -> str:
    """Describe the space left in /dev/shm, which is small in containers; return "" if there is no /dev/shm."""
    with suppress(OSError, AttributeError):
        usage = os.statvfs("/dev/shm")
        note = " (not needed: batches are in a memfd)" if hasattr(os, "memfd_create") else ""
        return f"; /dev/shm {memory_text(usage.f_bavail * usage.f_frsize)}{note}"
    return ""


def _processes() -> str:
    method = start_method(None)
    if method == "fork":
        return "start by fork, in milliseconds"
    if "fork" not in multiprocessing.get_all_start_methods() or not sys.platform.startswith("linux"):
        return f"start by {method}: fork is not safe here"
    others = len(running_threads()) - 1
    return f"start by {method}: " + (f"{others} other threads are running" if others else "CUDA is in use")


def _kernel() -> Finding:
    """Report which of four system features are available: memfd, pidfd, futex and schedstat.

    pufferlib uses them to share memory, to wait and to watch processes; each has a slower substitute.
    """
    features = {"memfd": False, "pidfd": False, "futex": sys.platform.startswith("linux")}
    with suppress(OSError, AttributeError):
        os.close(os.memfd_create("pufferlib-doctor"))
        features["memfd"] = True
    with suppress(OSError, AttributeError):
        os.close(os.pidfd_open(os.getpid()))
        features["pidfd"] = True
    features["schedstat"] = Path("/proc/self/schedstat").exists()
    text = ", ".join(f"{name} {'yes' if available else 'no'}" for name, available in features.items())
    return Finding("kernel", text)


def _cuda() -> str:
    """Describe the NVIDIA driver and the devices that torch sees."""
    driver = "no driver"
    with suppress(OSError):
        lines = Path("/proc/driver/nvidia/version").read_text().split("\n")
        match = re.search(r"\d+\.\d+(\.\d+)?", lines[0])
        driver = f"driver {match[0]}" if match else "a driver"
    if find_spec("torch") is None:
        return f"{driver}; no torch"
    import torch

    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"{driver}; torch {torch.__version__} sees {', '.join(names) or 'no device'}"


def _self_test() -> Finding:
    """Step two environments in a worker process, and report the result."""
    start_s = perf_counter()
    try:
        with pufferlib.make(SELF_TEST, backend="multiprocessing", num_envs=2, num_workers=1, seed=0) as vec:
            vec.reset()
            for _ in range(10):
                vec.step(vec.action_space.sample())
    except Exception as error:  # any failure is a finding
        return Finding("self test", f"failed: {type(error).__name__}: {error}", fine=False)
    return Finding("self test", f"passed: a worker started, stepped and ended in {perf_counter() - start_s:.2f} s")
