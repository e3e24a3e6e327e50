"""The compiled hot path: optional, with results identical to plain Python's, bit for bit.

``pack`` packs nested samples into rows. ``staging`` counts and copies an evaluation's rows for its policy. The other
modules work between ``send`` and ``recv``: ``fast_path`` runs in the parent and ``step_loop`` in the workers. Both
communicate through ``ring`` (mailboxes and counters in shared memory) and encode infos with ``infos``. ``step_loop``
uses ``agents`` for multi-agent environments. If the modules were not built, or the platform lacks futexes, pufferlib
runs without them, and ``reason`` holds the cause. The environment variable PUFFERLIB_NATIVE=0 disables them. With
PUFFERLIB_NATIVE=1, the import raises ImportError if they cannot be used.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import warnings
from pathlib import Path
from typing import Any

__all__ = [
    "agents",
    "available",
    "fast_path",
    "infos",
    "pack",
    "reason",
    "ring",
    "staging",
    "step_loop",
    "warn_of_portable_path",
]

MODULES = ("pack", "infos", "ring", "agents", "step_loop", "fast_path", "staging")
# pip's cache may hold a wheel without the compiled path.
REMEDY = "pip install again, with a C compiler at hand and --force-reinstall --no-cache-dir --no-deps"

available = False  # all modules or none: half a compiled path would be a third path to test
reason = ""  # why it is not available
pack: Any = None
infos: Any = None
ring: Any = None
agents: Any = None
step_loop: Any = None
fast_path: Any = None
staging: Any = None


def _load() -> str:
    """Import the compiled modules; return the reason why they are not used, or "" if they are.

    Raises ImportError if PUFFERLIB_NATIVE=1 requires them but they cannot be used.
    """
    global pack, infos, ring, agents, step_loop, fast_path, staging
    setting = os.environ.get("PUFFERLIB_NATIVE", "")
    if setting == "0":
        return "PUFFERLIB_NATIVE=0 leaves it out"
    if not sys.platform.startswith("linux"):
        cause = f"{sys.platform} has no futexes"
    else:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)  # one module was rebuilt, the other was not
                modules = [importlib.import_module(f"{__name__}.{name}") for name in MODULES]
                pack, infos, ring, agents, step_loop, fast_path, staging = modules
            return ""
        except (ImportError, RuntimeError, RuntimeWarning, TypeError, ValueError) as error:
            cause = f"it was not built, or for another Python ({error}); {_remedy()}"
    if setting == "1":
        raise ImportError(f"PUFFERLIB_NATIVE=1, but the compiled path cannot be used: {cause}")
    return cause


def _remedy() -> str:
    """Return advice on how to get the compiled path, which could not be imported."""
    from importlib import metadata  # it adds to the time of each import, and is rarely needed

    here = Path(__file__).parents[1]
    for distribution in metadata.distributions(name="pufferlib"):
        installed = Path(str(distribution.locate_file("pufferlib")))
        if installed.is_dir() and not installed.samefile(here):  # such as a checkout in the current folder
            return f"{here} hides the pufferlib that is installed in {installed.parent}; start Python in another folder"
    return REMEDY


@functools.cache
def warn_of_portable_path() -> None:
    """Warn, once per process, if the compiled path is missing on a platform that supports it, unless it is disabled.

    Without the warning, a failed build would go unnoticed, because pip does not show it.
    """
    if reason and sys.platform.startswith("linux") and os.environ.get("PUFFERLIB_NATIVE", "") != "0":
        warnings.warn(
            f"pufferlib uses its portable path, which is slower: {reason}. "
            "PUFFERLIB_NATIVE=0 chooses it, and ends this warning",
            stacklevel=4,
        )


reason = _load()
available = not reason
