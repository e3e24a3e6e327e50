"""pufferlib: wrap any environment in one line, and run many of them on a backend of your choice.

env = pufferlib.wrap(raw_env)
vec = pufferlib.make("ocean/squared", backend="pool", num_envs=64, num_workers=8, batch_size=16, seed=1)
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from pufferlib import errors

if sys.platform == "win32":  # before any import that fails on Windows
    raise errors.PlatformError("pufferlib needs Linux or macOS; on Windows, run it in WSL (wsl --install)")

from pufferlib.errors import *  # noqa: F403  # the exception tree, listed in errors.__all__
from pufferlib.util import compat_names
from pufferlib.version import __version__

__all__ = [
    "Batch",
    "Episodes",
    "PufferEnv",
    "VecEnv",
    "__version__",
    "autotune",
    "evaluate",
    "load_plan",
    "make",
    "wrap",
    *errors.__all__,
]

if TYPE_CHECKING:
    from pufferlib.construct import make
    from pufferlib.emulation import wrap
    from pufferlib.environment import PufferEnv
    from pufferlib.evaluation.episodes import Episodes
    from pufferlib.evaluation.run import evaluate
    from pufferlib.tuning.autotune import autotune, load_plan
    from pufferlib.vectorization import Batch, VecEnv

# Imported on first use, so that importing pufferlib is fast.
_MODULE_OF = {
    "Batch": "vectorization",
    "Episodes": "evaluation.episodes",
    "PufferEnv": "environment",
    "VecEnv": "vectorization",
    "autotune": "tuning.autotune",
    "evaluate": "evaluation.run",
    "load_plan": "tuning.autotune",
    "make": "construct",
    "wrap": "emulation",
}
# The modules that only PufferLib 1 to 3 have. They come first: files that an installed PufferLib has left are not used.
__path__.insert(0, f"{__path__[0]}/compat/modules")  # noqa: F405
_MODULES = (
    *("adapters", "construct", "emulation", "environment", "environments", "evaluation", "layout", "models"),
    *("registry", "vectorization"),
)


def __getattr__(name: str) -> Any:
    """Return the public object or the submodule called ``name``, importing it on first use.

    Raises AttributeError for other names.
    """
    if name in _MODULES:
        return importlib.import_module(f"pufferlib.{name}")
    if name in _MODULE_OF:
        value = globals()[name] = getattr(importlib.import_module(f"pufferlib.{_MODULE_OF[name]}"), name)
        return value
    return compat_names.member(__name__, name)


def __dir__() -> list[str]:
    """List the names of this module, including those imported on demand."""
    return sorted({*globals(), *__all__, *_MODULES})
