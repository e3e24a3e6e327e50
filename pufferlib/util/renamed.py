"""Keep deprecated names working for one more release, with a warning."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

__all__ = ["moved_module", "renamed_arguments", "renamed_members"]

Function = TypeVar("Function", bound=Callable[..., Any])


def renamed_members(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module that resolves the old names of renamed members.

    names: the new name for each old name. Using an old name issues a DeprecationWarning at the line that uses it; any
    name that is not in names raises AttributeError.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {module}.{names[name]}", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return find


def moved_module(old: str, new: str) -> None:
    """Replace the module ``old``, while it is being imported, with ``new``, and issue a DeprecationWarning."""
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
    sys.modules[old] = import_module(new)


def renamed_arguments(**names: str) -> Callable[[Function], Function]:
    """Return a decorator that lets a function take arguments under their old names, with a DeprecationWarning.

    names: the new name for each old name. Each call costs one extra function call. A call with both names of an
    argument raises TypeError.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def renamed(*args: Any, **kwargs: Any) -> Any:
            for old in names.keys() & kwargs.keys() if kwargs else ():  # most calls have none
                if names[old] in kwargs:
                    raise TypeError(f"{function.__name__}() got both {names[old]} and {old}, its old name; pass one")
                warnings.warn(f"the argument {old} is now {names[old]}", DeprecationWarning, stacklevel=2)
                kwargs[names[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return renamed  # type: ignore[return-value]

    return decorate
