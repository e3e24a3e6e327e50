"""The version of PufferLib for which a program was written, as far as the program shows it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from pufferlib.environment import PufferEnv

__all__ = ["calls", "version_of_creator", "version_of_program"]

# A module that only one version has, so that the program that imported it was written for that version.
_ONLY_IN = {"pufferlib.frameworks": 1, "pufferlib.cleanrl": 2, "pufferlib.pufferl": 3}

calls: set[int] = set()
"""The versions of which the program has called a function that no other version has; such functions add themselves."""


def version_of_program() -> int | None:
    """Return the version that the program has shown to be its own; None if it has shown none, or several.

    It shows it by importing a module, or by calling a function, that no other version has: pufferlib.frameworks and
    emulation.emulate_copy are of version 1, pufferlib.cleanrl of 2, pufferlib.pufferl of 3.
    """
    versions = calls | {version for module, version in _ONLY_IN.items() if module in sys.modules}
    return versions.pop() if len(versions) == 1 else None


def version_of_creator(creator: Callable[..., Any]) -> int:
    """Return the version whose backends call a creator with exactly the parameters that this creator has.

    Version 3 passes ``buf`` and ``seed``, version 2 ``buf``, and version 1 neither. If the creator takes any keyword
    argument and does not name ``seed``, ``version_of_program`` decides, and without any sign the result is 3.
    """
    names, takes_any = parameters_of(creator)
    if takes_any and "seed" not in names:
        return version_of_program() or 3
    return 3 if "seed" in names else 2 if "buf" in names else version_of_program() or 1


def parameters_of(creator: Callable[..., Any]) -> tuple[set[str], bool]:
    """Return the keywords that a creator names, and whether it accepts any others.

    Without a signature, as in some extension modules, the result is no names and False.
    """
    try:
        parameters = inspect.signature(_constructor(creator)).parameters.values()
    except (TypeError, ValueError):
        return set(), False
    names = {item.name for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)}
    return names, any(item.kind is item.VAR_KEYWORD for item in parameters)


def _constructor(creator: Any) -> Any:
    """Return ``__init__`` in place of a class that defines it: the methods of PufferEnv accept any argument."""
    if isinstance(creator, functools.partial):
        return functools.partial(_constructor(creator.func), *creator.args, **creator.keywords)
    init = creator.__init__ if isinstance(creator, type) else None  # type: ignore[misc]
    if init is PufferEnv.__init__:
        return object  # takes nothing
    return creator if init in (None, object.__init__) else functools.partial(init, None)
