"""What the words of a command say, by tyro: dataclasses whose fields are flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib.util import find_spec
from typing import Annotated, Any

from pufferlib.errors import MissingExtra

__all__ = ["parse", "require"]

ENV_HELP = "name (`puffer envs` lists them), Gymnasium id, or module:function of your own"


def require(*packages: str) -> None:
    """Raise MissingExtra, with the command to type, unless these packages of the extra "train" are there."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtra(f'this command needs {package}: pip install "pufferlib[train]"')


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
