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
from typing import Any, ClassVar, NamedTuple

import numpy as np

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
DEEP = 12
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
        roots = {where.env_id: Held({where.env_id: creators[where.env_id]}) for where in found.values()}
        unknown: dict[Any, Any] = {}  # what lies nowhere here: alike is what one creator holds by one path
        for env_id, where in sorted(found.items()):
            original = roots[where.env_id].at(where)
            if original is None:
                original = unknown.setdefault((id(creators[where.env_id].func), where.path), types.SimpleNamespace())
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
        for env_id, creator in creators.items():
            for path, env in held_by(creator, seen):
                self._known.setdefault(id(env), (env, Found(env_id, path)))

    def find(self, env: Any) -> Found | None:
        """Return where a creator held an environment, or one that it wraps; None for a new one."""
        for layer in layers(env):
            if id(layer) in self._known:
                return self._known[id(layer)][1]
        return None

    def at(self, found: Found) -> Any:
        """Return the environment that lies there; None if there is none."""
        return next((env for env, where in self._known.values() if where == found), None)


def layers(env: Any) -> Iterator[Any]:
    """Return an environment and those that it wraps."""
    waiting, seen = [env], set()
    while waiting:
        layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield layer
        inner = getattr(layer, "__dict__", {})
        for name in INNER:
            part = inner.get(name)
            parts = part if isinstance(part, (list, tuple)) else (part,)
            waiting += [each for each in parts if is_environment(each)]


def is_environment(value: Any) -> bool:
    """Return whether this is an environment that has a state: not what functional environments share."""
    kind: Any = type(value)
    if isinstance(value, (type, types.ModuleType)):
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


def held_by(creator: Any, seen: dict[int, Any]) -> Iterator[tuple[Path, Any]]:
    """Return the environments that a creator holds: in its closure, defaults, arguments, object, and globals it reads.

    seen: what has been looked at already, by identity; it is kept, as an identity is an object's while that lives.
    """
    waiting: deque[tuple[Path, Any]] = deque([((), creator)])
    while waiting and len(seen) < MOST:
        path, value = waiting.popleft()
        if isinstance(value, PLAIN) or id(value) in seen or len(path) > DEEP:
            continue
        seen[id(value)] = value
        if is_environment(value):
            yield path, value
        waiting.extend(((*path, name), part) for name, part in parts_of(value))


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Return what an object holds, each with a name."""
    if isinstance(value, functools.partial):
        yield "", value.func
        yield from ((f"argument {i}", each) for i, each in enumerate(value.args))
        yield from value.keywords.items()
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
        yield "", value.__func__
    elif isinstance(value, (type, types.ModuleType)):
        return  # those that a function names are looked at there
    elif isinstance(value, dict):
        yield from ((f"[{key!r:.40}]", each) for key, each in list(value.items())[:MOST])
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from ((f"[{i}]", each) for i, each in enumerate(list(value)[:MOST]))
    elif isinstance(getattr(value, "__dict__", None), dict):
        yield from ((f".{name}", each) for name, each in list(vars(value).items()))
        if isinstance(value, functools._lru_cache_wrapper):
            yield from ((f"<{i}>", each) for i, each in enumerate(gc.get_referents(value)[:MOST]))
    else:  # iterators, builtin methods, objects with slots
        yield from (
            (f"<{i}>", each) for i, each in enumerate(gc.get_referents(value)[:MOST]) if each is not type(value)
        )


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
