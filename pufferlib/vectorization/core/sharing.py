"""One environment, one row: find out where a creator returns an object that already plays another row.

In one process objects are compared. Processes have a copy each of what a creator holds, so a worker reports where its
creator held the object that it returned, and the parent, which has the original, compares that.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pufferlib.emulation.single_agent import own_attribute
from pufferlib.errors import PlanError

__all__ = ["Claims", "Found", "Held"]

INNER = (
    "env",
    "_env",
    "raw",
    "aec_env",
    "par_env",
    "gym_env",
    "base_env",
    "envs",
)  # where wrappers keep what they wrap
MOST = 20_000  # objects that are looked at; a creator that reads a large structure is not worth more time
MOST_PARTS = 100_000  # the same, with the numbers, strings and arrays in them
DEEP = 12
SHOWN = 40  # characters of a key that an error shows
PLAIN = (str, bytes, int, float, complex, bool, type(None), np.ndarray, np.generic)

Path = tuple[str, ...]


class Found(NamedTuple):
    """Where a creator held the environment that it returned: from the creator of which environment, by which path."""

    env_id: int
    path: Path

    @property
    def name(self) -> str:
        """The path in words: the names by which the creator reaches the environment."""
        text = ""
        for part in self.path:
            part = part if len(part) <= SHOWN or part[:1] != "[" else f"{part[:SHOWN]}…]"
            text += part if part[:1] in ("", ".", "[", "<") or not text else f"'s {part}"
        return text.lstrip(".")


class Claims:
    """The objects that play rows of one VecEnv in this process. While it is open no other row may be theirs.

    first_env: the number that environment 0 has in the VecEnv, where workers count from there.
    """

    _all: ClassVar[weakref.WeakSet[Claims]] = weakref.WeakSet()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, first_env: int = 0) -> None:
        self._first_env = first_env
        self._played: dict[int, tuple[Any, int]] = {}  # by identity: the object, and its environment's number
        self._pid = os.getpid()
        with self._lock:
            self._all.add(self)

    def claim(self, env_id: int, env: Any, found: Found | None = None) -> None:
        """Let env, and what it wraps, play one environment's rows. Raises PlanError if it plays others.

        found: where its creator held it, if it did.
        """
        objects = list(layers(env))
        with self._lock:
            known = [each for each in self._all if each._pid == os.getpid()]  # not those that were there before a fork
        for each in known:
            for layer in objects:
                player = each._played.get(id(layer))
                if player is not None and (each is not self or player[1] != env_id):
                    raise _shared(player[1] + each._first_env, layer, found, elsewhere=each is not self)
        self._played.update({id(layer): (layer, env_id) for layer in objects})

    def claim_originals(self, creators: Sequence[Any], found: Mapping[int, Found]) -> Iterator[tuple[int, PlanError]]:
        """Claim what workers have found that their creators hold, where the originals are; yield the refusals.

        creators: one an environment, of functools.partial. found: by environment.
        """
        known: dict[int, tuple[Any, dict[str, list[Any]]]] = {}
        for env_id, where in sorted(found.items()):
            original = lies_at(where.path, creators[where.env_id], known)
            if original is None:  # made as its creator was unpickled: the worker's own
                continue
            try:
                self.claim(env_id, original, where)
            except PlanError as error:
                yield env_id, error

    def release(self, env_id: int | None = None) -> None:
        """Give up the objects of one environment, by default of all."""
        kept = {} if env_id is None else {key: each for key, each in self._played.items() if each[1] != env_id}
        self._played = kept


def _shared(other: int, env: Any, found: Found | None, *, elsewhere: bool) -> PlanError:
    held = f", which its creator holds as {found.name}" if found is not None and found.name else ""
    player = f"environment {other}" + (" of another VecEnv that is open" if elsewhere else "")
    return PlanError(
        f"it is {_shown(env)}{held}, and that object already plays {player}; pass a function that "
        "makes a new environment each time, such as lambda: gymnasium.make(…)"
    )


def _shown(env: Any) -> str:
    try:
        text = str(env)
    except Exception:  # whatever its own code raises
        text = ""
    name = type(env).__name__
    return name if not text or " object at 0x" in text or " instance>" in text or "namespace(" in text else text[:120]


class Held:
    """The environments that creators hold before they are called, by identity."""

    def __init__(self, creators: Mapping[int, Callable[[], Any]]) -> None:
        self._known: dict[int, tuple[Any, Found]] = {}
        seen: dict[int, Any] = {}
        num_parts = [0]
        for env_id, creator in creators.items():
            for path, env in held_by(creator, seen, num_parts):
                self._known.setdefault(id(env), (env, Found(env_id, path)))

    def find(self, env: Any) -> Found | None:
        """Return where a creator held an environment, or one that it wraps; None for a new one."""
        for layer in layers(env):
            if id(layer) in self._known:
                return self._known[id(layer)][1]
        return None


def layers(env: Any) -> Iterator[Any]:
    """Return an environment and those that it wraps."""
    waiting, seen = [env], set()
    while waiting:
        layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield layer
        for name in INNER:
            part = own_attribute(layer, name)
            parts = part if isinstance(part, (list, tuple)) else (part,)
            waiting += [each for each in parts if is_environment(each)]


def is_environment(value: Any) -> bool:
    """Return whether this is an environment that has a state: not what functional environments share."""
    kind: Any = type(value)
    if issubclass(kind, (type, types.ModuleType)):
        return False
    if not (callable(getattr(kind, "step", None)) and callable(getattr(kind, "reset", None))):
        return False
    return _takes_an_action(kind)


@functools.lru_cache(256)
def _takes_an_action(kind: Any) -> bool:
    """Return whether step takes an action alone, rather than a state or a key with it."""
    try:
        parameters = list(inspect.signature(kind.step).parameters.values())[1:]
    except (TypeError, ValueError):
        return True
    return sum(each.default is each.empty and each.kind in (0, 1) for each in parameters) <= 1


def held_by(creator: Any, seen: dict[int, Any], num_parts: list[int]) -> Iterator[tuple[Path, Any]]:
    """Return the environments that a creator holds: in its closure, defaults, arguments, object, and globals it reads.

    seen: what has been looked at already, by identity; it is kept, as an identity is an object's while that lives.
    num_parts: one number, of all that was looked at for all creators.
    """
    waiting: deque[tuple[Path, Any]] = deque([((), creator)])
    while waiting and len(seen) < MOST:
        path, value = waiting.popleft()
        if id(value) in seen or len(path) > DEEP:
            continue
        seen[id(value)] = value
        if is_environment(value):
            yield path, value
        for name, part in islice(parts_of(value), max(0, MOST_PARTS - num_parts[0])):
            num_parts[0] += 1
            if not issubclass(type(part), PLAIN):  # isinstance asks proxies for what they stand for
                waiting.append(((*path, name), part))


def lies_at(path: Path, creator: Any, known: dict[int, tuple[Any, dict[str, list[Any]]]]) -> Any:
    """Return the environment that a creator holds by a path; None if there is none. known: parts looked up before."""
    values = [creator]
    for name in path:
        found: list[Any] = []
        for value in values:
            if id(value) not in known:
                parts: dict[str, list[Any]] = {}
                for own_name, part in parts_of(value):
                    parts.setdefault(own_name, []).append(part)
                known[id(value)] = value, parts
            found += known[id(value)][1].get(name, ())
        values = found
    return next((value for value in values if is_environment(value)), None)


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Return what an object holds, each with a name that it also has in another process; no code of its own runs."""
    kind = type(value)
    if issubclass(kind, functools.partial):
        yield "", value.func
        yield from ((f"argument {i}", each) for i, each in enumerate(value.args))
        yield from value.keywords.items()
    elif kind is types.FunctionType:
        yield from _parts_of_function(value)
    elif kind is types.MethodType:
        yield "", value.__self__
        yield "", value.__func__
        yield from _parts_of_class(value.__self__, value.__func__)
    elif issubclass(kind, (type, types.ModuleType)):
        return  # those that a function names are looked at there
    elif issubclass(kind, dict):
        for i, (key, each) in enumerate(islice(dict.items(value), MOST)):
            yield f"[{key!r}]" if type(key) in (str, int) else f"<{i}>", each
    elif issubclass(kind, (list, tuple, deque, set, frozenset)):
        base: Any = next(base for base in (list, tuple, deque, set, frozenset) if issubclass(kind, base))
        if base in (set, frozenset) and base.__len__(value) > 1:
            return  # their order is another in each process
        yield from ((f"[{i}]", each) for i, each in enumerate(islice(base.__iter__(value), MOST)))
    else:
        yield from _parts_of_instance(value)


def _parts_of_instance(value: Any) -> Iterator[tuple[str, Any]]:
    called = getattr(type(value), "__call__", None)  # noqa: B004
    if isinstance(called, types.FunctionType):
        yield "", called
        yield from _parts_of_class(value, called)
    if is_environment(value):
        parts = ((name, own_attribute(value, name)) for name in INNER)
        yield from ((f".{name}", part) for name, part in parts if part is not None)
        return
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = None
    if isinstance(own, dict):
        yield from ((f".{name}", each) for name, each in list(own.items()))
    if own is None or type(value) is functools._lru_cache_wrapper:  # iterators, builtin methods, objects with slots
        referents = islice(gc.get_referents(value), MOST)
        yield from ((f"<{i}>", each) for i, each in enumerate(referents) if each is not type(value))


def _parts_of_class(owner: Any, function: Any) -> Iterator[tuple[str, Any]]:
    """Return what lies in the class of a method's object and is named in the method's code."""
    kind = owner if isinstance(owner, type) else type(owner)
    if not isinstance(function, types.FunctionType):
        return
    for name in _names(function.__code__):
        part = inspect.getattr_static(kind, name, None)
        if isinstance(part, property):
            part = part.fget
        elif isinstance(part, (classmethod, staticmethod)):
            part = part.__func__
        if part is not None:
            yield f".{name}", part


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # nothing was assigned to it
            continue
    yield from ((f"default {i}", each) for i, each in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()
    yield from vars(function).items()  # __wrapped__ among them
    names = _names(function.__code__)
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, (type, types.ModuleType)):
            yield from ((f"{name}.{part}", vars(value)[part]) for part in names if part in vars(value))


def _names(code: types.CodeType) -> list[str]:
    """Return the names that code reads, with that of the functions inside it."""
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const)]
    return list(dict.fromkeys([*code.co_names, *inner]))
