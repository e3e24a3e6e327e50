"""The table of names that programs for PufferLib 1 to 3 import, and where pufferlib defines them.

The ``__getattr__`` of a package looks a missing name up here, so that ``pufferlib.compat`` is imported only by the
programs that need it. The modules that only PufferLib has are the files in ``pufferlib/compat/modules``, which
``pufferlib.__path__`` includes.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from pufferlib.errors import CallError

__all__ = ["MODULES", "NAMES", "REFUSED", "lead", "member"]

# The modules that only PufferLib has, and the modules here that take their place.
MODULES = {
    f"pufferlib.{name}": f"pufferlib.compat.{target}"
    for name, target in {
        "_C": "advantage_op",
        "cleanrl": "cleanrl",
        "exceptions": "exceptions",
        "frameworks.cleanrl": "cleanrl",
        "namespace": "namespace",
        "postprocess": "wrappers",
        "pufferl": "pufferl",
        "pufferlib": "top",
        "pytorch": "pytorch",
        "spaces": "spaces",
        "utils": "utils",
        "vector": "vector",
        "wrappers": "wrappers",
    }.items()
}

_OF_PACKAGE: dict[str, dict[str, tuple[str, ...]]] = {
    "pufferlib": {
        "exceptions": ("APIUsageError", "EnvironmentSetupError", "InvalidAgentError"),
        "namespace": ("Namespace", "dataclass"),
        "puffer_env": ("set_buffers",),
        "top": ("SimpleNamespace", "gymnasium", "np", "os", "warnings"),
        "utils": ("Suppress", "silence_warnings", "unroll_nested_dict"),
        "wrappers": (
            "ClipAction",
            "EpisodeStats",
            "GymToGymnasium",
            "MeanOverAgents",
            "MultiagentEpisodeStats",
            "PettingZooTruncatedWrapper",
            "PettingZooWrapper",
            "ResizeObservation",
        ),
    },
    "pufferlib.emulation": {
        "gymnasium_env": ("GymnasiumPufferEnv",),
        "pettingzoo_env": ("PettingZooPufferEnv",),
        "structs": (
            "check_space",
            "dtype_from_space",
            "emulate",
            "emulate_action_space",
            "emulate_copy",
            "emulate_observation_space",
            "flatten_space",
            "get_dtype_bounds",
            "make_buffer",
            "make_object",
            "nativize",
            "pad_agent_data",
        ),
    },
    "pufferlib.models": {
        "models": ("ConvSequence", "Convolutional", "Default", "LSTMWrapper", "ProcgenResnet", "ResidualBlock"),
    },
    "pufferlib.environments": {"utils": ("try_import",)},
    "pufferlib.environment": {"puffer_env": ("adopt", "set_buffers")},
}

# The module that defines each name, by (package, name).
NAMES = {
    (package, name): f"pufferlib.compat.{target}"
    for package, targets in _OF_PACKAGE.items()
    for target, names in targets.items()
    for name in names
}

# The reason that a name is missing, with what to use in its place.
REFUSED = {
    ("pufferlib.emulation", "GymnaxPufferEnv"): "use pufferlib.adapters.gymnax, which makes environments of Gymnax",
}


def member(package: str, name: str) -> Any:
    """Return the value of a name that PufferLib's package of this name has.

    For a name that is refused, this is a class whose constructor raises CallError with the name to use instead: an
    AttributeError would lose its text in ``from package import name``. Raises AttributeError for any other name.
    """
    if (package, name) in NAMES:
        return getattr(import_module(NAMES[package, name]), name)
    module = f"{package}.{name}"
    if module in MODULES or any(path.startswith(f"{module}.") for path in MODULES):
        return import_module(module)
    if (package, name) in REFUSED:
        return _refused(package, name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def _refused(package: str, name: str) -> type:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise CallError(f"{package} has no {name}: {REFUSED[package, name]}")

    return type(name, (), {"__module__": package, "__init__": refuse})


def lead(module: str) -> Any:
    """Replace a module of PufferLib, while it is being imported, with the module that takes its place; return that."""
    sys.modules[module] = import_module(MODULES[module])
    return sys.modules[module]
