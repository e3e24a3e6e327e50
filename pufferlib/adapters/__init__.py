"""Thin adapters between VecEnv and other libraries: one module per library, imported on first use."""

import importlib
import importlib.util
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Import an adapter on first use, so that ``import pufferlib`` suffices for ``pufferlib.adapters.sb3.make(…)``."""
    path = f"{__name__}.{name}"
    if name.startswith("_") or importlib.util.find_spec(path) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(path)
