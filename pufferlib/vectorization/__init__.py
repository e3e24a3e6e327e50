"""Vectorization: step many environments at once, behind one object.

vecenv       VecEnv, what users see of any backend
crewed       the VecEnv that workers step: checks, order of calls, from send to recv
batch        finished rows as views or gathers
slab         the arrays that environments and learner share
plan         counts and seeds
crew         the seam to whatever runs the workers
worker       the environments of one worker; THE autoreset
serial       a crew in this process
processes    a crew of processes; launch starts and ends them, doorbell carries frames to and fro
cuda         no crew: kernels on a device step the environments
"""

from pufferlib.vectorization.batch import Batch
from pufferlib.vectorization.cuda import CUDA
from pufferlib.vectorization.processes import Multiprocessing, Pool
from pufferlib.vectorization.serial import Serial
from pufferlib.vectorization.vecenv import VecEnv

__all__ = ["CUDA", "Batch", "Multiprocessing", "Pool", "Serial", "VecEnv"]
