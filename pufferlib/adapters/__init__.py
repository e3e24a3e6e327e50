"""Thin adapters between VecEnv and other libraries: one module per library, imported on first use.

sb3, tianshou, torchrl, skrl, rllib, dm_env, cleanrl   a VecEnv as these libraries' environments; cleanrl_wrappers,
                    sb3_evaluation and sb3_policy belong to the modules of these names
gymnasium_vector    replacements for Gymnasium's SyncVectorEnv and AsyncVectorEnv; gymnasium_vecenv is their base class
gymnasium_rows      a VecEnv on any backend as a Gymnasium VectorEnv
agent_rows          each agent of a multi-agent VecEnv as an environment of its own
envpool, gymnax     environments of these libraries in a VecEnv
common, split_env   what several adapters need
"""

import importlib
import importlib.util
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Import an adapter on first use, so that ``import pufferlib`` suffices for ``pufferlib.adapters.sb3.make(…)``."""
    path = f"{__name__}.{name}"
    if name.startswith("_") or importlib.util.find_spec(path) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(path)
