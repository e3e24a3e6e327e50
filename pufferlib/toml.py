"""TOML, read and written: plans, and settings of trainers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pufferlib.errors import PlanError

__all__ = ["read_toml", "to_toml"]

BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key that needs no quotes


def read_toml(path: str | Path, hint: str) -> dict[str, Any]:
    """Return what a TOML file says. hint: what writes or describes such files, for the error.

    Raises PlanError if there is no such file, or if it is no TOML.
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


def to_toml(values: Mapping[str, Any], table: str = "") -> str:
    """Return str, bool, int and float values, lists and mappings of them, as TOML. None is left out.

    table: the name of the table that they are in, where it has one.
    """
    lines, tables = [], []
    for key, value in values.items():
        name = key if BARE.fullmatch(key) else _written(key)
        if isinstance(value, Mapping):
            path = f"{table}.{name}" if table else name
            tables.append(f"\n[{path}]\n{to_toml(value, path)}" if value else "")
        elif value is not None:
            lines.append(f"{name} = {_written(value)}\n")
    return "".join(lines + tables)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    # A JSON string is a TOML string, but for DEL, which TOML wants escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
