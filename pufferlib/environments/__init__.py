"""Families of environments: for each, a Python file in this folder and a TOML file of the same stem with settings.

A Python file defines ``FAMILY``, the names and requirements of its environments, and ``env_creator(name, **kwargs)``,
which makes one of them and imports other packages only then. The registry lists the files. The TOML files hold the
settings that a trainer starts with, as ``pufferlib/training/defaults.toml`` does. ``make test-envs`` installs each
family into a virtual environment of its own and plays the family's examples: see docs/environments.md.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

from pufferlib.errors import RegistryError
from pufferlib.util import compat_names
from pufferlib.util.annotations import GymnasiumEnv

__all__ = [
    "FOLDER",
    "Example",
    "Family",
    "families",
    "family_of",
    "from_gymnasium",
    "from_module",
    "member",
    "module",
    "register",
]

__getattr__ = functools.partial(compat_names.member, __name__)  # the names that PufferLib has here

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Example:
    """An environment of a family, and the arguments with which ``make test-envs`` plays it.

    env_kwargs: arguments of the environment, usually chosen for short episodes, because some episodes must end within
    1,000 steps.
    """

    name: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """The names and requirements of the environments that a file in this folder makes.

    names: shell patterns of the environments' names.
    package: the top-level module that the environments need.
    extra: the extra of pufferlib with which pip installs the package: ``pip install "pufferlib[extra]"``.
    examples: environments that ``make test-envs`` plays; the first is the default of ``env_creator``.
    folder: the dotted path of a package with one module per environment, named like the part of the environment's name
        after the "/"; if None, the names are Gymnasium ids or listed in ``members``.
    registers: the module that registers the ids with Gymnasium, if it is not the package.
    aliases: a map from prefixes of alternative names to the prefixes of the ids that these names stand for.
    listed: a function that reads names from the package's folder without importing the package; for names that it does
        not find, the package is imported.
    needs: further modules of the extra, without which some environments cannot be made.
    alone: whether a process can hold only one of these environments, and none if it was forked from a process that had
        one.
    """

    names: tuple[str, ...]
    description: str
    package: str
    extra: str
    examples: tuple[Example, ...]
    folder: str | None = None
    registers: str | None = None
    members: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    listed: Callable[[Path], Iterable[str]] | None = None
    needs: tuple[str, ...] = ()
    alone: bool = False


@functools.cache
def families() -> dict[str, Family]:
    """Return all families by the stem of their file, sorted by stem. Imports these files, but not the packages."""
    stems = sorted(file.stem for file in FOLDER.glob("[a-z]*.py"))
    return {stem: module(stem).FAMILY for stem in stems}


def family_of(name: str) -> tuple[str, Family, str] | None:
    """Return (stem, family, pattern) of the family that matches an environment's name, or None if none does."""
    for stem, family in families().items():
        for pattern in family.names:
            if fnmatchcase(name, pattern):
                return stem, family, pattern
    return None


def module(stem: str) -> ModuleType:
    """Import a family's module, given its stem, and return it."""
    return importlib.import_module(f"{__name__}.{stem}")


def register(family: Family) -> None:
    """Import the module that registers a family's ids with Gymnasium."""
    importlib.import_module(family.registers or family.package)


def from_gymnasium(family: Family, name: str, **kwargs: Any) -> GymnasiumEnv:
    """Register a family's ids with Gymnasium, and return the environment with the id ``name``, made with kwargs."""
    register(family)
    # Emulation checks every environment; the passive checker would check each step a second time.
    return gymnasium.make(name, **{"disable_env_checker": True, **kwargs})


def from_module(family: Family, name: str, attribute: str = "parallel_env", **kwargs: Any) -> Any:
    """Call a function of a module in the family's folder with kwargs, and return the environment that it makes.

    name: "family/module". attribute: the name of the function. Raises RegistryError if there is no such module.
    """
    path = f"{family.folder}.{name.rpartition('/')[2]}"
    try:
        family_module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise _unknown(family, name) from None
    return getattr(family_module, attribute)(**kwargs)


def member(family: Family, name: str) -> str:
    """Return the part after the "/" in a member's name. Raises RegistryError if the family has no such member."""
    if name not in family.members:
        raise _unknown(family, name)
    return name.rpartition("/")[2]


def _unknown(family: Family, name: str) -> RegistryError:
    start = family.names[0].removesuffix("*")
    return RegistryError(f'no environment is called "{name}"; `puffer envs {start}` lists those like it')
