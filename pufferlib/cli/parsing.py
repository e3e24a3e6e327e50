"""What the words of a command say, by tyro: dataclasses whose fields are flags."""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import field
from decimal import Decimal
from importlib.util import find_spec
from typing import Annotated, Any

from pufferlib.errors import MissingExtra, PlanError

__all__ = ["parse", "require", "whole_numbers"]

_WHOLE = re.compile(r"[+-]?\d+(_\d+)*")
_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE]\+?\d{1,2}")
ENV_HELP = "name (`puffer envs` lists them), Gymnasium id, or module:function of your own"


def require(*packages: str) -> None:
    """Raise MissingExtra, with the command to type, unless these packages of the extra "train" are there."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtra(f'this command needs {package}: pip install "pufferlib[train]"')


def whole_numbers(kind: type[Any], words: Sequence[str]) -> list[str]:
    """Return the words with whole numbers that are written as 1e5 written out, where a flag takes whole numbers.

    kind: the dataclass whose fields are the flags. Raises PlanError for what is no whole number after a flag of one.
    """
    hints = _flags_of(kind)
    found, flag = [], ""
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else (flag, "", word)
        hint = hints.get(name)
        if hint is None or (name == word and not equals):  # no such flag, or its value is the next word
            found.append(word)
        else:
            written = _written_out(value, hint, name)
            found.append(f"{name}={written}" if equals else written)
        repeated = typing.get_origin(hint) is tuple
        flag = name if (word.startswith("--") and not equals) or repeated else ""
    return found


def _flags_of(kind: type[Any], prefix: str = "--") -> dict[str, Any]:
    """Return the types of the flags that take whole numbers, one or many."""
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
    if one and value != "None" and not _WHOLE.fullmatch(value):
        raise PlanError(f"{flag} {value} is no whole number; write one as 100000, 100_000 or 1e5")
    return value


def parse(
    kind: type[Any],
    command: str,
    words: Sequence[str],
    metavar: str = "ENV",
    text: str = ENV_HELP,
    name: str | None = "env",
    shape: Any = str,
    defaults: Mapping[str, Any] | None = None,
) -> Any:
    """Return what the words say: an instance of kind, a dataclass whose field ``name`` is given without a flag.

    name: None for flags only. shape: that field's type. defaults: in place of those of kind's fields, all of which have
    some.
    """
    require("tyro", "rich")
    import tyro

    try:
        words = whole_numbers(kind, words)
    except PlanError as error:
        print(f"puffer {command}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    description = (kind.__doc__ or "").strip()
    if name is None:
        return tyro.cli(kind, prog=f"puffer {command}", args=words, description=description)
    positional = Annotated[shape, tyro.conf.Positional, tyro.conf.arg(metavar=metavar, help=text)]
    default = next(each.default for each in dataclasses.fields(kind) if each.name == name)
    derived = dataclasses.make_dataclass(
        kind.__name__, [(name, positional, field(default=default))], bases=(kind,), frozen=True
    )
    instead = {} if defaults is None else {"default": derived(**defaults)}
    return tyro.cli(derived, prog=f"puffer {command}", args=words, description=description, **instead)
