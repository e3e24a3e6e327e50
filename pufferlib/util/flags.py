"""Integers in command-line arguments, written in full."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from pufferlib.errors import PlanError

__all__ = ["whole_numbers"]

_INTEGER = re.compile(r"[+-]?\d+(_\d+)*")
_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE]\+?\d{1,2}")


def whole_numbers(kind: type[Any], arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the integer values of flags written in full, such as 100000 for 1e5.

    kind: the dataclass whose fields are the flags. Raises PlanError if a flag takes a single integer, and its value is
    neither an integer nor "None".
    """
    hints = _flags_of(kind)
    results, flag = [], ""
    for argument in arguments:
        name, equals, value = argument.partition("=") if argument.startswith("--") else (flag, "", argument)
        hint = hints.get(name)
        if hint is None or (name == argument and not equals):  # no such flag, or its value is the next argument
            results.append(argument)
        else:
            written = _written_out(value, hint, name)
            results.append(f"{name}={written}" if equals else written)
        repeated = typing.get_origin(hint) is tuple
        flag = name if (argument.startswith("--") and not equals) or repeated else ""
    return results


def _flags_of(kind: type[Any], prefix: str = "--") -> dict[str, Any]:
    """Return the flags that take one or more integers, with their types."""
    flags: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        flag = prefix + name.replace("_", "-")
        if dataclasses.is_dataclass(hint):
            flags |= _flags_of(hint, f"{flag}.")  # type: ignore[arg-type]
        elif hint in (int, int | None, tuple[int, ...], tuple[int, ...] | None):
            flags |= {flag: hint, prefix + name: hint}
    return flags


def _written_out(value: str, hint: Any, flag: str) -> str:
    if _EXPONENT.fullmatch(value) and Decimal(value) == int(Decimal(value)):
        return str(int(Decimal(value)))
    one = hint in (int, int | None)
    if one and value != "None" and not _INTEGER.fullmatch(value):
        raise PlanError(f"{flag} {value} is not a whole number; write one as 100000, 100_000 or 1e5")
    return value
