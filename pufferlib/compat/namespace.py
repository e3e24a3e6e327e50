"""PufferLib's ``namespace``: objects whose attributes are also the items of a mapping.

The module is itself callable, because ``pufferlib.namespace`` is a function in PufferLib and, once
``pufferlib.namespace`` has been imported, this module.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

__all__ = ["Namespace", "dataclass", "items", "keys", "namespace", "values"]

Class = TypeVar("Class", bound=type)


def keys(self: Any) -> KeysView[str]:
    """Return the names of an object's attributes."""
    attributes: dict[str, Any] = vars(self)
    return attributes.keys()


def values(self: Any) -> ValuesView[Any]:
    """Return the values of an object's attributes."""
    attributes: dict[str, Any] = vars(self)
    return attributes.values()


def items(self: Any) -> ItemsView[str, Any]:
    """Return an object's attributes as pairs of name and value."""
    attributes: dict[str, Any] = vars(self)
    return attributes.items()


class Namespace(SimpleNamespace, Mapping[str, Any]):
    """Attributes that can also be read as the items of a mapping; they are set as attributes only."""

    def __getitem__(self, key: str) -> Any:
        return vars(self)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    keys, values, items = keys, values, items
    __hash__ = None  # type: ignore[assignment]  # like a SimpleNamespace's


def namespace(self: Any = None, **kwargs: Any) -> Any:
    """Return a Namespace of the keyword arguments; or set them as attributes of ``self`` and return None."""
    if self is None:
        return Namespace(**kwargs)
    vars(self).update(kwargs)
    return None


def dataclass(cls: Class) -> Class:
    """Give a class a constructor of keyword arguments, and let its instances be read like mappings.

    The annotations and values of the class and its base classes are the defaults, in this order; other arguments are
    accepted as well. The constructor raises TypeError if an annotated name has neither a value in a class nor an
    argument.
    """
    kinds = [kind for kind in reversed(cls.__mro__) if kind is not object]
    annotated = [name for kind in kinds for name in inspect.get_annotations(kind)]
    values_by_name = {name: value for kind in kinds for name, value in vars(kind).items() if not callable(value)}
    defaults = {name: value for name, value in values_by_name.items() if not name.startswith("_")}

    def __init__(self: Any, **kwargs: Any) -> None:
        missing = [name for name in annotated if name not in kwargs and name not in defaults]
        if missing:
            raise TypeError(f"{cls.__name__} needs the arguments {', '.join(missing)}")
        names = dict.fromkeys([*annotated, *defaults, *kwargs])
        vars(self).update({name: kwargs[name] if name in kwargs else defaults[name] for name in names})

    cls.__init__ = __init__  # type: ignore[misc]
    for name in ("__getitem__", "__iter__", "__len__", "keys", "values", "items"):
        setattr(cls, name, vars(Namespace)[name])
    return cls


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return namespace(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
