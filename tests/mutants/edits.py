"""Edits of functions by structure: a pattern that matches one place of a function's syntax tree, and its replacement.

Comments, docstrings, layout and names of local variables are free to change; an edit that no longer fits raises
LookupError. Edits change functions of this process, never files.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

__all__ = ["Edit", "both", "by_function", "definition", "edited", "mutated"]

Bindings = dict[str, ast.expr]  # by metavariable


@dataclass(frozen=True)
class Edit:
    """Replace one expression or statement of a function.

    Names that begin with an underscore are metavariables. One in ``pattern`` or ``where`` matches any expression, and
    the same expression wherever it stands in the two; one in ``replacement`` stands for what it matched.
    """

    function: Callable[..., Any]
    pattern: str
    """an expression or a statement"""
    replacement: str
    """an expression or statements"""
    where: str = ""
    """another expression or statement of the function, which binds metavariables that the pattern lacks"""


def both(functions: Sequence[Callable[..., Any]], pattern: str, replacement: str, where: str = "") -> tuple[Edit, ...]:
    """Return the same edit of each function, such as ``update`` of both trainers."""
    return tuple(Edit(function, pattern, replacement, where) for function in functions)


def mutated(edits: Sequence[Edit]) -> list[tuple[FunctionType, CodeType]]:
    """Return each function that edits change, and its new code. Raises LookupError as ``edited`` does."""
    groups = by_function(edits).items()
    return [(function, _compiled(function, edited(definition(function), group))) for function, group in groups]


def by_function(edits: Sequence[Edit]) -> dict[FunctionType, list[Edit]]:
    """Return edits grouped by the function that they change."""
    groups: dict[FunctionType, list[Edit]] = {}
    for edit in edits:
        groups.setdefault(_unwrapped(edit.function), []).append(edit)
    return groups


def edited(tree: ast.FunctionDef, edits: Sequence[Edit]) -> ast.FunctionDef:
    """Return a copy of a function's syntax tree with the edits made, one after another.

    Raises LookupError for an edit whose pattern is not found exactly once, or that leaves a metavariable unbound.
    """
    tree = copy.deepcopy(tree)
    for edit in edits:
        pattern, replacement = _parsed(edit)
        contexts = [bindings for _, bindings in _matches(_node(edit.where), tree, {})] if edit.where else [{}]
        matches = [match for bindings in contexts for match in _matches(pattern, tree, bindings)]
        if len(matches) != 1:
            where = f" where it has {edit.where!r}" if edit.where else ""
            raise LookupError(f"{_name(edit)} has {edit.pattern!r} {len(matches)} times, not once{where}")
        ((target, bindings),) = matches
        for node in replacement:
            for part in ast.walk(node):
                ast.copy_location(part, target)  # line numbers, for tracebacks
        try:
            _Replacement(target, [_Binding(bindings).visit(node) for node in replacement]).visit(tree)
        except KeyError as error:
            raise LookupError(f"{_name(edit)}: nothing binds {error} of {edit.replacement!r}") from error
    return ast.fix_missing_locations(tree)


def definition(function: FunctionType) -> ast.FunctionDef:
    """Return a function's syntax tree without decorators, which remain around the function."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    return tree


def _unwrapped(function: Callable[..., Any]) -> FunctionType:
    """Return the function inside decorators or a class method."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    assert isinstance(inner, FunctionType), function
    return inner


def _compiled(function: FunctionType, tree: ast.FunctionDef) -> CodeType:
    """Return the code of a syntax tree with the function's name and arguments."""
    scope = dict(function.__globals__)
    # This file's future statements apply, which are those of all edited files.
    exec(compile(ast.Module([tree], []), f"<mutant of {function.__qualname__}>", "exec"), scope)
    code: CodeType = scope[tree.name].__code__
    return code


# ----------------------------------------------------------------------------------------------- matching and replacing


def _parsed(edit: Edit) -> tuple[ast.AST, list[ast.AST]]:
    """Return the pattern, and the nodes that replace it: an expression by an expression, a statement by statements."""
    (pattern,), replacement = ast.parse(edit.pattern).body, ast.parse(edit.replacement).body
    if isinstance(pattern, ast.Expr) and len(replacement) == 1 and isinstance(replacement[0], ast.Expr):
        return pattern.value, [replacement[0].value]
    return pattern, [*replacement]


def _node(source: str) -> ast.AST:
    """Return a pattern as an expression if it is one, else as a statement."""
    (statement,) = ast.parse(source).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def _name(edit: Edit) -> str:
    function = _unwrapped(edit.function)
    return f"{function.__module__}.{function.__qualname__}"


def _matches(pattern: ast.AST, tree: ast.AST, bindings: Bindings) -> Iterator[tuple[ast.AST, Bindings]]:
    """Yield each node that matches the pattern, with its bindings, which extend the given ones."""
    for node in ast.walk(tree):
        extended = _bind(pattern, node, bindings)
        if extended is not None:
            yield node, extended


def _bind(pattern: Any, node: Any, bindings: Bindings) -> Bindings | None:
    """Return the bindings, extended by those that make a pattern equal to a node; None if none do."""
    if isinstance(pattern, ast.Name) and _is_metavariable(pattern.id):
        if not isinstance(node, ast.expr):
            return None
        extended = {pattern.id: node, **bindings}
        # Compared as source, which has no contexts: an expression may be loaded here and stored there.
        return extended if ast.unparse(extended[pattern.id]) == ast.unparse(node) else None
    if type(pattern) is not type(node):
        return None
    if isinstance(pattern, ast.AST):
        names = [name for name in pattern._fields if name != "ctx"]
        pattern, node = ([getattr(tree, name, None) for name in names] for tree in (pattern, node))
    if not isinstance(pattern, list):
        return bindings if pattern == node else None
    if len(pattern) != len(node):
        return None
    matched: Bindings | None = bindings
    for part, counterpart in zip(pattern, node, strict=True):
        matched = None if matched is None else _bind(part, counterpart, matched)
    return matched


def _is_metavariable(name: str) -> bool:
    return name.startswith("_")


class _Binding(ast.NodeTransformer):
    """Put what metavariables are bound to in their place. Raises KeyError for one that is not bound."""

    def __init__(self, bindings: Bindings) -> None:
        self.bindings = bindings

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not _is_metavariable(node.id):
            return node
        expression = copy.deepcopy(self.bindings[node.id])
        if hasattr(expression, "ctx"):
            expression.ctx = node.ctx
        return expression


class _Replacement(ast.NodeTransformer):
    """Put nodes in the place of one."""

    def __init__(self, node: ast.AST, nodes: list[ast.AST]) -> None:
        self.node, self.nodes = node, nodes

    def visit(self, node: ast.AST) -> Any:
        if node is not self.node:
            return super().visit(node)
        return self.nodes[0] if isinstance(node, ast.expr) else self.nodes
