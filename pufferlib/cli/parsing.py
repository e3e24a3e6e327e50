"""A parser of commands' arguments, which uses tyro to fill dataclasses whose fields are flags."""

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

_INTEGER = re.compile(r"[+-]?\d+(_\d+)*")
_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE]\+?\d{1,2}")
ENV_HELP = "name (`puffer envs` lists them), Gymnasium id, or your own module:function"


def require(*packages: str) -> None:
    """Raise MissingExtra, with the pip command, unless these packages of the extra "train" are installed."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtra(f'this command needs {package}: pip install "pufferlib[train]"')


def whole_numbers(kind: type[Any], arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the integers after flags written in full, such as 100000 for 1e5.

    kind: the dataclass whose fields are the flags. Raises PlanError if the value of a flag for one integer is
    neither an integer nor None.
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


def parse(
    kind: type[Any],
    command: str,
    arguments: Sequence[str],
    metavar: str = "ENV",
    text: str = ENV_HELP,
    name: str | None = "env",
    shape: Any = str,
    defaults: Mapping[str, Any] | None = None,
) -> Any:
    """Parse arguments into an instance of kind, a dataclass whose field ``name`` is positional.

    command: the command's name, for messages. name: None if all fields are flags. metavar, text: the positional
    argument's name and help. shape: its type. defaults: the defaults of all fields, in place of kind's. Exits with
    status 2 for wrong arguments. Raises MissingExtra if tyro or rich is not installed.
    """
    require("tyro", "rich")
    import tyro

    try:
        arguments = whole_numbers(kind, arguments)
    except PlanError as error:
        print(f"puffer {command}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    description = (kind.__doc__ or "").strip()
    if name is None:
        return tyro.cli(kind, prog=f"puffer {command}", args=arguments, description=description)
    positional = Annotated[shape, tyro.conf.Positional, tyro.conf.arg(metavar=metavar, help=text)]
    default = next(option.default for option in dataclasses.fields(kind) if option.name == name)
    derived = dataclasses.make_dataclass(
        kind.__name__, [(name, positional, field(default=default))], bases=(kind,), frozen=True
    )
    instead = {} if defaults is None else {"default": derived(**defaults)}
    return tyro.cli(derived, prog=f"puffer {command}", args=arguments, description=description, **instead)
