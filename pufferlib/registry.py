"""The one registry: what a name such as "ocean/squared", "MiniGrid-Empty-8x8-v0" or "my_game:make_env" stands for.

    ocean/squared                            a file of the ``ocean`` package; adding a file adds a name
    tag/grid, tag/continuous, classic/cartpole
                                             a kernel of ``cuda_ext``, by its reference; adding the files adds a name
    mpe/…, MiniGrid-…, atari/…               what a family of ``pufferlib.environments`` makes; adding a file adds it
    my_game:Maze-v0                          any other id of Gymnasium
    my_game:make_env                         a callable of yours, on the module search path

Nothing is imported until a creator is asked for, and packages of others only where it is called, in the worker; but a
family that is asked for a name which it does not list asks its package at once.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium

from pufferlib import environments
from pufferlib.environments import Family
from pufferlib.errors import MissingExtra, RegistryError
from pufferlib.util.suggestions import near

__all__ = ["Entry", "creator", "find", "installed", "load", "missing", "named", "names"]


@dataclass(frozen=True)
class Entry:
    """One environment, or a family whose members share what stands before "…" in its name."""

    name: str
    target: str  # "module:attribute" of the creator, or the id in Gymnasium's registry
    package: str  # the top-level module without which it cannot be made
    extra: str  # pip install "pufferlib[extra]" brings the package; "" where it is no package of others
    description: str
    family: str = ""  # the stem of its file in pufferlib.environments, which makes it


_MODULE_NAME = re.compile(r"\w+_v\d+")  # of an environment, among the helpers in a PettingZoo folder
_CALLABLE = re.compile(r"[\w.]+:[A-Za-z_][\w.]*")  # module:function
_FOR_CUDA = (
    'is a kernel, which backend "cuda" plays: add backend="cuda" (--backend cuda) and, without a GPU, device="host" '
    "(--device host)"
)
_VERSION = re.compile(r"[-_]v(\d+)$")
_MODULE_ID = re.compile(r"[\w.]+:.+-v\d+")  # module:Id-v0, as Gymnasium has it
_FILE = re.compile(r"(.+)\.py(?::(.*))?")  # file.py:function, which people type for module:function
# What pip calls the packages of our extras, and what those need in turn, by the modules that are imported.
_OF_EXTRAS = """lbforaging magent2 matplotlib minigrid mpe2 optuna pettingzoo pygame rich scipy tensorboard torch tyro
    wandb"""
_PIP_NAMES = {
    "ale_py": "ale-py",
    "Box2D": "box2d",
    "cv2": "opencv-python-headless",
    "imageio_ffmpeg": "imageio-ffmpeg",
    "PIL": "pillow",
    **{name: name for name in _OF_EXTRAS.split()},
}


def names(members: bool = True) -> list[Entry]:
    """Return what can be named: each environment that is known, and the families whose members are not known here.

    members: name those of families too, as far as they are known without an import: modules in a folder, and what has
    registered itself with Gymnasium; else each family is named by its patterns alone.
    """
    entries = [*_ocean(), *_kernels()]
    for stem, family in environments.families().items():
        for pattern in family.names:
            found = list(_members(stem, family, pattern)) if members else []
            entries += found or [_of_family(stem, family, pattern.replace("*", "…"))]
    return entries


def find(name: str) -> Entry:
    """Return the entry of a name; one may exist without its package being installed, see ``installed``.

    Raises RegistryError, with the names that are like it.
    """
    _refuse_file(name)
    entry = next(itertools.chain(_ocean(name), _kernels(name)), None)
    if entry is not None:
        return entry
    found = _family_of(name)
    if found is not None:
        stem, family, pattern = found
        entry = _of_family(stem, family, name)
        if not _is_there(entry.package) or _may_be(stem, family, pattern, entry):
            return entry
    if _CALLABLE.fullmatch(name):
        return Entry(name, name, name.split(":")[0].split(".")[0], "", "a callable of yours")
    if name in gymnasium.registry or _MODULE_ID.fullmatch(name):
        return Entry(name, name, "gymnasium", "", "registered with Gymnasium")
    raise _unknown(name)


def installed(entry: Entry) -> bool:
    """Tell whether all packages can be imported that an entry's extra brings, without importing them.

    Without some of them, some environments can be made all the same.
    """
    needs = environments.families()[entry.family].needs if entry.family else ()
    return all(map(_is_there, (entry.package, *needs)))


def _is_there(package: str) -> bool:
    return package in sys.modules or find_spec(package) is not None


def _may_be(stem: str, family: Family, pattern: str, entry: Entry) -> bool:
    """Tell whether a family whose package is there has an environment, as far as is known before it is made.

    Where names are listed, and this is none of them, that takes an import of the package.
    """
    own = {family.package, family.registers}  # where it is not Gymnasium, only the package knows its ids
    if family.folder or family.members or "gymnasium" in own:
        return entry in _members(stem, family, pattern)
    if family.listed is None:
        return True
    if any(entry.name in family.listed(folder) for folder in _folders(family.package)):
        return True
    try:
        environments.register(family)
    except Exception:  # which is told where the environment is made
        return True
    return entry in _members(stem, family, pattern)


def creator(env: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``env_creator`` that a name stands for; a callable is returned as it is.

    The creator can be pickled with cloudpickle, also to a process that has registered nothing. Raises RegistryError
    for an unknown name, MissingExtra, with the command to type, where a package is not installed.
    """
    if not isinstance(env, str):
        given: Any = env
        if not callable(given):
            if hasattr(given, "reset") and hasattr(given, "step"):
                kind = type(given).__name__
                raise RegistryError(
                    f"{given!r} is one environment, and each row needs its own, made where it runs; pass a function "
                    f"that makes a new one each time, such as {kind}, or lambda: {kind}(…)"
                )
            if _is_kernel(given):
                raise RegistryError(f'the kernel "{given.name}" {_FOR_CUDA}')
            raise RegistryError(f"{given!r} is no environment; pass a callable that makes one, or a name")
        return env
    entry = find(env)
    if not _is_there(entry.package):
        if not entry.extra:
            raise RegistryError(f'"{env}": there is no module {entry.package} on the module search path')
        raise MissingExtra(f'"{env}" needs {entry.package}: pip install "pufferlib[{entry.extra}]"')
    if entry.family:
        return _OfFamily(entry.family, entry.name, gymnasium.registry.get(entry.name))
    if _CALLABLE.fullmatch(entry.target):
        if entry.extra:
            return _Later(entry.name, entry.target)
        return _class_in_ocean(entry) if entry.name.startswith("ocean/") else load(entry.target)
    return _FromGymnasium(_spec(entry.target))


def missing(error: BaseException | None, env: Any) -> MissingExtra | RegistryError | None:
    """Return what to do where an environment has raised for want of a package; None where it was not that.

    env: the environment's name, or a creator. A MissingExtra has the command to type; of a module that is none of those
    that we know, which may be misspelt or lie elsewhere, a RegistryError says that it is not found.
    """
    shown = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    extra = _extra(env) if isinstance(env, str) else ""
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        told, _, command = str(error).partition(", ")
    elif isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package != error.name and find_spec(package) is not None:
            return None  # the package is there, and lacks a module: another version, or a slip of the pen
        if not extra and package not in _PIP_NAMES:
            where = f"no module of that name is installed or found from the working folder, {os.getcwd()}"
            return RegistryError(f'"{shown}" imports {package}, and {where}')
        told, command = f"{package} is not installed", f"run `pip install {_PIP_NAMES.get(package, package)}`"
    else:
        return None
    command = f'run `pip install "pufferlib[{extra}]"`' if extra else command
    return MissingExtra("; ".join(part for part in (f'"{shown}": {told}', command) if part))


def _extra(name: str) -> str:
    """Return the extra that brings what an environment needs; "" where there is none."""
    try:
        found = _family_of(name.removeprefix("gymnasium.envs:"))
        return found[1].extra if found else find(name).extra
    except RegistryError:
        return ""


@contextlib.contextmanager
def _saying_what_is_missing(name: str) -> Iterator[None]:
    try:
        yield
    except (ModuleNotFoundError, gymnasium.error.DependencyNotInstalled) as error:
        lacking = missing(error, name)
        if lacking is None:
            raise
        raise lacking from error


@dataclass(frozen=True)
class _FromGymnasium:
    """Makes what is registered with Gymnasium, by its specification: a worker may have registered nothing."""

    spec: Any  # gymnasium's EnvSpec

    def __call__(self, **kwargs: Any) -> Any:
        with _saying_what_is_missing(self.spec.id):
            # Emulation checks every environment; the passive checker would check each step a second time.
            return gymnasium.make(self.spec, **{"disable_env_checker": True, **kwargs})


@dataclass(frozen=True)
class _OfFamily:
    """Makes an environment of a family, whose file is imported when it is called."""

    family: str
    name: str
    spec: Any  # gymnasium's EnvSpec of an id that is registered here, maybe by the user: a worker may not know it

    def __call__(self, **kwargs: Any) -> Any:
        with _saying_what_is_missing(self.name):
            if self.spec is not None:
                environments.register(environments.families()[self.family])
                gymnasium.registry[self.name] = self.spec  # the package has registered its own, maybe over the user's
            try:
                return environments.module(self.family).env_creator(self.name, **kwargs)
            except gymnasium.error.UnregisteredEnv:  # by now all that the package has are known
                raise _unknown(self.name) from None


@dataclass(frozen=True)
class _Later:
    """Calls "module:attribute", imported when it is called."""

    name: str
    target: str

    def __call__(self, **kwargs: Any) -> Any:
        with _saying_what_is_missing(self.name):
            return load(self.target)(**kwargs)


def _import(module_name: str, name: str) -> Any:
    """Import the module that an environment's name names. Raises RegistryError if it does not exist."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        raise RegistryError(f'"{name}": there is no module {error.name} on the module search path') from None


def _class_in_ocean(entry: Entry) -> Callable[..., Any]:
    """Return the class of a file of ``ocean``. Raises RegistryError, which names the file, where it gives none."""
    module_name, _, class_name = entry.target.partition(":")
    file = f"{module_name.replace('.', '/')}.py"
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        lacking = missing(error, entry.name)
        if isinstance(lacking, MissingExtra):  # population is PettingZoo's
            raise lacking from error
        raise RegistryError(f'"{entry.name}": {file} cannot be imported: {_in_words(error, file)}') from error
    if not hasattr(module, class_name):
        own = [name for name, each in vars(module).items() if isinstance(each, type) and each.__module__ == module_name]
        raise RegistryError(
            f'"{entry.name}": {file} has no class {class_name}, which its name stands for, but '
            f"{' and '.join(own) or 'none at all'}; rename one of them"
        )
    return load(entry.target)


def _in_words(error: Exception, file: str) -> str:
    """Return what was raised where a file was read or imported, and in which of its lines if that is known."""
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename.endswith(file)]
    where = f" (line {lines[-1]})" if lines and not isinstance(error, SyntaxError) else ""  # which has said so
    return f"{type(error).__name__}: {error}{where}"


def load(target: str) -> Callable[..., Any]:
    """Return the callable that "module:attribute" names. Raises RegistryError."""
    found = named(target)
    if _is_kernel(found):
        raise RegistryError(f'"{target}" {_FOR_CUDA}')
    if not callable(found):
        raise RegistryError(f'"{target}" is no callable but a {type(found).__name__}')
    return found  # type: ignore[no-any-return]


def _is_kernel(found: Any) -> bool:
    return type(found).__name__ == "KernelEnv"  # cuda_ext's, which is imported for kernels alone


def named(target: str) -> Any:
    """Return what "module:attribute" names. Raises RegistryError if there is no such thing."""
    _refuse_file(target)
    module_name, _, path = target.partition(":")
    found = _import(module_name, target)
    for part in path.split("."):
        if not hasattr(found, part):
            found_near = near(part, dir(found))
            meant = f"; did you mean {found_near[0]}?" if found_near else ""
            raise RegistryError(f'"{target}": {module_name} has no {path}{meant}')
        found = getattr(found, part)
    return found


def _refuse_file(name: str) -> None:
    """Raise RegistryError, with what to type, for a file in place of a module."""
    match = _FILE.fullmatch(name)
    if match is None:
        return
    file, function = Path(f"{match[1]}.py"), match[2] or "function"
    there = "" if file.is_file() else ", and there is no such file"
    module = re.sub(r"\W", "_", file.stem)
    rename = "" if module == file.stem else f", once the file is called {module}.py"
    where = "" if file.parent == Path() else f", in the folder {file.parent}"
    raise RegistryError(f'"{name}" names a file{there}; name its module: {module}:{function}{rename}{where}')


def _spec(name: str) -> Any:
    """Return Gymnasium's specification of an id, whose module is imported where it names one."""
    module_name, colon, env_id = name.rpartition(":")
    if colon:
        _import(module_name, name)
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        raise RegistryError(f'Gymnasium knows no environment "{env_id}"{_alternatives(env_id)}') from error


def _ocean(name: str | None = None) -> Iterator[Entry]:
    """Find the files of the ``ocean`` package: squared.py holds the class Squared.

    name: read the file of that environment alone.
    """
    for folder in _folders("ocean"):
        for file in sorted(folder.glob("[a-z]*.py")):
            if name not in (None, f"ocean/{file.stem}"):
                continue
            class_name, description = _told(file, f"ocean/{file.name}")
            yield Entry(f"ocean/{file.stem}", f"ocean.{file.stem}:{class_name}", "ocean", "", description)


def _kernels(name: str | None = None) -> Iterator[Entry]:
    """Find the kernels of ``cuda_ext`` that have a reference: tag_grid.cuh, and references/tag_grid.py with TagGrid.

    name: read the files of that kernel alone.
    """
    for folder in _folders("cuda_ext"):
        for file in sorted((folder / "references").glob("[a-z]*.py")):
            if name not in (None, file.stem.replace("_", "/", 1)):
                continue
            if (folder / f"{file.stem}.cuh").exists() and (folder / file.name).exists():
                class_name, description = _told(file, f"cuda_ext/references/{file.name}")
                target = f"cuda_ext.references.{file.stem}:{class_name}"
                package, extra = (
                    ("pettingzoo",) * 2 if b"\nfrom pettingzoo " in file.read_bytes() else ("gymnasium", "")
                )
                yield Entry(file.stem.replace("_", "/", 1), target, package, extra, description)


def _told(file: Path, shown: str) -> tuple[str, str]:
    """Return the name of the class in an environment's file, by the file's name, and what its docstring says first."""
    changed = file.stat() if file.exists() else None
    return _read(file, shown, changed and (changed.st_mtime_ns, changed.st_size))


@functools.cache
def _read(file: Path, shown: str, changed: tuple[int, int] | None) -> tuple[str, str]:
    """As ``_told``, once for each state of the file: a hundred names would have all files parsed a hundred times."""
    class_name = "".join(part.capitalize() for part in file.stem.split("_"))
    try:
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"), file.name)) or ""
        return class_name, docstring.partition("\n")[0]
    except (OSError, SyntaxError, ValueError) as error:  # the others are there all the same
        return class_name, f"{shown} cannot be read: {_in_words(error, file.name)}"


def _family_of(name: str) -> tuple[str, Family, str] | None:
    """Return the family that makes an environment; None for what a pattern fits by chance: a callable of the user's, or
    an id that the user has registered, where the family's package is not there."""
    found = None if _CALLABLE.fullmatch(name) else environments.family_of(name)
    if found is None or name not in gymnasium.registry or _is_there(found[1].package):
        return found
    made_by = gymnasium.registry[name].entry_point
    module = made_by if isinstance(made_by, str) else getattr(made_by, "__module__", "")
    return found if module.partition(".")[0] in (found[1].package, found[1].registers) else None


def _of_family(stem: str, family: Family, name: str) -> Entry:
    target = "" if "…" in name else name
    return Entry(name, target, family.package, family.extra, family.description, stem)


def _members(stem: str, family: Family, pattern: str) -> Iterator[Entry]:
    """Find the environments of a family that a pattern fits: those it lists, its folder's, or Gymnasium's ids."""
    if family.folder:
        files = (file.stem for folder in _folders(family.folder) for file in folder.glob("*.py"))
        known = [pattern.replace("*", each) for each in sorted(files) if _MODULE_NAME.fullmatch(each)]
    else:
        known = [*family.members] or [*gymnasium.registry]
        known += [
            alias + env_id.removeprefix(start)
            for alias, start in family.aliases.items()
            for env_id in gymnasium.registry
            if env_id.startswith(start)
        ]
    fits = re.compile(translate(pattern)).match  # not fnmatchcase, which looks its pattern up for each of all the ids
    for name in known:
        if fits(name):
            yield _of_family(stem, family, name)


def _folders(dotted: str) -> list[Path]:
    """Return where a package lies, without importing it or its parents."""
    package, *inner = dotted.split(".")
    spec = find_spec(package)
    locations = spec.submodule_search_locations if spec is not None else None
    return [Path(location, *inner) for location in locations or ()]


def _unknown(name: str) -> RegistryError:
    return RegistryError(f'no environment is called "{name}"{_alternatives(name)}')


def _alternatives(name: str) -> str:
    known = sorted({entry.name for entry in names()} | {*_listed()} | set(gymnasium.registry))
    by_key: dict[str, list[str]] = {}  # without versions, in full and without what stands before a slash
    for full in sorted(known, key=_version, reverse=True):
        for key in dict.fromkeys((_unversioned(full), _unversioned(full).rpartition("/")[2])):
            same = by_key.setdefault(key, [])
            same += [full] * (_unversioned(full) not in map(_unversioned, same))  # of several versions the newest
    own = _patterns(name, by_stem=True)  # a family's name, which its members' begin with, too
    found = own or [full for key in near(_unversioned(name), by_key, 3) for full in by_key[key]] or _patterns(name)
    meant = "; did you mean " + " or ".join([*dict.fromkeys(found)][:3]) + "?" if found else ";"
    return f"{meant} `puffer envs` lists all, and module:callable names one of your own"


def _listed() -> Iterator[str]:
    for family in environments.families().values():
        if family.listed is not None:
            for folder in _folders(family.package):
                yield from family.listed(folder)


def _unversioned(name: str) -> str:
    return _VERSION.sub("", name.lower())


def _version(name: str) -> int:
    found = _VERSION.search(name)
    return int(found[1]) if found else -1


def _patterns(name: str, by_stem: bool = False) -> list[str]:
    """Return how the names of a family begin that a name may be meant for: it has other letters, or the extra first.

    by_stem: only where the name is that of a family alone.
    """
    lower, first = name.lower(), re.split(r"[/-]", name.lower())[0]
    for stem, family in environments.families().items():
        if by_stem and lower not in (stem, family.extra):
            continue
        if first in (stem, family.extra) or any(fnmatchcase(lower, pattern.lower()) for pattern in family.names):
            return [pattern.replace("*", "…") for pattern in family.names[:3]]
    return []
