"""Combinations of cases and values of which `make test` runs a choice, and `make test-long` the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

__all__ = ["in_turn"]


def in_turn(cases: Sequence[Any], values: Iterable[Any]) -> list[Any]:
    """Return all cases with all values, as ``parametrize`` takes them; all but one value of each case are marked long.

    cases: a tuple of arguments each, or a single one. A case keeps the value whose turn it is, so that with as many
    cases as values, or more, each value is kept.
    """
    values = list(values)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            value,
            marks=[] if at % len(values) == place else [pytest.mark.long],
        )
        for at, case in enumerate(cases)
        for place, value in enumerate(values)
    ]
