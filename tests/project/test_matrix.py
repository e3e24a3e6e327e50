"""The short form of a parametrized test shows each value, and both forms together are all there is."""

from __future__ import annotations

from typing import Any

import pytest
from matrix import covering

pytestmark = pytest.mark.beside


def cases(axes: Any) -> tuple[list[Any], list[Any]]:
    """Return the values of the short and of the long form."""
    params = covering(axes).args[1]
    long = [any(mark.name == "long" for mark in param.marks) for param in params]
    return tuple([param.values for param, other in zip(params, long, strict=True) if other is form]
                 for form in (False, True))  # type: ignore[return-value]  # fmt: skip


def test_each_value_is_in_the_short_form_and_each_combination_in_one_of_both() -> None:
    axes = {"a": range(6), "b": "xy", "c": [None, 1, 2]}
    short, long = cases(axes)
    assert len(short) == 6 and len(long) == 30 and len({*short, *long}) == 36
    assert [{*column} for column in zip(*short, strict=True)] == [set(values) for values in axes.values()]


def test_values_of_several_names_marks_and_ids_are_kept() -> None:
    failing = pytest.mark.xfail(reason="theirs", strict=True)
    params = covering({"a,b": [(1, 2), (3, 4)], "c": [5, pytest.param(6, id="six", marks=failing)]}).args[1]
    assert [param.values for param in params] == [(1, 2, 5), (1, 2, 6), (3, 4, 5), (3, 4, 6)]
    assert [param.id for param in params] == [None, "1-2-six", None, "3-4-six"]
    assert [[mark.name for mark in param.marks] for param in params] == [[], ["xfail", "long"], ["long"], ["xfail"]]


def test_what_takes_a_gpu_is_no_one_elses_short_form() -> None:
    on_gpu = pytest.param("g", marks=pytest.mark.gpu)
    without = cases({"player": "ab", "size": [1, 2, 3]})[0]
    short, _ = cases({"player": ["a", "b", on_gpu], "size": [1, 2, 3]})
    assert [case for case in short if "g" not in case] == without
    assert [case for case in short if "g" in case] == [("g", 1), ("g", 2), ("g", 3)]
