"""Infos: the infos of a batch, as dicts that are built when they are first read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, overload

import numpy as np

from pufferlib import _native
from pufferlib.util.annotations import Array, Info

__all__ = ["Infos", "Source"]


class Source(Protocol):
    """A source from which ``Infos`` reads its dicts and columns on demand."""

    @property
    def count(self) -> int | None:
        """The number of infos; None if only ``read`` can count them."""

    def read(self) -> list[Info]:
        """Return the infos as dicts."""

    def column(self, name: str, num_rows: int) -> tuple[Array, Array] | None:
        """Return the result of ``Infos.column``, or None if it can only be computed from the dicts."""

    def keys(self) -> list[str] | None:
        """Return the result of ``Infos.keys``, or None if it can only be computed from the dicts."""


class Infos(Sequence[Info]):
    """The infos of a batch: a sequence of the non-empty dicts, in the order of the rows.

    Each dict has an ``env_id``, and an ``agent_id`` if it belongs to one agent. Dicts are built when they are first
    read, and belong to the caller from then on; unread infos cost little. Comparison, addition and slicing work as for
    a list; the result of addition, slicing, copying or unpickling is a list. ``column`` reads one key of all rows
    without making dicts.

    dicts: the infos, or None if they come from ``source``. env_ids: the batch's env ids or, if agents_per_env is None,
    its rows' agent ids, in the order of the rows; a sequence, or the bytes of a uint32 array. agents_per_env: rows per
    environment, or None. source: where the infos are read from; None if ``dicts`` is given.
    """

    __slots__ = ("_agents_per_env", "_dicts", "_env_ids", "_source")

    def __init__(
        self,
        dicts: list[Info] | None,
        env_ids: Sequence[int] | Array | bytes,
        agents_per_env: int | None,
        source: Source | None = None,
    ) -> None:
        self._dicts, self._env_ids, self._agents_per_env, self._source = dicts, env_ids, agents_per_env, source

    def column(self, name: str) -> tuple[Array, Array]:
        """Return (values, mask) of one key, with an entry for each row of the batch.

        name: the key. values: a new array (rows, …). As in Gymnasium's vector infos, its dtype is that of the first
        value if this value is a number or an array, otherwise object; later values are cast to this dtype. It is
        float64 if no row has the key, and object if a value has another shape or cannot be cast. Entries without a
        value are zero, or None in an object array.
        mask: (rows,) bool, True where the agent's info has the key. With several agents, infos about the environment as
        a whole, and about agents without a row, are left out.
        """
        num_rows = self._num_rows()
        column = None if self._source is None else self._source.column(name, num_rows)
        return self._gathered(name, num_rows) if column is None else column

    def keys(self) -> list[str]:
        """Return the distinct keys of all infos, in the order of their first occurrence."""
        keys = None if self._source is None else self._source.keys()
        if keys is None and _native.available:
            keys = _native.infos.keys_of(self._read())
        return [*dict.fromkeys(key for info in self._read() for key in info)] if keys is None else keys

    def _num_rows(self) -> int:
        env_ids = self._env_ids
        return (len(env_ids) // 4 if isinstance(env_ids, bytes) else len(env_ids)) * (self._agents_per_env or 1)

    def _gathered(self, name: str, num_rows: int) -> tuple[Array, Array]:
        env_ids, agents_per_env = self._env_ids, self._agents_per_env or 1
        if isinstance(env_ids, bytes):
            env_ids = np.frombuffer(env_ids, np.uint32).tolist()
        row_of = None  # by agent id; None if the id is the row
        if not (isinstance(env_ids, range) and env_ids.start == 0):
            agent_ids = [env_id * agents_per_env + index for env_id in env_ids for index in range(agents_per_env)]
            row_of = dict(zip(agent_ids, range(num_rows), strict=True))
        id_key = "env_id" if self._agents_per_env == 1 else "agent_id"
        if _native.available:
            column: tuple[Array, Array] | None = _native.infos.column_of(self._read(), name, num_rows, id_key, row_of)
            if column is not None:
                return column
        found_values: dict[int, object] = {}  # by row
        for info in self._read():
            row = info.get(id_key)
            if name not in info or type(row) is not int:
                continue
            if row_of is not None:
                row = row_of.get(row)
            if row is not None and 0 <= row < num_rows:
                found_values[row] = info[name]
        mask = np.zeros(num_rows, np.bool_)
        mask[list(found_values)] = True
        if not found_values:
            return np.zeros(num_rows), mask
        values = _zeros_like(next(iter(found_values.values())), num_rows)
        try:
            for row, value in found_values.items():
                values[row] = value
        except (TypeError, ValueError, OverflowError):  # of another shape, or not a number
            values = np.full(num_rows, None, object)
            for row, value in found_values.items():
                values[row] = value
        return values, mask

    def _read(self) -> list[Info]:
        if self._dicts is None:
            assert self._source is not None
            self._dicts = self._source.read()
            self._source = None
        return self._dicts

    def copy(self) -> list[Info]:
        """Return a new list of the same dicts."""
        return list(self._read())

    @overload
    def __getitem__(self, index: int) -> Info: ...
    @overload
    def __getitem__(self, index: slice[int | None]) -> list[Info]: ...
    def __getitem__(self, index: int | slice[int | None]) -> Info | list[Info]:
        return self._read()[index]

    def __iter__(self) -> Iterator[Info]:
        return iter(self._read())

    def __len__(self) -> int:
        count = None if self._source is None else self._source.count
        return len(self._read()) if count is None else count

    def __add__(self, other: Iterable[Info]) -> list[Info]:
        return [*self._read(), *other]

    def __radd__(self, other: Iterable[Info]) -> list[Info]:
        return [*other, *self._read()]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Infos):
            return self._read() == other._read()
        return self._read() == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[list[Info]], tuple[list[Info]]]:
        return list, (self.copy(),)

    def __repr__(self) -> str:
        return repr(self._read())


def _zeros_like(value: object, num_rows: int) -> Array:
    """Return a column without values, with the dtype and shape that Gymnasium chooses for ``value``.

    Its entries are zero, or None if its dtype is object.
    """
    if type(value) in (int, float, bool) or isinstance(value, np.number):
        return np.zeros(num_rows, type(value))
    if isinstance(value, np.ndarray):
        return np.zeros((num_rows, *value.shape), value.dtype)
    return np.full(num_rows, None, object)
