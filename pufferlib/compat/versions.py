"""The version of PufferLib for which a program was written, as far as the program shows it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["version_of_creator", "version_of_imports"]

# A module that only one version has, so that the program that imported it was written for that version.
_ONLY_IN = {"pufferlib.frameworks": 1, "pufferlib.cleanrl": 2, "pufferlib.pufferl": 3}


def version_of_imports() -> int | None:
    """Return the version whose modules the program has imported; None if it has imported those of none, or of several.

    pufferlib.frameworks is of version 1, pufferlib.cleanrl of 2, pufferlib.pufferl of 3.
    """
    versions = {version for module, version in _ONLY_IN.items() if module in sys.modules}
    return versions.pop() if len(versions) == 1 else None


def version_of_creator(creator: Callable[..., Any]) -> int:
    """Return the version whose backends call a creator with exactly the parameters that this creator has.

    Version 3 passes ``buf`` and ``seed``, version 2 ``buf``, and version 1 neither. If the creator takes any keyword
    argument, the program's imports decide, and without any sign the result is 3.
    """
    names = parameters_of(creator)
    if names is None:
        return version_of_imports() or 3
    return 3 if "seed" in names else 2 if "buf" in names else version_of_imports() or 1


def parameters_of(creator: Callable[..., Any]) -> set[str] | None:
    """Return the names that a creator accepts as keywords; None if it accepts any, or if that cannot be found out."""
    try:
        parameters = inspect.signature(creator).parameters.values()
    except (TypeError, ValueError):
        return None
    names = {item.name for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)}
    if any(item.kind is item.VAR_KEYWORD for item in parameters) and not names & {"buf", "seed"}:
        return None
    return names
