"""Which cases of a parametrized test are its short form: as few as show each value of each parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest


def covering(axes: Mapping[str, Sequence[Any]], indirect: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Parametrize a test by every combination of values, and mark all ``long`` but as few as show each value once.

    axes: the values of each argument name. A key may name several, "backend,batch_size", and its values are tuples
    then. A value may be a pytest.param, with marks and an id of its own. indirect: the names of fixtures.
    """
    columns = [[row if hasattr(row, "marks") else pytest.param(*_as_tuple(names, row)) for row in values]
               for names, values in axes.items()]  # fmt: skip
    # What takes a GPU shows nothing where there is none: short is with it what is short with another in its place.
    cpu_indices = [[number for number, value in enumerate(values) if not _on_gpu(value)] for values in columns]
    longest = max(map(len, cpu_indices))
    # The shorter ones begin again, one place further on each time, so that not always the same values meet.
    short = {tuple(row[(index + index // len(row)) % len(row)] for row in cpu_indices) for index in range(longest)}

    def is_short(numbers: Sequence[int]) -> bool:
        return any(
            all(
                number in (one, *({number} - {*row}))
                for number, one, row in zip(numbers, ones, cpu_indices, strict=True)
            )
            for ones in short
        )

    params = []
    for numbers in product(*(range(len(row)) for row in columns)):
        parts = [row[number] for row, number in zip(columns, numbers, strict=True)]
        marks = [mark for part in parts for mark in part.marks]
        values = [value for part in parts for value in part.values]
        named = [part.id for part in parts if part.id is not None]
        name = "-".join(str(part.id or _words(part.values)) for part in parts) if named else None
        params.append(pytest.param(*values, id=name, marks=marks if is_short(numbers) else [*marks, pytest.mark.long]))
    return pytest.mark.parametrize(",".join(axes), params, indirect=list(indirect))


def _on_gpu(value: Any) -> bool:
    return any(mark.name == "gpu" for mark in value.marks)


def _as_tuple(names: str, value: Any) -> tuple[Any, ...]:
    return tuple(value) if "," in names else (value,)


def _words(values: Sequence[Any]) -> str:
    return "-".join(str(getattr(value, "__name__", value)) for value in values)
