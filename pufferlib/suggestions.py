"""Names that are none, answered with the nearest one that is."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

__all__ = ["meant", "says_what_was_meant"]

Given = ParamSpec("Given")
Made = TypeVar("Made")


def meant(name: str, known: Iterable[str]) -> str:
    """Return what a name that is none was meant for, or what there is, as a clause."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"did you mean {near[0]}?"
    return f"there are {', '.join(known)}" if known else "it takes none"


def says_what_was_meant(elsewhere: str = "") -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """Have a function answer arguments that it does not have with the nearest one that it has.

    elsewhere: a clause about where else they go, to be formatted with name and value; without it, and with nothing
    near, all that there are are named.
    """

    def answering(function: Callable[Given, Made]) -> Callable[Given, Made]:
        known = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def asked(*args: Given.args, **kwargs: Given.kwargs) -> Made:
            for name, value in kwargs.items():
                if name not in known:
                    near, other = meant(name, known), elsewhere.format(name=name, value=value)
                    if near.startswith("did") and other:
                        near = f"{near} {other[0].upper()}{other[1:]}"
                    elif other:
                        near = other
                    raise TypeError(f"{function.__name__}() has no argument {name}; {near}")
            return function(*args, **kwargs)

        return asked

    return answering
