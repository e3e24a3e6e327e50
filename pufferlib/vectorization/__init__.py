"""Vectorization: step many environments at once through one object.

core       the parts that all VecEnvs share
worker     the environments of one worker, and the only implementation of autoreset
driver     send and recv of a VecEnv whose environments are stepped in workers
serial     a single worker in the calling process
processes  workers in processes: multiprocessing and pool
ray        workers in Ray actors
device     no workers: kernels on a device step the environments
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pufferlib.vectorization.core.batch import Batch
from pufferlib.vectorization.core.infos import Infos
from pufferlib.vectorization.core.vecenv import VecEnv
from pufferlib.vectorization.processes.backend import Multiprocessing, Pool
from pufferlib.vectorization.serial import Serial

if TYPE_CHECKING:
    from pufferlib.vectorization.device.vecenv import CUDA
    from pufferlib.vectorization.ray.backend import Ray

__all__ = ["CUDA", "Batch", "Infos", "Multiprocessing", "Pool", "Ray", "Serial", "VecEnv"]

ON_DEMAND = {"CUDA": "device.vecenv", "Ray": "ray.backend"}  # so that importing pufferlib costs little


def __getattr__(name: str) -> Any:
    if name not in ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{ON_DEMAND[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *ON_DEMAND})
