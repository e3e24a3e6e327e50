"""A parser of a trainer's flags for machines without tyro."""

from __future__ import annotations

import argparse
import ast
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from pufferlib.util.toml import checked

__all__ = ["literal", "plain_flags"]

EPILOG = "Where tyro is installed, this help explains each setting: pip install tyro"


def plain_flags(kind: type[Any], arguments: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all fields of a dataclass, each of which is a flag, as tyro would parse them.

    Booleans are set by ``--track`` and ``--no-track``. The flag of a tuple takes any number of values, and that of a
    mapping any number of pairs of a key and a value: ``--env-kwargs size 5 name a``. A mapping's values are Python
    literals; text that is no literal stands for itself.
    kind: a dataclass whose fields all have defaults. defaults: values to use in place of these defaults, by field.
    Exits if a flag is unknown or lacks its value. Raises PlanError for a value of the wrong type.
    """
    hints, values = typing.get_type_hints(kind), {**vars(kind()), **defaults}
    parser = argparse.ArgumentParser(description=kind.__doc__, epilog=EPILOG, allow_abbrev=False)
    for field in fields(kind):
        origin = typing.get_origin(hints[field.name])
        options: dict[str, Any] = {"metavar": "VALUE"}
        if hints[field.name] is bool:
            options = {"action": argparse.BooleanOptionalAction}
        elif origin is tuple or _is_mapping(origin):
            options |= {"nargs": "*"}
        text = f"default: {values[field.name]!r}".replace("%", "%%")
        parser.add_argument(f"--{field.name.replace('_', '-')}", default=argparse.SUPPRESS, help=text, **options)
    flags = vars(parser.parse_args([_with_dashes(argument) for argument in arguments]))
    parsed = {name: _value(hints[name], flag, f"--{name.replace('_', '-')}", parser) for name, flag in flags.items()}
    return {**values, **checked(parsed, kind, "the command line")}


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _with_dashes(argument: str) -> str:
    """Return a flag with dashes for underscores; return any other argument unchanged."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}"


def _value(hint: Any, words: Any, flag: str, parser: argparse.ArgumentParser) -> Any:
    """Convert what argparse returned for a flag to the type of its field, as far as the type determines it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return tuple(literal(word) for word in words)
    if _is_mapping(origin):
        if len(words) % 2:
            parser.error(f"argument {flag}: expected pairs of a key and a value")
        return {key: literal(word) for key, word in zip(words[::2], words[1::2], strict=True)}
    if hint is bool or hint is str:
        return words
    if origin in (typing.Union, types.UnionType) and str in arguments:
        return None if words == "None" else words
    return literal(words)


def literal(text: str) -> Any:
    """Return the value of a Python literal; return other text unchanged."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
