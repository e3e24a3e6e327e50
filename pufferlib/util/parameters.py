"""Declare parameters once, in a TypedDict, for all functions that take or forward them.

    class Parameters(TypedDict, total=False):
        seed: int | None  # None by default
        copy: Annotated[bool, False]  # False by default

    @says_what_was_meant(parameters=Parameters)
    def f(env: str, **kwargs: Unpack[Parameters]) -> None: ...

Editors and type checkers offer the keywords of ``f``, ``inspect.signature`` lists them with their defaults, and ``f``
receives a value for each keyword. The TypedDict's module must not contain ``from __future__ import annotations``,
because defaults are read from evaluated annotations.
"""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Unpack
else:
    Unpack = getattr(typing, "Unpack", None)  # CPython 3.10 has none, and nothing evaluates these annotations

__all__ = ["Unpack", "keywords_of"]


def keywords_of(parameters: type[Any]) -> list[inspect.Parameter]:
    """Return the parameters that a TypedDict declares, as keyword-only ``inspect.Parameter`` objects."""
    keywords = []
    for name, annotation in parameters.__annotations__.items():
        annotated = hasattr(annotation, "__metadata__")
        kind, default = (annotation.__origin__, *annotation.__metadata__) if annotated else (annotation, None)
        kind = getattr(kind, "__forward_arg__", kind)  # the text of a quoted annotation
        keywords.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    return keywords
