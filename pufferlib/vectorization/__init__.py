"""Vectorization: step many environments at once, behind one object.

vecenv       VecEnv, what users see of any backend
crewed       the VecEnv that workers step: checks, order of calls, from send to recv
batch        finished rows as views or gathers
infos        what environments tell with them
slab         the arrays that environments and learner share
plan         counts and seeds
backend         the seam to whatever runs the workers
worker       the environments of one worker; THE autoreset
serial       a backend in this process
processes    a backend of processes; launch starts and ends them, doorbell carries frames to and fro
ray_cluster  a backend of Ray's actors; ray_calls go to and fro, ray_actor is what runs there, ray_connection which
             cluster and what of it
cuda         no backend: kernels on a device step the environments
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

LATER = {"CUDA": "cuda", "Ray": "ray_cluster"}  # where they are asked for: importing pufferlib is to cost little


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LATER[name]}"), name)
