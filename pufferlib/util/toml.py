"""Read and write TOML: plans, and the settings of trainers and leagues."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pufferlib.errors import PlanError
from pufferlib.util.suggestions import meant

__all__ = ["checked", "read_toml", "to_toml"]


def read_toml(path: str | Path, hint: str) -> dict[str, Any]:
    """Return the values of a TOML file. Raises PlanError if the file cannot be read or is not valid TOML.

    hint: text that ends error messages, such as the command that writes these files.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        values: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path} cannot be read ({error.strerror}); {hint}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} is no TOML ({error}); {hint}") from error
    return values


def checked(values: Mapping[str, Any], config_type: type[Any], source: str) -> dict[str, Any]:
    """Convert values to the types of a dataclass's fields: lists to tuples, ints to floats, whole floats to ints.

    source: the origin of the values, for error messages. Raises PlanError for a key that is not a field, and for a
    value of a wrong type.
    """
    type_hints = typing.get_type_hints(config_type)
    hints = {field.name: type_hints[field.name] for field in fields(config_type)}
    converted = {}
    for name, value in values.items():
        if name not in hints:
            raise PlanError(f"{source} has {name}, which is no setting; {meant(name, hints)}")
        try:
            converted[name] = _as(hints[name], value)
        except TypeError:
            raise PlanError(f"{source} has {name}={value!r}; it takes {_description(hints[name])}") from None
    return converted


def _as(hint: Any, value: Any) -> Any:
    """Convert a JSON or TOML value to a type; return it unchanged if the type is not one of those handled here.

    Raises TypeError if the value does not fit the type.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for part in arguments:
            try:
                return _as(part, value)
            except TypeError:
                continue
        raise TypeError
    if origin is typing.Literal:
        fits = value in arguments
    elif origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise TypeError
        return tuple(_as(arguments[0], item) for item in value)
    elif origin is not None and issubclass(origin, Mapping):
        fits = isinstance(value, Mapping)
    elif hint is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        value = float(value) if fits else value
    elif hint is int:
        value = int(value) if isinstance(value, float) and value.is_integer() else value  # such as 1e5
        fits = isinstance(value, int) and not isinstance(value, bool)
    elif hint in (str, bool, types.NoneType):
        fits = isinstance(value, hint)
    else:
        return value
    if not fits:
        raise TypeError
    return value


def _description(hint: Any) -> str:
    """Describe the values that a type accepts, for error messages."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_description(part) for part in arguments)
    if origin is typing.Literal:
        return " or ".join(map(repr, arguments))
    if origin is tuple:
        return f"a list, each {_description(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return "a table"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", types.NoneType: "null"}
    return names.get(hint, str(hint))


def to_toml(values: Mapping[str, Any]) -> str:
    """Format str, bool, int and float values (also NumPy's), and lists and mappings of them, as TOML.

    Keys whose value is None or an empty mapping are omitted. Other values are written as their ``str``.
    """
    import tomli_w

    return tomli_w.dumps(_plain(values))


def _plain(value: Any) -> Any:
    """Convert a value to the types that tomli-w writes."""
    value = value.item() if hasattr(value, "item") else value  # NumPy's numbers
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None and item != {}}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float)) else str(value)
