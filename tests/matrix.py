"""Products of parameters of which `make test` runs a choice, and `make test-long` the rest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["covering"]


def covering(*values: Sequence[Any]) -> list[Any]:
    """Return all combinations for ``pytest.mark.parametrize``; those beyond a choice that has every value are long.

    The choice goes through all lists at once, and begins shorter ones again.
    """
    chosen = {tuple(number % len(each) for each in values) for number in range(max(map(len, values)))}
    found = []
    for numbers in itertools.product(*(range(len(each)) for each in values)):
        given = [each[number] for each, number in zip(values, numbers, strict=True)]
        marks = () if numbers in chosen else pytest.mark.long
        found.append(pytest.param(*given, marks=marks, id="-".join(map(str, given))))
    return found
