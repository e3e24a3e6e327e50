"""Edits of functions by structure: what patterns match."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.edits import Edit, definition, edited

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
