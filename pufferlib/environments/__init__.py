"""Families of environments: a file of this folder for each, and beside it the settings that suit them.

A file holds ``FAMILY``, which says what its environments are called and what they need, and ``env_creator(name,
**kwargs)``, which makes one; it imports the packages of others where one is made. The registry lists what files there
are. What a trainer begins with stands in the TOML file of the same stem, as in ``cleanrl_demo/defaults.toml``.
``make test-envs`` installs each family into a virtual environment of its own and plays it: docs/environments.md.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import gymnasium

from pufferlib.errors import RegistryError

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

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Example:
    """One environment of a family, and how ``make test-envs`` plays it.

    env_kwargs: arguments of the environment, as a rule such that episodes are short: some must end within 1,000 steps.
    """

    name: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """What a file of this folder makes.

    names: what its environments are called, patterns as of a shell. package: the top-level module
    without which there are none. extra: ``pip install "pufferlib[extra]"`` brings it. examples: the first is the
    default of ``env_creator``. folder: the dotted path of modules, one an environment, each called as it is behind the
    "/"; else they are ids of Gymnasium, or known to ``members``. registers: the module that makes the ids known, where
    it is not the package. aliases: beginnings of names that stand for such ids, and how these begin. listed: returns
    names that the package's folder tells without an import; what is not among them, the package is asked for. needs:
    further modules that the extra brings, without which some environments cannot be made. alone: whether a process can
    have no more than one of its environments, and none where one was when it was forked.
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
    """Return all families by the stems of their files, in that order. Imports nothing but these files."""
    stems = sorted(file.stem for file in FOLDER.glob("[a-z]*.py"))
    return {stem: module(stem).FAMILY for stem in stems}


def family_of(name: str) -> tuple[str, Family, str] | None:
    """Return the family that an environment's name is of: its stem, itself, and the pattern; None if there is none."""
    for stem, family in families().items():
        for pattern in family.names:
            if fnmatchcase(name, pattern):
                return stem, family, pattern
    return None


def module(stem: str) -> Any:
    """Return the module of a family."""
    return importlib.import_module(f"{__name__}.{stem}")


def register(family: Family) -> None:
    """Import what makes a family's ids known to Gymnasium."""
    importlib.import_module(family.registers or family.package)


def from_gymnasium(family: Family, name: str, **kwargs: Any) -> Any:
    """Return what is registered with Gymnasium, after the import of what registers it."""
    register(family)
    # Emulation checks every environment; the passive checker would check each step a second time.
    return gymnasium.make(name, **{"disable_env_checker": True, **kwargs})


def from_module(family: Family, name: str, attribute: str = "parallel_env", **kwargs: Any) -> Any:
    """Return what a module of the family's folder makes; name: "family/module". Raises RegistryError."""
    path = f"{family.folder}.{name.rpartition('/')[2]}"
    try:
        found = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise _unknown(family, name) from None
    return getattr(found, attribute)(**kwargs)


def member(family: Family, name: str) -> str:
    """Return what stands behind the "/" in the name of one of the family's members. Raises RegistryError."""
    if name not in family.members:
        raise _unknown(family, name)
    return name.rpartition("/")[2]


def _unknown(family: Family, name: str) -> RegistryError:
    start = family.names[0].removesuffix("*")
    return RegistryError(f'no environment is called "{name}"; `puffer envs {start}` lists those like it')
