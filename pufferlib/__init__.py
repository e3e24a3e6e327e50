"""pufferlib: wrap any environment in one line, run many on the backend that one argument names.

env = pufferlib.wrap(raw_env)
vec = pufferlib.make("ocean/squared", backend="pool", num_envs=64, num_workers=8, batch_size=16, seed=1)
"""

from pufferlib import errors
from pufferlib.autotune import autotune, load_plan
from pufferlib.backends import make
from pufferlib.emulation import wrap
from pufferlib.environment import PufferEnv
from pufferlib.errors import *  # noqa: F403  # the whole exception tree, listed there
from pufferlib.vectorization import Batch, VecEnv
from pufferlib.version import __version__

__all__ = [
    "Batch",
    "PufferEnv",
    "VecEnv",
    "__version__",
    "autotune",
    "load_plan",
    "make",
    "wrap",
    *errors.__all__,
]
