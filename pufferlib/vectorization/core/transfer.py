"""Objects for a process that has none of our memory, and with them what has been registered in this one.

``dumps`` packs an object by value, where ``__main__`` defines it, together with the custom spaces that layouts know and
the specifications in Gymnasium's registry. ``loads`` unpacks it in the other process and registers the same there.
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
from typing import Any, NamedTuple, NoReturn

import gymnasium
from gymnasium.envs.registration import EnvSpec

from pufferlib.errors import PlanError
from pufferlib.layout import leaves

__all__ = ["dumps", "loads", "main_hidden", "register"]

_MAIN = "__main__:"  # how an entry point begins that the script itself defines
_PLAIN = (str, int, float, bool, type(None))

_registered: dict[str, Any] = {}  # in the other process: the specifications that came, where they differ from its own


class _Parcel(NamedTuple):
    """What is sent. alone: the object without the specifications in ``whole``, which may fail to be unpickled."""

    whole: bytes
    alone: bytes
    env_ids: list[str]  # of the specifications in ``whole``
    plain: dict[str, Any]  # the others, which name modules, and so can be unpickled anywhere


def dumps(content: Any) -> bytes:
    """Return an object as bytes for ``loads``. Raises what pickling it raises."""
    plain: dict[str, Any] = {}
    specs: dict[str, Any] = {}
    for env_id, spec in list(gymnasium.registry.items()):
        (plain if _is_plain(spec) else specs)[env_id] = spec
    spaces = leaves.registry
    alone = _by_value((content, spaces, {}, {}))
    if not specs:
        return pickle.dumps(_Parcel(alone, b"", [], plain))
    try:
        whole = _by_value((content, spaces, specs, _of_main(specs.values())))
    except Exception:  # whatever a user's object raises when it is pickled
        specs = {env_id: _sendable(spec) for env_id, spec in specs.items()}
        whole = _by_value((content, spaces, specs, _of_main(specs.values())))
    return pickle.dumps(_Parcel(whole, alone, [*specs], plain))


def loads(parcel: bytes) -> Any:
    """Return the object of ``dumps``, and register here what was registered there. Raises what unpickling it raises."""
    whole, alone, env_ids, plain = pickle.loads(parcel)
    try:
        content, spaces, specs, of_main = pickle.loads(whole)
    except Exception as error:
        if not alone:
            raise
        content, spaces, _, _ = pickle.loads(alone)
        reason = f"what was registered cannot be unpickled in this process ({type(error).__name__}: {error})"
        specs, of_main = {env_id: _refusing(env_id, reason) for env_id in env_ids}, {}
    leaves.registry.update(spaces)
    vars(sys.modules["__main__"]).update(of_main)
    _registered.update({env_id: spec for env_id, spec in {**plain, **specs}.items() if _is_news(env_id, spec)})
    if _registered:  # a package that an entry point imports registers its own again, which is no news
        warnings.filterwarnings("ignore", ".*Overriding environment .* already in registry")
    register()
    return content


def register() -> None:
    """Put what ``loads`` has brought into Gymnasium's registry, in place of what an import may have registered since.

    Nothing in the process that sent it.
    """
    gymnasium.registry.update(_registered)


def _by_value(content: Any) -> bytes:
    """Return an object pickled by cloudpickle, and cached functions of the script by value as well.

    Those of ``functools.lru_cache``, as PettingZoo's tutorials have them, pickle themselves as a name in ``__main__``.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if type(obj) is functools._lru_cache_wrapper and _is_local(obj):
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            return super().reducer_override(obj)

    with io.BytesIO() as file:
        Pickler(file).dump(content)
        return file.getvalue()


def _is_local(function: Any) -> bool:
    """Tell whether another process finds no such function by its name."""
    return function.__module__ == "__main__" or "<locals>" in getattr(function, "__qualname__", "<locals>")


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _is_news(env_id: str, spec: Any) -> bool:
    try:
        return bool(gymnasium.registry.get(env_id) != spec)
    except ValueError:  # arrays among the arguments
        return True


def _entry_points(spec: Any) -> list[Any]:
    wrappers = [wrapper.entry_point for wrapper in spec.additional_wrappers]
    return [spec.entry_point, spec.vector_entry_point, *wrappers]


def _is_plain(spec: Any) -> bool:
    """Tell whether a specification holds nothing but text and numbers, and names nothing of ``__main__``."""
    if type(spec) is not EnvSpec:
        return False
    named = all(each is None or (isinstance(each, str) and not each.startswith(_MAIN)) for each in _entry_points(spec))
    return named and _has_plain([spec.kwargs, *(wrapper.kwargs for wrapper in spec.additional_wrappers)])


def _has_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(map(_has_plain, (*value, *value.values())))
    if type(value) in (list, tuple):
        return all(map(_has_plain, value))
    return type(value) in _PLAIN


def _of_main(specs: Iterable[Any]) -> dict[str, Any]:
    """Return what specifications name of ``__main__``, by name: the other process has another ``__main__``."""
    main = vars(_hidden[0] if _hidden else sys.modules["__main__"])
    texts = [each for spec in specs for each in _entry_points(spec) if isinstance(each, str) and each.startswith(_MAIN)]
    names = [text.removeprefix(_MAIN) for text in texts]
    return {name: main[name] for name in names if name in main}


def _sendable(spec: Any) -> Any:
    """Return a specification if it can be pickled, else one whose environments say why it could not."""
    try:
        _by_value((spec, _of_main([spec])))
        return spec
    except Exception as error:  # whatever a user's object raises when it is pickled
        return _refusing(spec.id, f"what was registered cannot be pickled ({type(error).__name__}: {error})")


@dataclasses.dataclass(frozen=True)
class _Refusal:
    """An entry point in place of one that could not be sent."""

    env_id: str
    reason: str

    def __call__(self, **kwargs: Any) -> NoReturn:
        raise PlanError(
            f'"{self.env_id}" was registered with Gymnasium in another process, and {self.reason}; '
            "register it in the env_creator"
        )


def _refusing(env_id: str, reason: str) -> Any:
    refusal = _Refusal(env_id, reason)
    return EnvSpec(env_id, refusal, vector_entry_point=refusal, disable_env_checker=True)


_hiding = threading.Lock()
_hidden: list[Any] = []  # the true ``__main__``, once for each thread that hides it


@contextlib.contextmanager
def main_hidden() -> Iterator[None]:
    """Hide ``__main__`` while a process starts, so that spawn does not run the user's script a second time.

    What it defines comes by ``dumps``, by value.
    """
    with _hiding:
        _hidden.append(_hidden[0] if _hidden else sys.modules["__main__"])
        sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        with _hiding:
            main = _hidden.pop()
            if not _hidden:  # else another thread has it hidden still
                sys.modules["__main__"] = main
