"""Names that are none, answered with the nearest one that is."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

__all__ = ["meant", "near", "not_one_of", "says_what_was_meant"]

Given = ParamSpec("Given")
Made = TypeVar("Made")

LONG = 5  # letters that two names have in common, after which one slip is one in whatever follows
LEAST_START, LEAST_END = 0.43, 0.5  # of a name's letters: "nash" is enough of "nash_conv", "size" not of "batch_size"


def near(name: str, known: Iterable[str], most: int = 1, *, parts: bool = True) -> list[str]:
    """Return the known names that this one can be a slip for, the nearest first: at most so many, often none.

    Near is what differs in case and separators or in a few letters ("backnd") and, with parts, what abbreviates words
    ("n_envs") or is a large part of a name, at its beginning or its end ("multiproc", "workers"). A word in common is
    not enough.
    """
    ranks = ((_distance(name, each), index, each) for index, each in enumerate(known))
    found = sorted((rank, index, each) for rank, index, each in ranks if rank is not None and (parts or rank[0] < 2))
    return [each for _, _, each in found[:most]]


def meant(name: str, known: Iterable[str]) -> str:
    """Return what a name that is none was meant for, or what there is, as a clause."""
    known = list(known)
    found = near(name, known)
    if found:
        return f"did you mean {found[0]}?"
    return f"there are {', '.join(known)}" if known else "it takes none"


def not_one_of(argument: str, value: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return the sentence about a value that is none of those that an argument takes. otherwise: what it takes, too."""
    known = list(known)
    found = near(value, known) if isinstance(value, str) else []
    words = [repr(each) for each in known]
    listed = " or ".join(words) if len(words) == 2 else f"one of {', '.join(words)}"
    text = f"{argument}={value!r} is not {listed}{otherwise}"
    return f"{text}; did you mean {found[0]!r}?" if found else text


def says_what_was_meant(
    elsewhere: Callable[[], Mapping[str, Iterable[str]]] = dict, otherwise: str = ""
) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """Have a function answer arguments that it does not have with the nearest one that it has.

    elsewhere: returns the arguments that go into a dict, by the argument that takes the dict. otherwise: the one that
    takes all others. Where nothing is near, and there is no such one, the function's own arguments are named.
    """

    def answering(function: Callable[Given, Made]) -> Callable[Given, Made]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def asked(*args: Given.args, **kwargs: Given.kwargs) -> Made:
            for name, value in kwargs.items():
                if name not in known:
                    called = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
                    raise TypeError(f"{called}() has no argument {name}; {_advice(name, value, known)}")
            return function(*args, **kwargs)

        return asked

    def _advice(name: str, value: Any, known: list[str]) -> str:
        places = {each: taker for taker, names in elsewhere().items() for each in names}
        shown = f"{otherwise}={{{name!r}: {value!r}}}" if otherwise else ""
        own = f" An argument of the environment's own goes in {shown}" if otherwise else ""
        if name in places:
            return f"pass {places[name]}={{{name!r}: {value!r}}}.{own}"
        found = near(name, known) or near(name, places, parts=False)
        if not found:
            return own[1:2].lower() + own[2:] if own else meant(name, known)
        as_given = f"{places[found[0]]}={{{found[0]!r}: {value!r}}}" if found[0] in places else found[0]
        return f"did you mean {as_given}?{own}"

    return answering


def _distance(name: str, known: str) -> tuple[int, int] | None:
    """Return how far a name is from a known one, to be sorted by; None where it is not near."""
    ours, theirs = _words(name), _words(known)
    one, other = "".join(ours), "".join(theirs)
    if one == other:
        return (0, 0) if one else None
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
    least = int(len("".join(ours[:shared])) >= LONG)
    slips = _slips("".join(ours[shared:]), "".join(theirs[shared:]), least)  # of what they do not share anyway
    if slips is not None:
        return (1, slips)
    share = len(one) / len(other) if other else 1.0
    missing = len(other) - len(one)
    if LEAST_START <= share < 1 and len(one) > 2 and other.startswith(one):
        return (2, missing)
    if LEAST_END <= share < 1 and len(one) > 2 and ours == theirs[-len(ours) :]:
        return (2, missing)
    pairs = list(zip(ours, theirs, strict=False))
    if len(ours) == len(theirs) and any(a == b for a, b in pairs) and all(_abbreviates(a, b) for a, b in pairs):
        return (2, abs(missing))
    return None


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.lower())


def _abbreviates(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _slips(one: str, other: str, least_most: int) -> int | None:
    """Return how many letters differ, are missing, too many or swapped; None where that is too many for a slip.

    At most 1 in names of 3 or 4 letters, 2 up to 9, else 3, and never less than least_most. In names of 3 letters, and
    from the second slip on, the first letter has to be right.
    """
    longest = max(len(one), len(other))
    most = max(least_most, 0 if longest < 3 else 1 if longest < 5 else 2 if longest < 10 else 3)
    if abs(len(one) - len(other)) > most:
        return None
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        last, before, row = before, row, [i]
        for j, theirs in enumerate(other, 1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != theirs))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == theirs:
                least = min(least, last[j - 2] + 1)
            row.append(least)
        if min(row) > most:
            return None
    slips = row[-1]
    if slips > most or ((slips > 1 or longest < 4) and one[:1] != other[:1]):
        return None
    return slips
