"""A parser of commands' arguments, which uses tyro to fill dataclasses whose fields are flags."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib.util import find_spec
from typing import Annotated, Any

from pufferlib.errors import MissingExtra, PlanError
from pufferlib.util.flags import whole_numbers

__all__ = ["parse", "require"]

ENV_HELP = "name (`puffer envs` lists them), Gymnasium id, or your own module:function"


def require(*packages: str) -> None:
    """Raise MissingExtra, with the pip command, unless these packages of the extra "train" are installed."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtra(f'this command needs {package}: pip install "pufferlib[train]"')


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

    command: the command's name, for messages. name: None if all fields are flags. metavar, text, shape: the name, help
    and type of the positional argument. defaults: the defaults of all fields, in place of kind's; ignored if name is
    None. Exits with status 2 for wrong arguments. Raises MissingExtra if tyro or rich is not installed.
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
