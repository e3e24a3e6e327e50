"""Pickling of objects for another process, together with this process's registrations.

``dumps`` pickles an object, by value if ``__main__`` defines it, together with the custom spaces that are registered
with pufferlib.layout and the specifications in Gymnasium's registry. ``loads`` unpickles the object in the other
process, and registers the spaces and specifications there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import pickle
import sys
import threading
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn

import gymnasium
from gymnasium.envs.registration import EnvSpec

from pufferlib.errors import PlanError
from pufferlib.layout import leaves
from pufferlib.util.annotations import Function

__all__ = ["dumps", "loads", "main_hidden", "register"]

_MAIN = "__main__:"  # the prefix of an entry point that the script itself defines
_PLAIN = (str, int, float, bool, type(None))

_registered: dict[str, EnvSpec] = {}  # in the receiving process: the specifications received that differ from its own


class _Parcel(NamedTuple):
    """The parts of a parcel, which ``dumps`` pickles and ``loads`` reads.

    with_specs: the pickled object, with the registered spaces and those specifications that may fail to be unpickled.
    alone: the same without the specifications, in case unpickling ``with_specs`` fails; b"" if there are no such
    specifications.
    """

    with_specs: bytes
    alone: bytes
    env_ids: list[str]  # of the specifications in ``with_specs``
    plain: dict[str, EnvSpec]  # the other specifications, which name modules, and so can be unpickled anywhere


def dumps(content: object) -> bytes:
    """Serialize an object and this process's registrations for ``loads``. Errors from pickling the object propagate.

    A specification that cannot be pickled is replaced by one whose entry point raises PlanError.
    """
    plain: dict[str, EnvSpec] = {}
    specs: dict[str, EnvSpec] = {}
    for env_id, spec in list(gymnasium.registry.items()):
        (plain if _is_plain(spec) else specs)[env_id] = spec
    spaces = leaves.registry
    alone = _by_value((content, spaces, {}, {}))
    if not specs:
        return pickle.dumps(_Parcel(alone, b"", [], plain))
    try:
        with_specs = _by_value((content, spaces, specs, _of_main(specs.values())))
    except Exception:  # any error of the user's object
        specs = {env_id: _sendable(spec) for env_id, spec in specs.items()}
        with_specs = _by_value((content, spaces, specs, _of_main(specs.values())))
    return pickle.dumps(_Parcel(with_specs, alone, [*specs], plain))


def loads(parcel: bytes) -> object:
    """Return the object passed to ``dumps``, and apply the registrations sent with it.

    Errors from unpickling the object propagate. If unpickling succeeds only without the specifications in
    ``_Parcel.with_specs``, these specifications are registered with an entry point that raises PlanError.
    """
    with_specs, alone, env_ids, plain = pickle.loads(parcel)
    try:
        content, spaces, specs, of_main = pickle.loads(with_specs)
    except Exception as error:
        if not alone:
            raise
        content, spaces, _, _ = pickle.loads(alone)
        reason = f"its specification cannot be unpickled in this process ({type(error).__name__}: {error})"
        specs, of_main = {env_id: _refusing(env_id, reason) for env_id in env_ids}, {}
    leaves.registry.update(spaces)
    vars(sys.modules["__main__"]).update(of_main)
    _registered.update({env_id: spec for env_id, spec in {**plain, **specs}.items() if _differs(env_id, spec)})
    if _registered:  # a package imported by an entry point registers its environments again
        warnings.filterwarnings("ignore", ".*Overriding environment .* already in registry")
    register()
    return content


def register() -> None:
    """Register with Gymnasium the specifications that ``loads`` received.

    They replace any specifications that imports have registered under the same ids in the meantime. Does nothing in the
    sending process.
    """
    gymnasium.registry.update(_registered)


def _by_value(content: object) -> bytes:
    """Pickle an object with cloudpickle; local functions with ``functools.lru_cache`` are pickled by value as well.

    cloudpickle on its own pickles such functions, which PettingZoo's tutorials use, only by name.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: object) -> object:
            if type(obj) is functools._lru_cache_wrapper and _is_local(obj):
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            return super().reducer_override(obj)

    with io.BytesIO() as file:
        Pickler(file).dump(content)
        return file.getvalue()


def _is_local(function: object) -> bool:
    """Return whether a function cannot be imported by name in another process."""
    return function.__module__ == "__main__" or "<locals>" in getattr(function, "__qualname__", "<locals>")


def _cached(function: Function, parameters: functools._CacheParameters) -> Function:
    return functools.lru_cache(**parameters)(function)


def _differs(env_id: str, spec: EnvSpec) -> bool:
    try:
        return bool(gymnasium.registry.get(env_id) != spec)
    except ValueError:  # arrays among the arguments
        return True


def _entry_points(spec: EnvSpec) -> list[object]:
    wrappers = [wrapper.entry_point for wrapper in spec.additional_wrappers]
    return [spec.entry_point, spec.vector_entry_point, *wrappers]


def _is_plain(spec: EnvSpec) -> bool:
    """Return whether a specification holds only text and numbers and refers to nothing in ``__main__``."""
    if type(spec) is not EnvSpec:
        return False
    points = _entry_points(spec)
    importable = all(item is None or (isinstance(item, str) and not item.startswith(_MAIN)) for item in points)
    return importable and _has_plain([spec.kwargs, *(wrapper.kwargs for wrapper in spec.additional_wrappers)])


def _has_plain(value: object) -> bool:
    if type(value) is dict:
        return all(map(_has_plain, (*value, *value.values())))
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return all(map(_has_plain, value))
    return type(value) in _PLAIN


def _of_main(specs: Iterable[EnvSpec]) -> dict[str, object]:
    """Return, by name, the objects in ``__main__`` that the specifications' entry points name.

    The other process's ``__main__`` lacks these objects.
    """
    main = vars(_hidden[0] if _hidden else sys.modules["__main__"])
    texts = [item for spec in specs for item in _entry_points(spec) if isinstance(item, str) and item.startswith(_MAIN)]
    names = [text.removeprefix(_MAIN) for text in texts]
    return {name: main[name] for name in names if name in main}


def _sendable(spec: EnvSpec) -> EnvSpec:
    """Return the specification if it can be pickled, else one whose entry point raises PlanError with the reason."""
    try:
        _by_value((spec, _of_main([spec])))
        return spec
    except Exception as error:  # any error of the user's object
        return _refusing(spec.id, f"its specification cannot be pickled ({type(error).__name__}: {error})")


@dataclasses.dataclass(frozen=True)
class _Refusal:
    """A substitute for an entry point that could not be sent. Calling it raises PlanError with the reason."""

    env_id: str
    reason: str

    def __call__(self, **kwargs: object) -> NoReturn:
        raise PlanError(
            f'"{self.env_id}" was registered with Gymnasium in another process, and {self.reason}; '
            "register it in the env_creator"
        )


def _refusing(env_id: str, reason: str) -> EnvSpec:
    refusal = _Refusal(env_id, reason)
    return EnvSpec(env_id, refusal, vector_entry_point=refusal, disable_env_checker=True)


_hiding = threading.Lock()
_hidden: list[types.ModuleType] = []  # the real ``__main__``, once for each thread that hides it


@contextlib.contextmanager
def main_hidden() -> Iterator[None]:
    """Hide ``__main__`` while a process starts, so that spawn does not run the user's script again.

    The new process does not need the script, because ``dumps`` sends objects that the script defines by value.
    """
    with _hiding:
        _hidden.append(_hidden[0] if _hidden else sys.modules["__main__"])
        sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        with _hiding:
            main = _hidden.pop()
            if not _hidden:  # else another thread still hides it
                sys.modules["__main__"] = main
