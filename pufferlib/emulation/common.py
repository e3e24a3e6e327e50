"""A common row format for agents with different spaces, with a writer and a reader for each agent.

Every row is as large as the largest agent's observation or action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.errors import SpaceError, argument_error
from pufferlib.layout import Layout
from pufferlib.layout.layout import ActionLayout
from pufferlib.util.annotations import Array

__all__ = ["Clip", "action_reader", "clip_of", "common_action_space", "common_observation_space", "observation_writer"]


def common_observation_space(layouts: Sequence[Layout]) -> gymnasium.Space[Any]:
    """Return the space of rows that can hold any of these agents' flat observations.

    If the flat spaces are equal, the result is that space. If they share a dtype, the result is a 1-D Box of that dtype
    with the size of the largest observation; observations are raveled, and smaller ones are padded with zeros at the
    end. Otherwise, the result is a uint8 Box for the bytes of the largest observation; smaller ones are padded in the
    same way.
    """
    flats = [layout.flat_space for layout in layouts]
    if all(flat is flats[0] or flat == flats[0] for flat in flats):
        return flats[0]
    if len({layout.dtype for layout in layouts}) > 1:
        return spaces.Box(0, 255, (max(_nbytes(layout) for layout in layouts),), np.uint8)
    size = max(int(np.prod(layout.shape)) for layout in layouts)
    dtype = layouts[0].dtype
    low, high = np.zeros(size, dtype), np.zeros(size, dtype)
    for flat in flats:
        flat_low, flat_high = _range(flat)
        low[: flat_low.size] = np.minimum(low[: flat_low.size], flat_low)
        high[: flat_high.size] = np.maximum(high[: flat_high.size], flat_high)
    return spaces.Box(low, high, (size,), dtype.type)


def observation_writer(
    layout: Layout, row_space: gymnasium.Space[Any], num_agents: int = 1
) -> Callable[[Any, Array], None]:
    """Return a function ``write(observation, row)`` that copies observations of this layout into rows.

    row: a view of one row of row_space. num_agents: the number of agents in an environment, which limits how many views
    of rows the function caches. Raises SpaceError if the layout's flat observations do not fit row_space.
    """
    write_by_views = _view_writer(layout, row_space, num_agents)
    if layout.packer is None:
        return write_by_views
    same = (layout.shape, layout.dtype) == (row_space.shape, row_space.dtype)
    pack = layout.packer.pack if same else layout.packer.pack_padded

    def write(observation: object, row: Array) -> None:
        if not pack(observation, row):
            write_by_views(observation, row)

    return write


def _view_writer(layout: Layout, row_space: gymnasium.Space[Any], num_agents: int) -> Callable[[Any, Array], None]:
    """Return a function like that of ``observation_writer``, in pure Python. Raises the same SpaceError.

    The function's caller should pass the same few row objects each time: the views of their leaves are cached, because
    making a view costs more than writing through it.
    """
    flat, pack_into, shape, dtype = layout.flat_space, layout.pack_into, layout.shape, layout.dtype
    if flat is row_space or (shape == row_space.shape and flat.dtype == row_space.dtype):
        if layout.is_leaf:
            return lambda observation, row: pack_into(observation, (row,))
        return _cached(lambda row: (layout.views(row), row[:0]), pack_into, num_agents)
    assert row_space.shape is not None
    if isinstance(row_space, spaces.Box) and len(row_space.shape) == 1:
        size, nbytes = int(np.prod(shape)), _nbytes(layout)
        if dtype == row_space.dtype and size <= row_space.shape[0]:
            return _cached(lambda row: (layout.views(row[:size].reshape(shape)), row[size:]), pack_into, num_agents)
        if row_space.dtype == np.uint8 and nbytes <= row_space.shape[0]:
            return _cached(
                lambda row: (layout.views(row[:nbytes].view(dtype).reshape(shape)), row[nbytes:]), pack_into, num_agents
            )
    raise _too_small("observation", flat, row_space)


def _too_small(what: str, flat: gymnasium.Space[Any], row_space: gymnasium.Space[Any]) -> SpaceError:
    return argument_error(
        SpaceError,
        lambda written, within: (
            f"an agent's flat {what} space {flat} does not fit rows of {row_space}; pass "
            f"{written(observation_space='', action_space='')}, each as large as any agent's"
        ),
    )


def _cached(
    views: Callable[[Array], tuple[Any, Array]], pack_into: Callable[[Any, Any], None], num_agents: int
) -> Callable[[Any, Array], None]:
    """Return a function ``write(observation, row)`` that caches views of each row by the row's id.

    views: a function that makes the views of a row: those of its leaves, and one of the padding, which is zeroed. The
    cache holds up to 16 rows per agent.
    """
    cache: dict[int, tuple[Array, Any, Array]] = {}

    def write(observation: object, row: Array) -> None:
        entry = cache.get(id(row))
        if entry is None:
            if len(cache) >= 16 * num_agents:  # a caller passes new rows each time, and the cache keeps them alive
                cache.clear()
            entry = cache[id(row)] = (row, *views(row))
        _, leaves, rest = entry
        pack_into(observation, leaves)
        if rest.size:
            rest[...] = 0

    return write


def _nbytes(layout: Layout) -> int:
    return int(np.prod(layout.shape)) * layout.dtype.itemsize


def _range(flat: gymnasium.Space[Any]) -> tuple[Array, Array]:
    """Return the lowest and the highest value of each element of a flat space, raveled."""
    if isinstance(flat, spaces.Box):
        return flat.low.ravel(), flat.high.ravel()
    parts = _parts(flat)
    return parts.start, parts.start + parts.nvec - 1


class _Parts(NamedTuple):
    """The discrete and continuous actions of a flat action space; either may be empty."""

    nvec: Array  # (num_discrete,) int64
    start: Array  # (num_discrete,) int64
    low: Array  # (num_continuous,)
    high: Array  # (num_continuous,)


_NO_DISCRETE = np.zeros(0, np.int64)
_NO_CONTINUOUS = np.zeros(0, np.float32)


def _parts(flat: gymnasium.Space[Any]) -> _Parts:
    if isinstance(flat, spaces.Discrete):
        return _Parts(np.array([flat.n], np.int64), np.array([flat.start], np.int64), _NO_CONTINUOUS, _NO_CONTINUOUS)
    if isinstance(flat, spaces.MultiDiscrete):
        nvec = flat.nvec.ravel().astype(np.int64)
        start = np.ravel(getattr(flat, "start", np.zeros_like(nvec))).astype(np.int64)  # since gymnasium 1.0
        return _Parts(nvec, start, _NO_CONTINUOUS, _NO_CONTINUOUS)
    if isinstance(flat, spaces.MultiBinary):
        size = int(np.prod(flat.shape))
        return _Parts(np.full(size, 2, np.int64), np.zeros(size, np.int64), _NO_CONTINUOUS, _NO_CONTINUOUS)
    if isinstance(flat, spaces.Box):
        return _Parts(_NO_DISCRETE, _NO_DISCRETE, flat.low.ravel(), flat.high.ravel())
    assert isinstance(flat, spaces.Tuple)
    discrete, continuous = (_parts(part) for part in flat.spaces)
    return _Parts(discrete.nvec, discrete.start, continuous.low, continuous.high)


def common_action_space(layouts: Sequence[ActionLayout]) -> gymnasium.Space[Any]:
    """Return the space of rows that can hold any of these agents' flat actions.

    If the flat spaces are equal, the result is that space. Otherwise, the result has as many discrete actions as the
    agent with the most discrete actions, and as many continuous actions as the agent with the most continuous actions.
    Each discrete action has as many options as the agent with the most; the bounds of each continuous action include
    those of all agents. Such a result is a Discrete, a MultiDiscrete, a 1-D Box, or a Tuple(MultiDiscrete, Box).
    """
    flats = [layout.flat_space for layout in layouts]
    if all(flat is flats[0] or flat == flats[0] for flat in flats):
        return flats[0]
    parts = [_parts(flat) for flat in flats]
    if all(isinstance(flat, spaces.Discrete) for flat in flats):
        starts = {int(part.start[0]) for part in parts}
        return spaces.Discrete(int(max(part.nvec[0] for part in parts)), start=starts.pop() if len(starts) == 1 else 0)
    nvec = np.zeros(max(part.nvec.size for part in parts), np.int64)
    for part in parts:
        nvec[: part.nvec.size] = np.maximum(nvec[: part.nvec.size], part.nvec)
    continuous = [part for part in parts if part.low.size]
    if not continuous:
        return spaces.MultiDiscrete(nvec)
    dtype = np.result_type(*[part.low.dtype for part in continuous])
    size = max(part.low.size for part in continuous)
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    for part in continuous:
        low[: part.low.size] = np.minimum(low[: part.low.size], part.low)
        high[: part.high.size] = np.maximum(high[: part.high.size], part.high)
    box = spaces.Box(low.astype(dtype), high.astype(dtype), (size,), dtype.type)
    return spaces.Tuple([spaces.MultiDiscrete(nvec), box]) if nvec.size else box


class Clip(NamedTuple):
    """A map from a larger row's discrete actions to an agent's: clip(row - row_start, 0, last) + shift."""

    row_start: Array  # (num_discrete,) int64
    last: Array  # (num_discrete,) int64
    shift: Array  # (num_discrete,) int64


def clip_of(layout: ActionLayout, row_space: gymnasium.Space[Any]) -> Clip | None:
    """Return the Clip that ``action_reader`` applies to discrete actions; None if a Clip is not enough.

    A Clip is enough if all discrete actions are int64 and all Boxes float32, in the layout and in row_space.
    """
    flat = layout.flat_space
    parts = flat.spaces if isinstance(flat, spaces.Tuple) else (flat,)
    rows = row_space.spaces if isinstance(row_space, spaces.Tuple) else (row_space,)
    if any(part.dtype != (np.float32 if isinstance(part, spaces.Box) else np.int64) for part in (*parts, *rows)):
        return None
    actions, row = _parts(flat), _parts(row_space)
    return Clip(row.start[: actions.nvec.size], actions.nvec - 1, actions.start)


def action_reader(layout: ActionLayout, row_space: gymnasium.Space[Any]) -> Callable[[Any], Any]:
    """Return a function ``read(row)`` that converts an action row to the agent's raw action.

    row: an array, or a pair of arrays if row_space is a Tuple. If the row is larger than the agent needs, its first
    elements are read. A discrete action above the agent's range becomes the last of the range. Values for an integer
    Box are clipped to its bounds and rounded; values for a float Box may lie beyond its bounds. Raises SpaceError if
    row_space has fewer discrete or continuous actions than the agent, or fewer options for a discrete action.
    """
    flat, unpack = layout.flat_space, layout.unpack
    if flat is row_space or flat == row_space:
        return unpack
    actions, row = _parts(flat), _parts(row_space)
    num_discrete, num_continuous = actions.nvec.size, actions.low.size
    is_narrow = num_discrete > row.nvec.size or num_continuous > row.low.size
    if is_narrow or (actions.nvec > row.nvec[:num_discrete]).any():
        raise _too_small("action", flat, row_space)
    paired = isinstance(row_space, spaces.Tuple)
    row_start, last, shift = Clip(row.start[:num_discrete], actions.nvec - 1, actions.start)
    low, high = actions.low, actions.high

    def read_discrete(values: Array) -> Array:
        discrete: Array = np.clip(np.ravel(values)[:num_discrete] - row_start, 0, last) + shift
        return discrete

    is_integer = low.dtype.kind != "f"
    narrow = not np.can_cast(row.low.dtype, low.dtype)
    limits: Any = np.finfo(low.dtype) if narrow and not is_integer else None

    def read_continuous(values: Array) -> Array:
        continuous: Array = np.ravel(values)[:num_continuous]
        if is_integer:
            continuous = np.rint(np.clip(continuous, low, high))
        elif limits is not None:  # a value that is finite in the row stays finite
            continuous = np.clip(continuous, limits.min, limits.max)
        return continuous.astype(low.dtype)

    def read(values: Any) -> object:
        if isinstance(flat, spaces.Tuple):
            return unpack((read_discrete(values[0]), read_continuous(values[1])))
        if isinstance(flat, spaces.Box):
            return unpack(read_continuous(values[1] if paired else values).reshape(flat.shape))
        discrete = read_discrete(values[0] if paired else values)
        return unpack(discrete.reshape(flat.shape).astype(flat.dtype))

    return read
