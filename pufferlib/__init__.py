"""pufferlib: wrap any environment in one line, run many on the backend that one argument names.

env = pufferlib.wrap(raw_env)
vec = pufferlib.make("ocean/squared", backend="pool", num_envs=64, num_workers=8, batch_size=16, seed=1)
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from pufferlib import errors

if sys.platform == "win32":  # before anything is imported that Windows lacks
    raise errors.PlatformError("pufferlib needs Linux or macOS; on Windows, run it in WSL (wsl --install)")

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

if TYPE_CHECKING:
    from pufferlib.tuning import autotune, load_plan


def __getattr__(name: str) -> Any:
    """Import what is for some occasions only, on that occasion: importing pufferlib is to cost little."""
    if name == "adapters":
        return importlib.import_module("pufferlib.adapters")
    if name not in ("autotune", "load_plan"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pufferlib import tuning

    return getattr(tuning, name)
