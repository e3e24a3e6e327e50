"""Adapters of VecEnv to other libraries: thin, one file each, imported only where they are used."""

import importlib
import importlib.util
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Import an adapter on first use: ``import pufferlib`` is enough for ``pufferlib.adapters.sb3.make(…)``."""
    path = f"{__name__}.{name}"
    if name.startswith("_") or importlib.util.find_spec(path) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(path)
