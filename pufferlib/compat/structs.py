"""Nested spaces in a row, as PufferLib lays them out: a NumPy structure, whose leaves a program may read by name.

A Box stays as it is. Any other space becomes a structure of its leaves, in the order of the space: a Dict has a field
for each key, a Tuple the fields ``f0``, ``f1``, …. A Discrete is an int32. Each leaf starts at a multiple of its item
size, as in C; unlike in C, a structure inside another is not padded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.compat import versions
from pufferlib.compat.exceptions import APIUsageError, raises_usage_errors
from pufferlib.errors import SpaceError
from pufferlib.layout import Layout, action_layout, observation_layout
from pufferlib.layout.layout import ActionLayout
from pufferlib.util.annotations import Array

__all__ = [
    "check_space",
    "dtype_from_space",
    "emulate",
    "emulate_action_space",
    "emulate_copy",
    "emulate_observation_space",
    "flatten_space",
    "get_dtype_bounds",
    "is_emulated",
    "make_buffer",
    "make_object",
    "nativize",
    "pad_agent_data",
    "stored_space",
    "structure_of",
]


def is_emulated(space: gymnasium.Space[Any]) -> bool:
    """Return whether rows of a space differ from its samples."""
    return isinstance(space, (spaces.Dict, spaces.Tuple))


def stored_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return the space with int32 for the Discrete spaces inside a Dict or Tuple; any other space is unchanged."""
    return _narrowed(space) if is_emulated(space) else space


def _narrowed(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _narrowed(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_narrowed(part) for part in space.spaces])
    if isinstance(space, spaces.Discrete) and int(space.start) + int(space.n) - 1 <= np.iinfo(np.int32).max:
        narrowed = copy.copy(space)
        narrowed.dtype = np.dtype(np.int32)
        return narrowed
    return space


def structure_of(layout: Layout) -> np.dtype[Any]:
    """Return the NumPy dtype of one row: of its array if the space is one leaf, else of a structure of its leaves.

    Raises SpaceError for spaces that have no fixed shape, such as a Text, and for an empty Dict or Tuple.
    """
    if layout.is_leaf:
        return np.dtype((layout.dtype, layout.shape))
    if not is_emulated(layout.space) or not layout.leaves:
        raise _no_structure(layout.space, ())
    return _structure(layout.space, {leaf.path: leaf for leaf in layout.leaves}, (), 0, layout.nbytes)


def _structure(space: Any, leaves: Mapping[Any, Any], path: tuple[Any, ...], start: int, nbytes: int) -> np.dtype[Any]:
    """Return the structured dtype of the Dict or Tuple at a path, which takes ``nbytes`` bytes from ``start``."""
    parts = space.spaces
    keys = list(parts) if isinstance(parts, Mapping) else list(range(len(parts)))
    formats, offsets = [], []
    for key in keys:
        below = [leaf for leaf in leaves.values() if leaf.path[: len(path) + 1] == (*path, key)]
        if not below or ((*path, key) not in leaves and not is_emulated(parts[key])):
            raise _no_structure(parts[key], (*path, key))
        first = min(leaf.offset for leaf in below)
        if (*path, key) in leaves:
            leaf = leaves[(*path, key)]
            formats.append(np.dtype((leaf.dtype, leaf.shape)))
        else:
            size = max(leaf.offset + leaf.nbytes for leaf in below) - first
            formats.append(_structure(parts[key], leaves, (*path, key), first, size))
        offsets.append(first - start)
    names = [f"f{key}" if not isinstance(parts, Mapping) else str(key) for key in keys]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": nbytes})


def _no_structure(space: object, path: tuple[Any, ...]) -> SpaceError:
    at = f" at {'/'.join(map(str, path))}" if path else ""
    return SpaceError(
        f"{space}{at} has no place in a row of PufferLib's, whose parts are Box, Discrete, MultiDiscrete, MultiBinary, "
        "and Dict and Tuple of these; pufferlib.make takes the environment without a wrapper"
    )


@raises_usage_errors
def emulate_observation_space(space: gymnasium.Space[Any]) -> tuple[gymnasium.Space[Any], np.dtype[Any]]:
    """Return the space of a row of observations, and the dtype of its structure.

    A Box is returned unchanged. Raises APIUsageError for a space that cannot be stored in rows.
    """
    layout = observation_layout(stored_space(space))
    return layout.flat_space, structure_of(layout)


@raises_usage_errors
def emulate_action_space(space: gymnasium.Space[Any]) -> tuple[gymnasium.Space[Any], np.dtype[Any]]:
    """Return the space of an action row, and the dtype of the structure that the environment gets.

    A Discrete, MultiDiscrete or Box is returned unchanged; the dtype is int32 for the first two, and the Box's own.
    Raises APIUsageError for a space that cannot be stored in rows.
    """
    layout: ActionLayout = action_layout(space)
    if not is_emulated(space):
        return layout.flat_space, np.dtype(space.dtype if isinstance(space, spaces.Box) else np.int32)
    return layout.flat_space, dtype_from_space(space)


def dtype_from_space(space: gymnasium.Space[Any]) -> np.dtype[Any]:
    """Return the dtype of one sample as it is stored in a row."""
    return structure_of(observation_layout(stored_space(space)))


def flatten_space(space: gymnasium.Space[Any]) -> list[gymnasium.Space[Any]]:
    """Return the leaves of a Dict or Tuple in storage order; a list of the space itself if it is neither."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return [leaf for part in parts for leaf in flatten_space(part)]
    return [space]


def get_dtype_bounds(dtype: Any) -> tuple[Any, Any]:
    """Return the lowest and the highest value of a dtype, for any float dtype those of float32.

    Raises ValueError for a dtype that is not of numbers.
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    if dtype.kind == "f":
        return np.finfo(np.float32).min, np.finfo(np.float32).max
    raise ValueError(f"{dtype} has no bounds; use a dtype of numbers")


def make_buffer(arr_dtype: Any, struct_dtype: np.dtype[Any], struct: Any = None, n: int | None = None) -> Array:
    """Return zeros for one row, or for ``n`` rows, of a structured dtype, viewed as an array of ``arr_dtype``.

    struct: a sample, which is not used; in version 1, ``n`` stands in its place.
    """
    n = struct if isinstance(struct, int) else n
    if struct_dtype.names is None:
        base, shape = struct_dtype.base, struct_dtype.shape
        return np.zeros(shape if n is None else (n, *shape), base)
    rows: Array = np.zeros(1 if n is None else n, struct_dtype).view(arr_dtype)
    return rows if n is None else rows.reshape(n, -1)


def emulate(struct: Any, sample: Any) -> None:
    """Write a sample into a record or structured array, in place. Dicts fill fields by key, tuples by position."""
    if isinstance(sample, Mapping):
        for key, value in sample.items():
            _write(struct, str(key), value)
    elif isinstance(sample, tuple):
        for index, value in enumerate(sample):
            _write(struct, f"f{index}", value)
    else:
        struct[()] = sample


def emulate_copy(sample: Any, sample_dtype: Any, emulated_dtype: np.dtype[Any]) -> Array:
    """Return a sample as a row of ``sample_dtype``. emulated_dtype: of the structure that holds it.

    If all its leaves have one dtype, the row has a value for each number in them; else it has the structure's bytes.
    Only version 1 has this function.
    """
    versions.calls.add(1)
    if emulated_dtype.names is None:
        return np.asarray(sample, sample_dtype).reshape(emulated_dtype.shape)
    struct = np.zeros(1, emulated_dtype)
    emulate(struct, sample)
    kinds = _leaf_dtypes(emulated_dtype)
    row: Array = struct.view(kinds.pop()).astype(sample_dtype) if len(kinds) == 1 else struct.view(sample_dtype)
    return row


def _leaf_dtypes(structure: np.dtype[Any]) -> set[np.dtype[Any]]:
    """Return the dtypes of the numbers in a structure."""
    if structure.names is None:
        return {structure.base}
    return set().union(*(_leaf_dtypes(structure[name]) for name in structure.names))


def _write(struct: Any, name: str, value: Any) -> None:
    if isinstance(value, (Mapping, tuple)):
        emulate(struct[name], value)
    else:
        struct[name] = value


def nativize(arr: Array, space: gymnasium.Space[Any], struct_dtype: np.dtype[Any]) -> Any:
    """Return a row as a sample of its space, whose arrays are views of the row; Discrete values are Python ints."""
    if struct_dtype.names is None:
        return _sample_of(np.asarray(arr).reshape(struct_dtype.shape), space)
    return _sample_of(np.ascontiguousarray(arr).view(struct_dtype)[0], space)


def _sample_of(struct: Any, space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _sample_of(struct[str(key)], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_sample_of(struct[f"f{index}"], part) for index, part in enumerate(space.spaces))
    return int(np.asarray(struct).reshape(-1)[0]) if isinstance(space, spaces.Discrete) else struct


def make_object(
    object_instance: Any = None,
    object_creator: Callable[..., Any] | None = None,
    creator_args: Sequence[Any] = (),
    creator_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Return the object, or the result of its creator, exactly one of which must be given.

    Raises ValueError if both or neither are given; TypeError if the object is a class or a function, or the creator
    cannot be called.
    """
    if (object_instance is None) == (object_creator is None):
        raise ValueError("give exactly one of the object (env) and its creator (env_creator)")
    if object_creator is not None:
        if not callable(object_creator):
            raise TypeError(f"the creator (env_creator) must be callable, got {object_creator!r}")
        return object_creator(*creator_args, **(creator_kwargs or {}))
    if isinstance(object_instance, type) or callable(object_instance):
        raise TypeError(f"the object (env) must be an instance, got {object_instance!r}; pass it as env_creator")
    return object_instance


def check_space(data: Any, space: gymnasium.Space[Any]) -> bool:
    """Return True if a value lies in a space. Raises APIUsageError if it does not."""
    try:
        inside = data in space
    except Exception as error:
        raise APIUsageError(f"{data!r:.200} cannot be compared with {space}: {error}") from error
    if not inside:
        raise APIUsageError(f"{data!r:.200} is not in {space}")
    return True


def pad_agent_data(data: Mapping[Any, Any], agents: Sequence[Any], pad_value: Any) -> dict[Any, Any]:
    """Return a dict with an entry for each of the agents, in their order, ``pad_value`` for those without data."""
    return {agent: data.get(agent, pad_value) for agent in agents}
