"""The compiled twin of the hot path: optional, and the same to the bit as the plain Python that it stands in for.

``pack`` has the rows of nested spaces. The rest lies between ``send`` and ``recv``: ``fast_path`` is the parent's end,
``step_loop`` the workers', ``ring`` the shared words between them, and ``infos`` what travels next to rows.
``step_loop`` uses ``agents``, which steps environments of several agents. Where they were not built, or the platform
lacks futexes, everything runs without them; ``reason`` says why. PUFFERLIB_NATIVE=0 in the environment disables them, 1
requires them.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import warnings
from typing import Any

__all__ = ["agents", "available", "fast_path", "infos", "pack", "reason", "ring", "step_loop", "warn_of_portable_path"]

MODULES = ("pack", "infos", "ring", "agents", "step_loop", "fast_path")
# Its cache may hold the wheel without the compiled path.
REMEDY = "pip install again, with a C compiler at hand and --force-reinstall --no-cache-dir --no-deps"

available = False  # all of it, or none: half a compiled path is a third path to test
reason = ""  # in words, why it is not available
pack: Any = None
infos: Any = None
ring: Any = None
agents: Any = None
step_loop: Any = None
fast_path: Any = None


def _load() -> str:
    """Import the compiled modules; return why they are not used, "" if they are."""
    global pack, infos, ring, agents, step_loop, fast_path
    wish = os.environ.get("PUFFERLIB_NATIVE", "")
    if wish == "0":
        return "PUFFERLIB_NATIVE=0 leaves it out"
    if not sys.platform.startswith("linux"):
        why = f"{sys.platform} has no futexes"
    else:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)  # one of them was built anew, the other was not
                found = [importlib.import_module(f"{__name__}.{name}") for name in MODULES]
                pack, infos, ring, agents, step_loop, fast_path = found
            return ""
        except (ImportError, RuntimeWarning, TypeError, ValueError) as error:
            why = f"it was not built, or for another Python ({error}); {REMEDY}"
    if wish == "1":
        raise ImportError(f"PUFFERLIB_NATIVE=1, but the compiled path cannot be used: {why}")
    return why


@functools.cache
def warn_of_portable_path() -> None:
    """Warn once a process where there could be a compiled path and is none: pip does not show that it built none."""
    if reason and sys.platform.startswith("linux") and os.environ.get("PUFFERLIB_NATIVE", "") != "0":
        warnings.warn(
            f"pufferlib uses its portable path, which is slower: {reason}. "
            "PUFFERLIB_NATIVE=0 chooses it, and ends this warning",
            stacklevel=4,
        )


reason = _load()
available = not reason
