"""Docstrings as the site shows them: what is said of arguments is a list, and fields have their comments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import griffe

NAMES = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")
KEYWORD_ONLY = griffe.ParameterKind.keyword_only
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


def functions_of(parent: griffe.Object) -> Iterator[griffe.Function]:
    """Yield the functions and methods of a package, module or class."""
    for member in parent.members.values():
        if isinstance(member, griffe.Function):
            yield member
        elif isinstance(member, griffe.Module | griffe.Class):
            yield from functions_of(member)


def list_parameters(function: griffe.Function) -> None:
    """Replace ``**kwargs: Unpack[Parameters]`` by these, if ``says_what_was_meant`` fills in their defaults."""
    *_, last = [None, *function.parameters]
    unpacked = last and last.annotation
    decorators = {str(decorator.value).partition("(")[0] for decorator in function.decorators}
    if not str(unpacked).startswith("Unpack[") or "says_what_was_meant" not in decorators:
        return
    positional = [parameter for parameter in function.parameters if parameter.kind not in (KEYWORD_ONLY, last.kind)]
    keywords = [parameter for parameter in function.parameters if parameter.kind is KEYWORD_ONLY]
    function.parameters = griffe.Parameters(*positional)
    declared = function.modules_collection[unpacked.slice.canonical_path]
    for cls in [*declared.mro(), declared]:
        for name, field in cls.members.items():
            kind, default = field.annotation, "None"
            if str(kind).startswith("Annotated["):
                kind, _ = kind.slice.elements
                (declaration,) = ast.parse(field.source).body  # in griffe's annotations strings have no quotes
                default = ast.unparse(declaration.annotation.slice.elts[1])
            function.parameters.add(griffe.Parameter(name, annotation=kind, kind=KEYWORD_ONLY, default=default))
    for parameter in keywords:
        function.parameters.add(parameter)


class Docstrings(griffe.Extension):
    """Reads this project's docstrings for mkdocstrings."""

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        if mod.docstring is not None:
            mod.docstring.value = as_list(mod.docstring.value, None)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for function in functions_of(pkg):
            list_parameters(function)
            if function.docstring is not None:
                function.docstring.value = as_list(
                    function.docstring.value, {parameter.name.strip("*") for parameter in function.parameters}
                )

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None:
            cls.docstring.value = as_list(cls.docstring.value, None)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        for argument in getattr(attr.value, "arguments", ()):  # of a BackendKind, which is called like a class
            if isinstance(argument, griffe.ExprKeyword) and argument.name == "doc":
                doc = ast.literal_eval(str(argument.value))
                attr.docstring, attr.value = griffe.Docstring(as_list(doc, None), parent=attr), None
        if attr.docstring is None and (comment := comment_of(attr)):
            attr.docstring = griffe.Docstring(comment, parent=attr)
