"""The registry of environments: find one by a name such as "ocean/squared" or "my_game:make_env".

    ocean/squared                            a file of the ``ocean`` package; adding a file adds a name
    tag/grid, classic/cartpole, …            the reference environment of a kernel in ``cuda_ext``; adding a kernel and
                                             its reference adds a name
    mpe/…, MiniGrid-…, atari/…               a family in ``pufferlib.environments``; adding a file adds a family
    my_game:Maze-v0                          any other Gymnasium id
    my_game:make_env                         your own callable, on the module search path

``creator`` imports the module that a name refers to. The packages of families and kernels are an exception: they are
imported only in the worker, when it calls the ``env_creator``. However, if a family has a function ``listed`` and this
does not return the name, ``find`` imports the family's package to look the name up.
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

__all__ = ["Entry", "creator", "explain_missing", "find", "installed", "load", "missing", "named", "names"]


@dataclass(frozen=True)
class Entry:
    """An environment, or a family whose members share the part of its name before "…"."""

    name: str
    target: str  # "module:attribute" of the creator, or the id in Gymnasium's registry
    package: str  # the top-level module that it needs
    extra: str  # pip install "pufferlib[extra]" installs the package; "" unless third-party
    description: str
    family: str = ""  # the stem of its file in pufferlib.environments


_MODULE_NAME = re.compile(r"\w+_v\d+")  # an environment, not a helper, in a PettingZoo folder
_CALLABLE = re.compile(r"[\w.]+:[A-Za-z_][\w.]*")  # module:function
_FOR_CUDA = (
    'is a kernel, which backend "cuda" plays: add backend="cuda" (--backend cuda) and, without a GPU, device="host" '
    "(--device host)"
)
_VERSION = re.compile(r"[-_]v(\d+)$")
_MODULE_ID = re.compile(r"[\w.]+:.+-v\d+")  # module:Id-v0, as in Gymnasium
_FILE = re.compile(r"(.+)\.py(?::(.*))?")  # file.py:function, written in place of module:function
# The pip names of the packages in our extras, and of their dependencies, by module.
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
    """Return an entry for each known environment, and for each family pattern that has no known members.

    members: whether to list the families' members, as far as they are known without an import (modules in a folder, ids
    registered with Gymnasium). If False, each family is listed only by its patterns.
    """
    entries = [*_ocean(), *_kernels()]
    for stem, family in environments.families().items():
        for pattern in family.names:
            known = list(_members(stem, family, pattern)) if members else []
            entries += known or [_of_family(stem, family, pattern.replace("*", "…"))]
    return entries


def find(name: str) -> Entry:
    """Return the entry for a name, even if its package is not installed (see ``installed``).

    Raises RegistryError for an unknown name, with suggestions of similar names, and for the path of a Python file.
    """
    _refuse_file(name)
    entry = next(itertools.chain(_ocean(name), _kernels(name)), None)
    if entry is not None:
        return entry
    match = _family_of(name)
    if match is not None:
        stem, family, pattern = match
        entry = _of_family(stem, family, name)
        if not _is_there(entry.package) or _may_be(stem, family, pattern, entry):
            return entry
    if _CALLABLE.fullmatch(name):
        return Entry(name, name, name.split(":")[0].split(".")[0], "", "a callable of yours")
    if name in gymnasium.registry or _MODULE_ID.fullmatch(name):
        return Entry(name, name, "gymnasium", "", "registered with Gymnasium")
    raise _unknown(name)


def installed(entry: Entry) -> bool:
    """Return whether all packages that an entry may need are installed, without importing them.

    Some environments can be made without some of these packages.
    """
    needs = environments.families()[entry.family].needs if entry.family else ()
    return all(map(_is_there, (entry.package, *needs)))


def _is_there(package: str) -> bool:
    return package in sys.modules or find_spec(package) is not None


def _may_be(stem: str, family: Family, pattern: str, entry: Entry) -> bool:
    """Return whether a family has, or may have, the environment of an entry. The family's package must be installed.

    Imports the package if the family has a function ``listed`` and this does not return the entry's name.
    """
    packages = {family.package, family.registers}  # ids outside Gymnasium's registry are known only to the package
    if family.folder or family.members or "gymnasium" in packages:
        return entry in _members(stem, family, pattern)
    if family.listed is None:
        return True
    if any(entry.name in family.listed(folder) for folder in _folders(family.package)):
        return True
    try:
        environments.register(family)
    except Exception:  # making the environment raises it again
        return True
    return entry in _members(stem, family, pattern)


def creator(env: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``env_creator`` for a name; return a callable unchanged.

    The creator can be pickled with cloudpickle, and works in a process that has registered nothing. Raises
    RegistryError for an unknown name, a missing module, an ``ocean`` file that cannot be imported, a kernel, and a
    value that is neither a name nor a callable; raises MissingExtra, with the command that installs the package, if an
    optional package is missing.
    """
    if not isinstance(env, str):
        value: Any = env
        if not callable(value):
            if hasattr(value, "reset") and hasattr(value, "step"):
                kind = type(value).__name__
                raise RegistryError(
                    f"{value!r} is a single environment, but each row needs one, made in its worker; pass a function "
                    f"that makes a new one each time, such as {kind}, or lambda: {kind}(…)"
                )
            if _is_kernel(value):
                raise RegistryError(f'the kernel "{value.name}" {_FOR_CUDA}')
            raise RegistryError(f"{value!r} is no environment; pass a callable that makes one, or a name")
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
    """Return the error to raise for an environment that failed because a package is missing; None for other failures.

    It is a MissingExtra, with the command that installs the package, if the package is optional. It is a RegistryError
    if the module is unknown: its name may be misspelt, or it may not be on the module search path. error: the exception
    with which the environment failed. env: the environment's name or its creator.
    """
    label = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    extra = _extra(env) if isinstance(env, str) else ""
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        reason, _, command = str(error).partition(", ")
    elif isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package != error.name and find_spec(package) is not None:
            return None  # the package is installed but lacks a module: another version, or a typo
        if not extra and package not in _PIP_NAMES:
            where = f"no module of that name is installed or found from the working folder, {os.getcwd()}"
            return RegistryError(f'"{label}" imports {package}, and {where}')
        reason, command = f"{package} is not installed", f"run `pip install {_PIP_NAMES.get(package, package)}`"
    else:
        return None
    command = f'run `pip install "pufferlib[{extra}]"`' if extra else command
    return MissingExtra("; ".join(part for part in (f'"{label}": {reason}', command) if part))


def _extra(name: str) -> str:
    """Return the extra that installs an environment's packages; "" if there is none."""
    try:
        match = _family_of(name.removeprefix("gymnasium.envs:"))
        return match[1].extra if match else find(name).extra
    except RegistryError:
        return ""


@contextlib.contextmanager
def explain_missing(name: str) -> Iterator[None]:
    """Raise the error of ``missing`` in place of an exception that reports a missing package. name: the environment."""
    try:
        yield
    except (ModuleNotFoundError, gymnasium.error.DependencyNotInstalled) as error:
        lacking = missing(error, name)
        if lacking is None:
            raise
        raise lacking from error


@dataclass(frozen=True)
class _FromGymnasium:
    """A creator that makes a Gymnasium environment from its spec, because a worker may lack the registered id."""

    spec: Any  # gymnasium's EnvSpec

    def __call__(self, **kwargs: Any) -> Any:
        with explain_missing(self.spec.id):
            # Emulation checks every environment; the passive checker would check each step a second time.
            return gymnasium.make(self.spec, **{"disable_env_checker": True, **kwargs})


@dataclass(frozen=True)
class _OfFamily:
    """A creator that makes a family's environment; it imports the family's file when called."""

    family: str
    name: str
    spec: Any  # the EnvSpec of an id registered in this process, perhaps by the user, which a worker may lack; or None

    def __call__(self, **kwargs: Any) -> Any:
        with explain_missing(self.name):
            if self.spec is not None:
                environments.register(environments.families()[self.family])
                gymnasium.registry[self.name] = self.spec  # the package may have overwritten the user's
            try:
                return environments.module(self.family).env_creator(self.name, **kwargs)
            except gymnasium.error.UnregisteredEnv:  # by now the package has registered all its ids
                raise _unknown(self.name) from None


@dataclass(frozen=True)
class _Later:
    """A creator that imports its target, "module:attribute", when called."""

    name: str
    target: str

    def __call__(self, **kwargs: Any) -> Any:
        with explain_missing(self.name):
            return load(self.target)(**kwargs)


def _import(module_name: str, name: str) -> Any:
    """Import and return the module in an environment's name. Raises RegistryError if the module does not exist."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists; something that it imports does not
        raise RegistryError(f'"{name}": there is no module {error.name} on the module search path') from None


def _class_in_ocean(entry: Entry) -> Callable[..., Any]:
    """Return the environment class in a file of ``ocean``.

    Raises RegistryError, with the file's name, if the file cannot be imported or lacks the class, and MissingExtra if
    it needs an optional package that is not installed.
    """
    module_name, _, class_name = entry.target.partition(":")
    file = f"{module_name.replace('.', '/')}.py"
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        lacking = missing(error, entry.name)
        if isinstance(lacking, MissingExtra):  # ocean/population needs PettingZoo
            raise lacking from error
        raise RegistryError(f'"{entry.name}": {file} cannot be imported: {_error_text(error, file)}') from error
    if not hasattr(module, class_name):
        classes = [
            name for name, item in vars(module).items() if isinstance(item, type) and item.__module__ == module_name
        ]
        raise RegistryError(
            f'"{entry.name}": {file} has no class {class_name}, which its name stands for, but '
            f"{' and '.join(classes) or 'none at all'}; rename one of them"
        )
    return load(entry.target)


def _error_text(error: Exception, file: str) -> str:
    """Describe an error from reading or importing a file, with the line in that file if known."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(file)]
    where = f" (line {lines[-1]})" if lines and not isinstance(error, SyntaxError) else ""  # whose text has the line
    return f"{type(error).__name__}: {error}{where}"


def load(target: str) -> Callable[..., Any]:
    """Return the callable that "module:attribute" refers to.

    Raises RegistryError if it does not exist, is a kernel, or is not callable.
    """
    value = named(target)
    if _is_kernel(value):
        raise RegistryError(f'"{target}" {_FOR_CUDA}')
    if not callable(value):
        raise RegistryError(f'"{target}" is no callable but a {type(value).__name__}')
    return value  # type: ignore[no-any-return]


def _is_kernel(value: Any) -> bool:
    return type(value).__name__ == "KernelEnv"  # compared by name, because cuda_ext is imported only for kernels


def named(target: str) -> Any:
    """Return the object that "module:attribute" refers to. Raises RegistryError if it does not exist."""
    _refuse_file(target)
    module_name, _, path = target.partition(":")
    value = _import(module_name, target)
    for part in path.split("."):
        if not hasattr(value, part):
            suggestions = near(part, dir(value))
            meant = f"; did you mean {suggestions[0]}?" if suggestions else ""
            raise RegistryError(f'"{target}": {module_name} has no {path}{meant}')
        value = getattr(value, part)
    return value


def _refuse_file(name: str) -> None:
    """Raise RegistryError if a name is the path of a Python file; the message suggests the module's name instead."""
    match = _FILE.fullmatch(name)
    if match is None:
        return
    file, function = Path(f"{match[1]}.py"), match[2] or "function"
    missing_file = "" if file.is_file() else ", and there is no such file"
    module = re.sub(r"\W", "_", file.stem)
    rename = "" if module == file.stem else f", once the file is called {module}.py"
    where = "" if file.parent == Path() else f", in the folder {file.parent}"
    raise RegistryError(f'"{name}" names a file{missing_file}; name its module: {module}:{function}{rename}{where}')


def _spec(name: str) -> Any:
    """Return Gymnasium's EnvSpec for an id, after importing the module before its colon, if any.

    Raises RegistryError if the module or the id does not exist.
    """
    module_name, colon, env_id = name.rpartition(":")
    if colon:
        _import(module_name, name)
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        raise RegistryError(f'Gymnasium knows no environment "{env_id}"{_alternatives(env_id)}') from error


def _ocean(name: str | None = None) -> Iterator[Entry]:
    """Yield an entry for each file of the ``ocean`` package; squared.py, for example, defines the class Squared.

    name: the environment whose file to read; by default, all files are read.
    """
    for folder in _folders("ocean"):
        for file in sorted(folder.glob("[a-z]*.py")):
            if name not in (None, f"ocean/{file.stem}"):
                continue
            class_name, description = _described(file, f"ocean/{file.name}")
            yield Entry(f"ocean/{file.stem}", f"ocean.{file.stem}:{class_name}", "ocean", "", description)


def _kernels(name: str | None = None) -> Iterator[Entry]:
    """Yield an entry for each ``cuda_ext`` kernel with a reference, such as tag_grid.cuh and references/tag_grid.py.

    name: the kernel whose reference to read; by default, all references are read.
    """
    for folder in _folders("cuda_ext"):
        for file in sorted((folder / "references").glob("[a-z]*.py")):
            if name not in (None, file.stem.replace("_", "/", 1)):
                continue
            if (folder / f"{file.stem}.cuh").exists() and (folder / file.name).exists():
                class_name, description = _described(file, f"cuda_ext/references/{file.name}")
                target = f"cuda_ext.references.{file.stem}:{class_name}"
                package, extra = (
                    ("pettingzoo",) * 2 if b"\nfrom pettingzoo " in file.read_bytes() else ("gymnasium", "")
                )
                yield Entry(file.stem.replace("_", "/", 1), target, package, extra, description)


def _described(file: Path, label: str) -> tuple[str, str]:
    """Return an environment's class name, derived from its file's name, and the first line of the file's docstring.

    If the file cannot be read, a text with the reason takes the place of that line.
    """
    status = file.stat() if file.exists() else None
    return _read(file, label, status and (status.st_mtime_ns, status.st_size))


@functools.cache
def _read(file: Path, label: str, state: tuple[int, int] | None) -> tuple[str, str]:
    """Return the result of ``_described``, cached so that a file is parsed only once until it changes.

    state: the file's modification time and size, on which the cache depends; None if there is no file.
    """
    class_name = "".join(part.capitalize() for part in file.stem.split("_"))
    try:
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"), file.name)) or ""
        return class_name, docstring.partition("\n")[0]
    except (OSError, SyntaxError, ValueError) as error:  # a broken file must not hide the others
        return class_name, f"{label} cannot be read: {_error_text(error, file.name)}"


def _family_of(name: str) -> tuple[str, Family, str] | None:
    """Return an environment's family as (stem, family, matching pattern); None if it belongs to no family.

    Also returns None if a pattern matches only by chance: for the user's own callables, and for ids that other packages
    have registered while the family's package is not installed.
    """
    match = None if _CALLABLE.fullmatch(name) else environments.family_of(name)
    if match is None or name not in gymnasium.registry or _is_there(match[1].package):
        return match
    entry_point = gymnasium.registry[name].entry_point
    module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return match if module.partition(".")[0] in (match[1].package, match[1].registers) else None


def _of_family(stem: str, family: Family, name: str) -> Entry:
    target = "" if "…" in name else name
    return Entry(name, target, family.package, family.extra, family.description, stem)


def _members(stem: str, family: Family, pattern: str) -> Iterator[Entry]:
    """Yield entries for a family's environments that match a pattern.

    If the family has a ``folder``, its environments are the modules in that folder. Otherwise, they are its ``members``
    or, if it has none, all ids registered with Gymnasium; its aliases of registered ids are added to these.
    """
    if family.folder:
        files = (file.stem for folder in _folders(family.folder) for file in folder.glob("*.py"))
        known = [pattern.replace("*", module) for module in sorted(files) if _MODULE_NAME.fullmatch(module)]
    else:
        known = [*family.members] or [*gymnasium.registry]
        known += [
            alias + env_id.removeprefix(start)
            for alias, start in family.aliases.items()
            for env_id in gymnasium.registry
            if env_id.startswith(start)
        ]
    fits = re.compile(translate(pattern)).match  # not fnmatchcase, which looks its pattern up for every id
    for name in known:
        if fits(name):
            yield _of_family(stem, family, name)


def _folders(dotted: str) -> list[Path]:
    """Return the folders of a package, without importing it or its parents."""
    package, *inner = dotted.split(".")
    spec = find_spec(package)
    locations = spec.submodule_search_locations if spec is not None else None
    return [Path(location, *inner) for location in locations or ()]


def _unknown(name: str) -> RegistryError:
    return RegistryError(f'no environment is called "{name}"{_alternatives(name)}')


def _alternatives(name: str) -> str:
    known = sorted({entry.name for entry in names()} | {*_listed()} | set(gymnasium.registry))
    by_key: dict[str, list[str]] = {}  # keys: names without versions, with and without the part before a slash
    for full in sorted(known, key=_version, reverse=True):
        for key in dict.fromkeys((_unversioned(full), _unversioned(full).rpartition("/")[2])):
            same = by_key.setdefault(key, [])
            same += [full] * (_unversioned(full) not in map(_unversioned, same))  # only the newest of several versions
    patterns = _patterns(name, by_stem=True)  # if the name is that of a family
    close = patterns or [full for key in near(_unversioned(name), by_key, 3) for full in by_key[key]] or _patterns(name)
    meant = "; did you mean " + " or ".join([*dict.fromkeys(close)][:3]) + "?" if close else ";"
    return f"{meant} `puffer envs` lists all, and module:callable names one of your own"


def _listed() -> Iterator[str]:
    for family in environments.families().values():
        if family.listed is not None:
            for folder in _folders(family.package):
                yield from family.listed(folder)


def _unversioned(name: str) -> str:
    return _VERSION.sub("", name.lower())


def _version(name: str) -> int:
    match = _VERSION.search(name)
    return int(match[1]) if match else -1


def _patterns(name: str, by_stem: bool = False) -> list[str]:
    """Return up to three patterns of the family that a name resembles.

    A name resembles a family if its first part is the family's stem or extra, or if it matches a pattern regardless of
    case. by_stem: require the whole name to be the stem or the extra.
    """
    lower, first = name.lower(), re.split(r"[/-]", name.lower())[0]
    for stem, family in environments.families().items():
        if by_stem and lower not in (stem, family.extra):
            continue
        if first in (stem, family.extra) or any(fnmatchcase(lower, pattern.lower()) for pattern in family.names):
            return [pattern.replace("*", "…") for pattern in family.names[:3]]
    return []
