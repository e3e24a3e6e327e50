"""Detection of shared environments: a creator must not return an object that already serves as another environment.

Within one process, objects are compared by identity. In a worker process, an object that a creator holds is a copy. The
worker therefore reports the path from the creator to the object that the creator returned. The parent then checks
whether the original at that path already serves as another environment.
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple, TypeGuard, TypeVar

import numpy as np

from pufferlib.emulation.single_agent import own_attribute
from pufferlib.errors import PlanError
from pufferlib.util.annotations import EnvCreator

__all__ = ["Claims", "HeldEnv", "HeldEnvs"]

INNER = (
    "env",
    "_env",
    "raw",
    "aec_env",
    "par_env",
    "gym_env",
    "base_env",
    "envs",
)  # attributes in which wrappers hold the wrapped environment
MOST = 20_000  # objects to visit; a creator that reads a large structure is not worth more time
MOST_PARTS = 100_000  # parts to visit, numbers, strings and arrays included
DEEP = 12
KEY_LENGTH = 40  # characters of a key that an error shows
PLAIN = (str, bytes, int, float, complex, bool, type(None), np.ndarray, np.generic)

Path = tuple[str, ...]
KnownParts = dict[int, tuple[object, dict[str, list[object]]]]  # by id(): the object, and its parts by name
Kind = TypeVar("Kind")
COLLECTIONS: tuple[type[Collection[object]], ...] = (list, tuple, deque, set, frozenset)


class HeldEnv(NamedTuple):
    """The place where a creator held an environment: the creator's env id, and the path from creator to environment."""

    env_id: int
    path: Path

    @property
    def name(self) -> str:
        """The path as text: the names by which the creator reaches the environment."""
        text = ""
        for part in self.path:
            part = part if len(part) <= KEY_LENGTH or part[:1] != "[" else f"{part[:KEY_LENGTH]}…]"
            text += part if part[:1] in ("", ".", "[", "<") or not text else f"'s {part}"
        return text.lstrip(".")


class Claims:
    """The objects that serve as environments of one VecEnv in this process, including the environments that they wrap.

    While the VecEnv is open, no other environment and no other VecEnv may use these objects.
    """

    _all: ClassVar[weakref.WeakSet[Claims]] = weakref.WeakSet()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._played: dict[int, tuple[object, int]] = {}  # by id(): the object, and its env id
        self._pid = os.getpid()
        with self._lock:
            self._all.add(self)

    def claim(self, env_id: int, env: object, held_env: HeldEnv | None = None) -> None:
        """Claim ``env``, and every environment that it wraps, for the environment ``env_id``.

        held_env: where a creator held ``env``, if one did. Raises PlanError if any of these objects already serves as
        another environment, of this VecEnv or of another one that is open.
        """
        objects = list(layers(env))
        with self._lock:
            all_claims = [claims for claims in self._all if claims._pid == os.getpid()]  # not those before a fork
        for claims in all_claims:
            for layer in objects:
                player = claims._played.get(id(layer))
                if player is not None and (claims is not self or player[1] != env_id):
                    raise _shared(player[1], layer, held_env, other_vec=claims is not self)
        self._played.update({id(layer): (layer, env_id) for layer in objects})

    def claim_originals(
        self, creators: Sequence[EnvCreator], held_envs: Mapping[int, HeldEnv]
    ) -> Iterator[tuple[int, PlanError]]:
        """Claim, in this process, the originals of environments that creators held.

        A worker has copies of its creators, and of the environments that they held. creators: the originals of the
        creators, one functools.partial per environment. held_envs: for each environment that a creator held, where the
        creator held it, keyed by env id. Originals are claimed while the caller iterates. For an original that already
        serves as another environment, yields the env id and the PlanError. An environment that exists only in the
        worker is skipped.
        """
        known: KnownParts = {}
        for env_id, held_env in sorted(held_envs.items()):
            original = lies_at(held_env.path, creators[held_env.env_id], known)
            if original is None:  # made when the creator was unpickled, so only the worker has it
                continue
            try:
                self.claim(env_id, original, held_env)
            except PlanError as error:
                yield env_id, error

    def release(self, env_id: int | None = None) -> None:
        """Release the objects of one environment, or of all if env_id is None."""
        self._played = {} if env_id is None else {key: item for key, item in self._played.items() if item[1] != env_id}


def _shared(other: int, env: object, held_env: HeldEnv | None, *, other_vec: bool) -> PlanError:
    held = f", which its creator holds as {held_env.name}" if held_env is not None and held_env.name else ""
    player = f"environment {other}" + (" of another VecEnv that is open" if other_vec else "")
    return PlanError(
        f"it is {_text_of(env)}{held}, and that object already plays {player}; pass a function that "
        "makes a new environment each time, such as lambda: gymnasium.make(…)"
    )


def _text_of(env: object) -> str:
    try:
        text = str(env)
    except Exception:  # any error of the user's code
        text = ""
    name = type(env).__name__
    return name if not text or " object at 0x" in text or " instance>" in text or "namespace(" in text else text[:120]


class HeldEnvs:
    """An index, by identity, of the environments that creators hold before the creators are called."""

    def __init__(self, creators: Mapping[int, EnvCreator]) -> None:
        self._held: dict[int, tuple[object, HeldEnv]] = {}
        visited: dict[int, object] = {}
        num_parts = [0]
        for env_id, creator in creators.items():
            for path, env in held_by(creator, visited, num_parts):
                self._held.setdefault(id(env), (env, HeldEnv(env_id, path)))

    def find(self, env: object) -> HeldEnv | None:
        """Return where a creator held ``env`` or an environment that ``env`` wraps; None if no creator held any."""
        for layer in layers(env):
            if id(layer) in self._held:
                return self._held[id(layer)][1]
        return None


def layers(env: object) -> Iterator[object]:
    """Yield an environment and every environment that it wraps, from the outside in."""
    waiting = [env]
    visited: set[int] = set()
    while waiting:
        layer = waiting.pop()
        if id(layer) in visited:
            continue
        visited.add(id(layer))
        yield layer
        for name in INNER:
            part = own_attribute(layer, name)
            parts = part if isinstance(part, (list, tuple)) else (part,)
            waiting += [item for item in parts if is_environment(item)]


def is_environment(value: object) -> bool:
    """Return whether a value is an environment that holds its own state.

    A functional environment does not: its ``step`` requires a state or a key as well as an action.
    """
    kind = type(value)
    if issubclass(kind, (type, types.ModuleType)):
        return False
    if not (callable(getattr(kind, "step", None)) and callable(getattr(kind, "reset", None))):
        return False
    return _takes_an_action(kind)


def _takes_an_action_alone(kind: type) -> bool:
    """Return whether a class's ``step`` requires at most one argument, the action, and no state or key.

    Returns True if the signature of ``step`` cannot be read.
    """
    step = getattr(kind, "step", None)
    assert step is not None
    try:
        parameters = list(inspect.signature(step).parameters.values())[1:]
    except (TypeError, ValueError):
        return True
    return sum(item.default is item.empty and item.kind in (0, 1) for item in parameters) <= 1


_takes_an_action: Callable[[type], bool] = functools.lru_cache(256)(_takes_an_action_alone)


def held_by(creator: EnvCreator, visited: dict[int, object], num_parts: list[int]) -> Iterator[tuple[Path, object]]:
    """Yield the path and the object of each environment that a creator holds.

    Looks in the creator's closure, defaults, arguments and bound object, in the globals that its code names, and in
    the parts of all these objects, up to the limits MOST, MOST_PARTS and DEEP.

    visited: the objects visited so far, keyed by id(). It keeps them alive, so that no other object gets the same id().
    num_parts: a list with one number, the count of parts visited so far for all creators. Both are updated.
    """
    waiting: deque[tuple[Path, object]] = deque([((), creator)])
    while waiting and len(visited) < MOST:
        path, value = waiting.popleft()
        if id(value) in visited or len(path) > DEEP:
            continue
        visited[id(value)] = value
        if is_environment(value):
            yield path, value
        for name, part in islice(parts_of(value), max(0, MOST_PARTS - num_parts[0])):
            num_parts[0] += 1
            if not issubclass(type(part), PLAIN):  # isinstance would ask a proxy for its target's class
                waiting.append(((*path, name), part))


def lies_at(path: Path, creator: EnvCreator, known: KnownParts) -> object:
    """Return the environment that a creator holds at a path, or None.

    known: a cache of objects' parts, which this call extends.
    """
    values: list[object] = [creator]
    for name in path:
        matches: list[object] = []
        for value in values:
            if id(value) not in known:
                parts: dict[str, list[object]] = {}
                for part_name, part in parts_of(value):
                    parts.setdefault(part_name, []).append(part)
                known[id(value)] = value, parts
            matches += known[id(value)][1].get(name, ())
        values = matches
    return next((value for value in values if is_environment(value)), None)


def parts_of(value: object) -> Iterator[tuple[str, object]]:
    """Yield (name, part) for each part of an object. Runs none of the object's code.

    A part's name is the same in every process. Parts without such a name are left out, for example the items of a set
    with several items.
    """
    kind = type(value)
    if _is(value, functools.partial):
        yield "", value.func
        yield from ((f"argument {i}", part) for i, part in enumerate(value.args))
        yield from value.keywords.copy().items()
    elif _is(value, types.FunctionType):  # cannot be subclassed
        yield from _parts_of_function(value)
    elif _is(value, types.MethodType):  # nor can this
        yield "", value.__self__
        yield "", value.__func__
        yield from _parts_of_class(value.__self__, value.__func__)
    elif issubclass(kind, (type, types.ModuleType)):
        return  # functions yield the parts that they name
    elif _is(value, dict):
        # A copy, here and below, because other threads may change the object meanwhile.
        for i, (key, part) in enumerate(list(islice(dict.items(value), MOST))):
            yield f"[{key!r}]" if type(key) in (str, int) else f"<{i}>", part
    elif _is_collection(value):
        base = next(base for base in COLLECTIONS if issubclass(kind, base))
        if not issubclass(base, (list, tuple, deque)) and base.__len__(value) > 1:
            return  # their order differs between processes
        yield from ((f"[{i}]", part) for i, part in enumerate(list(islice(base.__iter__(value), MOST))))
    else:
        yield from _parts_of_instance(value)


def _is(value: object, kind: type[Kind]) -> TypeGuard[Kind]:
    """Return whether a value's own class is ``kind`` or a subclass of it.

    Unlike isinstance, this does not ask a proxy for the class of its target.
    """
    return issubclass(type(value), kind)


def _is_collection(value: object) -> TypeGuard[Collection[object]]:
    return issubclass(type(value), COLLECTIONS)


def _parts_of_instance(value: object) -> Iterator[tuple[str, object]]:
    called = getattr(type(value), "__call__", None)  # noqa: B004
    if isinstance(called, types.FunctionType):
        yield "", called
        yield from _parts_of_class(value, called)
    if is_environment(value):
        parts = ((name, own_attribute(value, name)) for name in INNER)
        yield from ((f".{name}", part) for name, part in parts if part is not None)
        return
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        attributes = None
    if isinstance(attributes, dict):
        yield from ((f".{name}", part) for name, part in attributes.copy().items())
    if attributes is None or type(value) is functools._lru_cache_wrapper:
        # iterators, builtin methods, objects with slots
        referents = islice(gc.get_referents(value), MOST)
        yield from ((f"<{i}>", part) for i, part in enumerate(referents) if part is not type(value))


def _parts_of_class(owner: object, function: object) -> Iterator[tuple[str, object]]:
    """Yield (name, part) for each attribute of the owner's class that the function's code names.

    owner: a class or an instance. For a property, the part is its getter; for a class or static method, its function.
    Yields nothing if ``function`` is not written in Python.
    """
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


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the cell is empty
            continue
    yield from ((f"default {i}", part) for i, part in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).copy().items()
    yield from vars(function).copy().items()  # __wrapped__ among them
    names = _names(function.__code__)
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, (type, types.ModuleType)):
            yield from ((f"{name}.{part}", vars(value)[part]) for part in names if part in vars(value))


def _names(code: types.CodeType) -> list[str]:
    """Return the global and attribute names in a code object and in the functions nested in it."""
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const)]
    return list(dict.fromkeys([*code.co_names, *inner]))
