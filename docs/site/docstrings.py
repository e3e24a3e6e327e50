"""Docstrings as the site shows them: what is said of arguments is a list, and fields have their comments."""

from __future__ import annotations

import re
from typing import Any

import griffe

NAMES = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")
LATER = re.compile(r"(?<=[.;]) (?=(\w+(?:, \w+)*): \S)")


def as_list(text: str, names: set[str] | None) -> str:
    """Return a docstring in which names and a colon begin an item of a list, which lasts to the paragraph's end.

    names: None for any in lower case.
    """

    def known(listed: str) -> bool:
        return listed.islower() if names is None else set(listed.split(", ")) <= names

    lines: list[str] = []
    listed = False
    for line in LATER.sub(lambda match: "\n" if known(match[1]) else " ", text).splitlines():
        match = NAMES.match(line.lstrip() if listed else line)
        if match and known(match[1]):
            lines += [] if listed else [""]
            told = ", ".join(f"`{name}`" for name in match[1].split(", "))
            line, listed = f"- {told}: {line.lstrip()[match.end() :]}", True
        elif listed and line:
            line = f"    {line.strip()}"
        elif not line:
            listed = False
        lines.append(line)
    return "\n".join(lines)


def comment_of(attribute: griffe.Attribute) -> str:
    """Return the comment at the end of the line that declares an attribute, or ""."""
    if attribute.lineno is None:
        return ""
    line = attribute.lines_collection[attribute.filepath][attribute.lineno - 1]
    return line.partition("  # ")[2].strip()


class Docstrings(griffe.Extension):
    """Reads this project's docstrings for mkdocstrings."""

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        if mod.docstring is not None:
            mod.docstring.value = as_list(mod.docstring.value, None)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is not None:
            func.docstring.value = as_list(
                func.docstring.value, {parameter.name.strip("*") for parameter in func.parameters}
            )

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None:
            cls.docstring.value = as_list(cls.docstring.value, None)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and (comment := comment_of(attr)):
            attr.docstring = griffe.Docstring(comment, parent=attr)
