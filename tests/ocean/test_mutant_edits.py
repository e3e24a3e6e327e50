"""Edits of functions by structure: what patterns match, and that no mutant depends on the names of variables."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.edits import Edit, by_function, definition, edited

pytestmark = pytest.mark.beside


def example(rows, scale):
    total = rows.sum(0)  # of all
    if scale:
        total = total - scale * rows.mean(0)
    return (total - rows) / len(rows)


@pytest.mark.parametrize(
    ("pattern", "replacement", "where", "before", "after"),
    [
        ("(_a - _b) / _c", "(_b - _a) / _c", "", "(total - rows) /", "(rows - total) /"),
        ("_x.sum(0)", "_x.sum(1)", "", "rows.sum(0)", "rows.sum(1)"),
        ("_x = _x - _y", "_x = _x + _y", "", "total - scale", "total + scale"),
        ("_x = _x - _y", "pass", "", "total = total - scale * rows.mean(0)", "pass"),
        ("len(_x)", "_scale", "_scale * _x.mean(0)", "len(rows)", "scale"),
        ("_x = _y.sum(0)", "_x = _y.sum(0)\n_x += 1", "", "rows.sum(0)", "rows.sum(0)\n    total += 1"),
    ],
)
def test_an_edit_replaces_what_its_pattern_matches(pattern, replacement, where, before, after):
    tree = definition(example)
    source = ast.unparse(tree)
    assert source.count(before) == 1
    assert ast.unparse(edited(tree, [Edit(example, pattern, replacement, where)])) == source.replace(before, after)
    assert ast.unparse(tree) == source


def test_edits_are_made_one_after_another():
    edits = [Edit(example, "len(_x)", "min(_x)"), Edit(example, "min(_x)", "max(_x)")]
    assert ast.unparse(edited(definition(example), edits)).endswith("/ max(rows)")


@pytest.mark.parametrize(
    ("pattern", "replacement", "where", "message"),
    [
        ("_x - _y", "_y - _x", "", "test_mutant_edits.example has '_x - _y' 2 times, not once"),
        ("_x / _x", "_x", "", "has '_x / _x' 0 times, not once"),
        ("_x.sum(False)", "_x", "", "has '_x.sum\\(False\\)' 0 times, not once"),
        ("len(_x)", "_x", "_y * _y", "has 'len\\(_x\\)' 0 times, not once where it has '_y \\* _y'"),
        ("len(_x)", "_y", "", "nothing binds '_y' of '_y'"),
    ],
)
def test_an_edit_that_does_not_fit_exactly_once_is_refused(pattern, replacement, where, message):
    with pytest.raises(LookupError, match=message):
        edited(definition(example), [Edit(example, pattern, replacement, where)])


class Renaming(ast.NodeTransformer):
    """Rename a function's local variables, and the attributes of self and of a rollout, in copies of its tree."""

    def __init__(self, tree):
        nodes = list(ast.walk(tree))
        self.variables = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        self.variables |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        self.variables.discard("self")
        self.attributes = {node.attr for node in nodes if self.is_own(node)}

    @staticmethod
    def is_own(node):
        owner = getattr(node, "value", None)
        return isinstance(node, ast.Attribute) and isinstance(owner, ast.Name) and owner.id in ("self", "rollout")

    def renamed(self, tree):
        return self.visit(ast.parse(ast.unparse(tree)).body[0])

    def visit_Name(self, node):
        node.id = f"other_{node.id}" if node.id in self.variables else node.id
        return node

    def visit_arg(self, node):
        node.arg = f"other_{node.arg}" if node.arg in self.variables else node.arg
        return node

    def visit_Attribute(self, node):
        node.attr = f"other_{node.attr}" if self.is_own(node) and node.attr in self.attributes else node.attr
        return self.generic_visit(node)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_does_not_depend_on_the_names_of_variables(name):
    """Edits of a renamed function, without its comments and layout, come to the edited function, renamed."""
    for function, edits in by_function(MUTANTS[name].edits).items():
        tree = definition(function)
        renaming = Renaming(tree)
        renamed = renaming.renamed(tree)
        assert ast.dump(renamed) != ast.dump(tree)
        assert ast.dump(edited(renamed, edits)) == ast.dump(renaming.renamed(edited(tree, edits)))
