"""Suggest the nearest valid name for a misspelt one."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from pufferlib.util.parameters import keywords_of

__all__ = ["meant", "near", "not_one_of", "says_what_was_meant"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LONG = 5  # with this many shared letters, even a short rest may have one slip
LEAST_START, LEAST_END = 0.43, 0.5  # shares of a name: "nash" suffices for "nash_conv", "size" not for "batch_size"


def near(name: str, known: Iterable[str], most: int = 1, *, parts: bool = True) -> list[str]:
    """Return up to ``most`` known names of which ``name`` may be a misspelling, nearest first; often an empty list.

    A name is near a known one if it differs only in case and separators, or in a few letters ("backnd"). If parts is
    True, two more kinds of names are near: those with abbreviated words ("n_envs"), and beginnings or ends that make up
    a large part of the known name ("multiproc", "workers"). Sharing one word is not enough.
    """
    ranks = ((_distance(name, other), index, other) for index, other in enumerate(known))
    ranked = sorted((rank, index, other) for rank, index, other in ranks if rank is not None and (parts or rank[0] < 2))
    return [other for _, _, other in ranked[:most]]


def meant(name: str, known: Iterable[str]) -> str:
    """Return a clause that suggests the nearest known name or, if none is near, lists the known names, if any."""
    known = list(known)
    suggestions = near(name, known)
    if suggestions:
        return f"did you mean {suggestions[0]}?"
    return f"there are {', '.join(known)}" if known else "it takes none"


def not_one_of(argument: str, value: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return the error text for a value that an argument does not accept; it suggests the nearest known value, if any.

    otherwise: text about further accepted values, which follows the list of known ones.
    """
    known = list(known)
    suggestions = near(value, known) if isinstance(value, str) else []
    reprs = [repr(name) for name in known]
    listed = " or ".join(reprs) if len(reprs) == 2 else f"one of {', '.join(reprs)}"
    text = f"{argument}={value!r} is not {listed}{otherwise}"
    return f"{text}; did you mean {suggestions[0]!r}?" if suggestions else text


def says_what_was_meant(
    nested: Callable[[], Mapping[str, Iterable[str]]] = dict,
    otherwise: str = "",
    parameters: type[Any] | None = None,
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Return a decorator that makes the TypeError for an unknown argument suggest the nearest argument.

    nested: a function that returns, for each dict argument, the names that belong in it. otherwise: the dict argument
        that takes all other names. If no name is near and otherwise is "", the error lists the function's arguments.
    parameters: a TypedDict, if the function's ``**kwargs`` unpack one (parameters.py). The decorated function's
        signature lists the TypedDict's parameters; parameters that are not passed get their defaults.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(function)
        keywords = [] if parameters is None else keywords_of(parameters)
        if keywords:
            *plain, _ = signature.parameters.values()  # the last are **kwargs
            signature = signature.replace(parameters=sorted([*keywords, *plain], key=lambda parameter: parameter.kind))
        known = [name for name in signature.parameters if name != "self"]

        @functools.wraps(function)
        def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            for name, value in kwargs.items():
                if name not in known:
                    called = function.__name__
                    if called in ("__init__", "__call__"):
                        called = type(args[0]).__name__ if called == "__init__" else str(args[0])
                    raise TypeError(f"{called}() has no argument {name}; {_advice(name, value, known)}")
            for keyword in keywords:
                kwargs.setdefault(keyword.name, keyword.default)
            return function(*args, **kwargs)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return checked

    def _advice(name: str, value: Any, known: list[str]) -> str:
        takers = {nested_name: taker for taker, names in nested().items() for nested_name in names}
        written = f"{otherwise}={{{name!r}: {value!r}}}" if otherwise else ""
        hint = f" An argument of the environment's own goes in {written}" if otherwise else ""
        if name in takers:
            return f"pass {takers[name]}={{{name!r}: {value!r}}}.{hint}"
        suggestions = near(name, known) or near(name, takers, parts=False)
        if not suggestions:
            return hint[1:2].lower() + hint[2:] if hint else meant(name, known)
        nearest = suggestions[0]
        suggestion = f"{takers[nearest]}={{{nearest!r}: {value!r}}}" if nearest in takers else nearest
        return f"did you mean {suggestion}?{hint}"

    return decorate


def _distance(name: str, known: str) -> tuple[int, int] | None:
    """Return the distance of a name from a known one, as a sort key; None if it is not near."""
    words, known_words = _words(name), _words(known)
    one, other = "".join(words), "".join(known_words)  # without separators
    if one == other:
        return (0, 0) if one else None
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(words, known_words, strict=False)))
    least = int(len("".join(words[:shared])) >= LONG)
    slips = _slips("".join(words[shared:]), "".join(known_words[shared:]), least)  # in the words that they do not share
    if slips is not None:
        return (1, slips)
    share = len(one) / len(other) if other else 1.0
    missing = len(other) - len(one)
    if LEAST_START <= share < 1 and len(one) > 2 and other.startswith(one):
        return (2, missing)
    if LEAST_END <= share < 1 and len(one) > 2 and words == known_words[-len(words) :]:
        return (2, missing)
    pairs = list(zip(words, known_words, strict=False))
    if len(words) == len(known_words) and any(a == b for a, b in pairs) and all(_abbreviates(a, b) for a, b in pairs):
        return (2, abs(missing))
    return None


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.lower())


def _abbreviates(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _slips(one: str, other: str, least_most: int) -> int | None:
    """Count the letters that differ or are missing, superfluous or swapped; return None if there are too many.

    The limit is 0 if the longer name has at most 2 letters, 1 for 3 or 4, 2 for 5 to 9, else 3, and never below
    least_most. The first letter must be right if the longer name has at most 3 letters, or if there is more than one
    slip.
    """
    longest = max(len(one), len(other))
    most = max(least_most, 0 if longest < 3 else 1 if longest < 5 else 2 if longest < 10 else 3)
    if abs(len(one) - len(other)) > most:
        return None
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        last, before, row = before, row, [i]
        for j, other_letter in enumerate(other, 1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other_letter))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == other_letter:
                least = min(least, last[j - 2] + 1)
            row.append(least)
        if min(row) > most:
            return None
    slips = row[-1]
    if slips > most or ((slips > 1 or longest < 4) and one[:1] != other[:1]):
        return None
    return slips
