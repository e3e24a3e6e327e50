"""Infos: what environments tell with the rows of a batch, as dicts that are made when they are first read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, overload

import numpy as np

from pufferlib import _native

__all__ = ["Infos", "Source"]

Array = np.ndarray[Any, Any]


class Source(Protocol):
    """What infos are read from."""

    @property
    def count(self) -> int | None:
        """How many infos there are; None: only ``read`` can tell."""

    def read(self) -> list[dict[str, Any]]:
        """Return the infos as dicts."""

    def column(self, name: str, num_rows: int) -> tuple[Array, Array] | None:
        """Return what ``Infos.column`` does, or None where the dicts are needed for it."""

    def keys(self) -> list[Any] | None:
        """Return what ``Infos.keys`` does, or None where the dicts are needed for it."""


class Infos(Sequence[dict[str, Any]]):
    """The infos of a batch: a sequence of dicts, those that are not empty, in the order of the rows.

    Each dict has its ``env_id``, and its ``agent_id`` where it is one agent's. They are made when they are first read,
    and yours from then on; what is not read costs little. They compare, add and slice as a list does; sums, slices,
    copies and pickles of them are lists. ``column`` reads one key of all rows without making dicts.

    env_ids: of the batch, in the order of its rows; or the bytes of a uint32 array of them. agents_per_env: rows of
    each; None where env_ids are agents' ids, one a row. source: None where the dicts are there already.
    """

    __slots__ = ("_agents_per_env", "_dicts", "_env_ids", "_source")

    def __init__(
        self,
        dicts: list[dict[str, Any]] | None,
        env_ids: Sequence[int] | Array | bytes,
        agents_per_env: int | None,
        source: Source | None = None,
    ) -> None:
        self._dicts, self._env_ids, self._agents_per_env, self._source = dicts, env_ids, agents_per_env, source

    def column(self, name: str) -> tuple[Array, Array]:
        """Return (values, mask) of one key, with an entry for each row of the batch.

        name: the key. values: (rows, …), new. The dtype is the one that Gymnasium's vector infos choose: that of the
        first value where this is a number or an array, to which later ones are cast, else object. It is float64 where
        no row has the key. Entries without a value are zero, or None among objects; all are objects if shapes differ.
        mask: (rows,) bool, True where the agent's info has the key. Infos of an environment of several agents that are
        no agent's are left out, and so are those of agents without a row.
        """
        num_rows = self._num_rows()
        found = None if self._source is None else self._source.column(name, num_rows)
        return self._gathered(name, num_rows) if found is None else found

    def keys(self) -> list[Any]:
        """Return the keys of all infos, each once, in the order in which they first come."""
        found = None if self._source is None else self._source.keys()
        if found is None and _native.available:
            found = _native.infos.keys_of(self._read())
        return [*dict.fromkeys(key for info in self._read() for key in info)] if found is None else found

    def _num_rows(self) -> int:
        env_ids = self._env_ids
        return (len(env_ids) // 4 if isinstance(env_ids, bytes) else len(env_ids)) * (self._agents_per_env or 1)

    def _gathered(self, name: str, num_rows: int) -> tuple[Array, Array]:
        env_ids, agents_per_env = self._env_ids, self._agents_per_env or 1
        if isinstance(env_ids, bytes):
            env_ids = np.frombuffer(env_ids, np.uint32).tolist()
        row_of = None  # of an agent's id, where that is not the number itself
        if not (isinstance(env_ids, range) and env_ids.start == 0):
            agent_ids = [env_id * agents_per_env + index for env_id in env_ids for index in range(agents_per_env)]
            row_of = dict(zip(agent_ids, range(num_rows), strict=True))
        own_key = "env_id" if self._agents_per_env == 1 else "agent_id"
        if _native.available:
            column: tuple[Array, Array] | None = _native.infos.column_of(self._read(), name, num_rows, own_key, row_of)
            if column is not None:
                return column
        found = {}  # by row
        for info in self._read():
            row = info.get(own_key)
            if name not in info or type(row) is not int:
                continue
            if row_of is not None:
                row = row_of.get(row)
            if row is not None and 0 <= row < num_rows:
                found[row] = info[name]
        mask = np.zeros(num_rows, np.bool_)
        mask[list(found)] = True
        if not found:
            return np.zeros(num_rows), mask
        values = _zeros_like(next(iter(found.values())), num_rows)
        try:
            for row, value in found.items():
                values[row] = value
        except (TypeError, ValueError, OverflowError):  # of another shape, or no number
            values = np.full(num_rows, None, object)
            for row, value in found.items():
                values[row] = value
        return values, mask

    def _read(self) -> list[dict[str, Any]]:
        if self._dicts is None:
            assert self._source is not None
            self._dicts = self._source.read()
            self._source = None
        return self._dicts

    def copy(self) -> list[dict[str, Any]]:
        """Return a list of the dicts."""
        return list(self._read())

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._read())

    def __len__(self) -> int:
        count = None if self._source is None else self._source.count
        return len(self._read()) if count is None else count

    def __add__(self, other: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*self._read(), *other]

    def __radd__(self, other: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*other, *self._read()]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Infos):
            return self._read() == other._read()
        return self._read() == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self.copy(),)

    def __repr__(self) -> str:
        return repr(self._read())


def _zeros_like(value: Any, num_rows: int) -> Array:
    """Return a column without values, of the dtype and shape that Gymnasium chooses for a value."""
    if type(value) in (int, float, bool) or isinstance(value, np.number):
        return np.zeros(num_rows, type(value))
    if isinstance(value, np.ndarray):
        return np.zeros((num_rows, *value.shape), value.dtype)
    return np.full(num_rows, None, object)
