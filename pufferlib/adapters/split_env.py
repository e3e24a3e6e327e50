"""SplitEnv: an environment's observations and actions, split into rows of fixed size and objects that fit no row.

Gymnasium's vector environments transfer any value: text of any length, graphs, samples of custom spaces, actions that
fit no space. A VecEnv transfers rows of fixed size. The workers of a GymnasiumVecEnv therefore step SplitEnvs. The
spaces of a SplitEnv have only the values that fit into rows; all other values are transferred unchanged, as objects.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from pufferlib.emulation import wrap
from pufferlib.emulation.infos import copy_value
from pufferlib.environment import PufferEnv
from pufferlib.errors import SpaceError
from pufferlib.layout import Layout, observation_layout
from pufferlib.util.annotations import Array

__all__ = ["EXTRAS_KEY", "OURS", "ActionRows", "InfoExtras", "ObservationRows", "SplitEnv", "info_parts"]

OURS = ("env_id", "agent_id", "env", "episode")  # keys that a VecEnv adds to infos
EXTRAS_KEY = "beside"  # key of the values that rows do not hold: in infos, in options, and as an attribute

Path = tuple[Any, ...]  # Dict keys and Tuple indices from the root down

_MOST_NUMBERS = 1024  # cached per space
_PLACEHOLDER = spaces.Discrete(1)  # the space of rows that hold nothing


class InfoExtras(NamedTuple):
    """The values that an info carries to the parent process.

    This is a named tuple because emulation shares named tuples instead of copying them.
    """

    info: dict[str, Any]  # the environment's info
    objects: tuple[Any, ...]  # the parts of the observation that rows do not hold
    finals: tuple[Any, ...]  # the last observation of the previous episode, if this reset ended one


RESERVED = frozenset((*OURS, EXTRAS_KEY))


def info_parts(info: dict[str, Any]) -> InfoExtras:
    """Return the InfoExtras that a SplitEnv's info carries; if it carries none, return a new InfoExtras.

    The new InfoExtras holds the info itself, without the keys in OURS, and no objects.
    """
    if EXTRAS_KEY in info:
        extras: InfoExtras = info[EXTRAS_KEY]
        return extras
    return InfoExtras({key: value for key, value in info.items() if key not in OURS}, (), ())


class SplitEnv:
    """A wrapper that a worker steps in place of a Gymnasium environment.

    Its observations are the parts of the environment's observations that rows can hold. An info is the environment's
    own, or {EXTRAS_KEY: InfoExtras} if there are objects or a last observation to transfer, or if the environment's
    info has a reserved key or is not a plain dict. An empty info and None become {}.

    A reset without options is an automatic one, after the end of an episode. All other resets have options. With
    {EXTRAS_KEY: (seed, options)}, the environment is reset with this seed and these options. With {EXTRAS_KEY: ()}, the
    environment is not reset, because the function that made it may already have reset it, and the row is zeros.

    Setting the attribute EXTRAS_KEY to (action,) makes the next step play that action instead of the one in its row.

    keep_finals: whether an automatic reset's info carries the last observation of the ended episode.
    """

    def __init__(self, env: Any, *, keep_finals: bool) -> None:
        self.env = env
        self._observations = ObservationRows(env.observation_space)
        self._actions = ActionRows(env.action_space)
        self.observation_space = self._observations.space
        self.action_space = self._actions.space
        self.metadata = env.metadata
        self.render_mode = env.render_mode
        self._decode = self._actions.decoder()
        self._keep_finals = keep_finals
        self._last: object = None  # the environment's observation, unchanged
        self._action: tuple[Any, ...] = ()

    @classmethod
    def make(cls, env_fn: Callable[[], Any], keep_finals: bool, envs: list[Any] | None) -> SplitEnv:
        """Make an environment, append it to ``envs`` unless that is None, and return its SplitEnv.

        Raises SpaceError if the environment has several agents.
        """
        env = env_fn()
        if not isinstance(env, gymnasium.Env):
            wrapped = wrap(env)
            if not isinstance(wrapped, gymnasium.Env):
                raise SpaceError(
                    f"{type(env).__name__} has several agents, for which Gymnasium's vector environments have no rows; "
                    'use pufferlib.adapters.gymnasium_vector.make(…, agents="rows"), or pufferlib.make'
                )
            env = wrapped if isinstance(env, PufferEnv) else wrapped.env  # type: ignore[attr-defined]  # not flattened
        if envs is not None:
            envs.append(env)
        return cls(env, keep_finals=keep_finals)

    @property
    def unwrapped(self) -> object:
        return self.env.unwrapped

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._action = ()
        if options is None:  # an automatic reset
            # copied before the environment writes into its buffers again
            finals = (copy.deepcopy(self._last),) if self._keep_finals else ()
            return self._split(self.env.reset(), finals)
        if not options[EXTRAS_KEY]:
            return self._observations.zeros(), {}
        seed, options = options[EXTRAS_KEY]  # the VecEnv's first seed is never None, but Gymnasium's may be
        return self._split(self.env.reset(seed=seed, options=options), ())

    def step(self, action: object) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self._action:
            (action,), self._action = self._action, ()
        else:
            action = self._decode(action)
        result = self.env.step(action)
        if self._observations.hold_all and type(result) is tuple and len(result) == 5:
            info = result[4]
            if type(info) is dict and (not info or RESERVED.isdisjoint(info)):  # there is nothing else to transfer
                self._last = result[0]
                return result
        observation, reward, terminated, truncated, info = result
        row, info = self._split((observation, info), ())
        return row, reward, terminated, truncated, info

    def _split(self, result: tuple[Any, dict[str, Any]], finals: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
        observation, info = result
        self._last = observation
        row, objects = self._observations.split(observation)
        if not (objects or finals or info):
            return row, {}
        if objects or finals or type(info) is not dict or not RESERVED.isdisjoint(info):
            return row, {EXTRAS_KEY: InfoExtras(copy_value(info) if info else {}, objects, finals)}
        return row, info

    def get_wrapper_attr(self, name: str) -> object:
        return None if name == EXTRAS_KEY else self.env.get_wrapper_attr(name)

    def set_wrapper_attr(self, name: str, value: Any) -> None:
        if name == EXTRAS_KEY:
            self._action = value
        elif hasattr(self.env, "set_wrapper_attr"):
            self.env.set_wrapper_attr(name, value)
        else:  # Gymnasium 0.29
            setattr(self.env, name, value)

    def close(self) -> None:
        self.env.close()


class ObservationRows:
    """A splitter of a space's observations into the parts that rows hold and the remaining objects.

    hold_all: whether rows hold complete observations.
    space: the space of the parts that rows hold. It is the original space if hold_all, else a Tuple of leaves, or a
        placeholder if rows hold nothing.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        leaves = list(_leaves(space))
        self._whole_space = space
        self._row_paths = [path for path, leaf in leaves if _has_rows(leaf)]
        self._others = [path for path, leaf in leaves if not _has_rows(leaf)]
        self.hold_all = bool(self._row_paths) and not self._others
        self.space: gymnasium.Space[Any] = _PLACEHOLDER
        if self.hold_all:
            self.space = space
        elif self._row_paths:
            self.space = spaces.Tuple([_space_at(space, path) for path in self._row_paths])

    def split(self, observation: object) -> tuple[object, tuple[Any, ...]]:
        """Split an observation into (the part that rows hold, a tuple of the other parts)."""
        if self.hold_all:
            return observation, ()
        rows = tuple([_at(observation, path) for path in self._row_paths])
        return rows or 0, tuple([_at(observation, path) for path in self._others])

    def zeros(self) -> object:
        """Return the sample of ``space`` whose row is all zeros."""
        layout = observation_layout(self.space)
        return layout.decode(np.zeros(layout.shape, layout.dtype))

    def batch(self, rows: Any, objects: list[tuple[Any, ...]], *, copied: bool) -> Any:
        """Return observations in Gymnasium's batched form: nested arrays (num_envs, …) and tuples of objects.

        rows: nested arrays of the parts in ``space``. objects: the other parts, one tuple per environment. copied:
        whether to return copies.
        """
        if self.hold_all:
            return _map_leaves(rows, np.copy) if copied else rows
        parts = dict(zip(self._row_paths, rows, strict=True)) if self._row_paths else {}
        if copied:
            parts, objects = _map_leaves(parts, np.copy), copy.deepcopy(objects)
        for index, path in enumerate(self._others):
            space = _space_at(self._whole_space, path)
            samples = [env_objects[index] for env_objects in objects]
            empty: Any = create_empty_array(space, len(samples))
            parts[path] = concatenate(space, samples, empty)
        return _nested(self._whole_space, (), parts)


class ActionRows:
    """An encoder that converts a space's actions to rows where that is possible.

    space: the space of a row. It is the original space if that is one leaf; else a Box that holds all leaves, as bytes
    if their dtypes differ, so that nothing is rounded; or a placeholder if actions cannot be converted.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self._layout: Layout | None = None
        self.space: gymnasium.Space[Any] = _PLACEHOLDER
        leaves = [leaf for _, leaf in _leaves(space)]
        if leaves and all(map(_has_rows, leaves)):
            self._layout = observation_layout(space)
            self.space = self._layout.flat_space

    def encode(self, actions: object, num_envs: int) -> Array | None:
        """Return one row per environment, or None if actions cannot be converted.

        actions: a batch in Gymnasium's form. It can be converted only if its arrays have the space's shapes, and dtypes
        that NumPy casts safely to the space's.
        """
        layout = self._layout
        if layout is None:
            return None
        rows = np.zeros((num_envs, *layout.shape), layout.dtype)
        views = layout.unflatten(rows)
        for leaf in layout.leaves:
            try:
                part = np.asarray(_at(actions, leaf.path))
            except (LookupError, TypeError, ValueError, RuntimeError):
                return None  # ragged lists; tensors on a GPU or with gradients
            if part.shape != (num_envs, *leaf.shape) or not np.can_cast(part.dtype, leaf.dtype, "safe"):
                return None
            _at(views, leaf.path)[...] = part
        return rows

    def decoder(self) -> Callable[[Any], Any]:
        """Return a function that converts a row to an action, with the types that Gymnasium's ``iterate`` yields."""
        if self._layout is not None and self._layout.is_leaf and self._layout.shape == ():
            number: type[Any] = self._layout.dtype.type
            if isinstance(self.space, spaces.Discrete) and self.space.n <= _MOST_NUMBERS:
                return _Numbers(number, self.space).__getitem__
            return number
        return self._decoded

    def _decoded(self, row: object) -> object:
        assert self._layout is not None
        if self._layout.is_leaf:
            return row
        return _map_leaves(self._layout.decode(row), lambda array: array[()])  # numbers, not arrays without dimensions


class _Numbers(dict[int, Any]):
    """A dict from a Discrete space's actions to NumPy numbers of its dtype.

    The numbers of the space's actions are made once, because making a NumPy number takes as long as a step of a trivial
    environment. The number of any other action is made at each look-up, and not stored.
    """

    def __init__(self, number: type[Any], space: spaces.Discrete) -> None:
        super().__init__((action, number(action)) for action in range(int(space.start), int(space.start + space.n)))
        self._number = number

    def __missing__(self, action: int) -> Any:
        return self._number(action)


def _has_rows(space: gymnasium.Space[Any]) -> bool:
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return False
    dtype = np.dtype(space.dtype)
    return dtype.isnative and dtype.char not in "gG" and 0 not in (space.shape or ())


def _leaves(space: gymnasium.Space[Any], path: Path = ()) -> Iterator[tuple[Path, gymnasium.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from _leaves(child, (*path, index))
    else:
        yield path, space


def _at(nested: Any, path: Path) -> Any:
    for key in path:
        nested = nested[key]
    return nested


def _space_at(space: object, path: Path) -> gymnasium.Space[Any]:
    part: gymnasium.Space[Any] = _at(space, path)
    return part


def _nested(space: gymnasium.Space[Any], path: Path, parts: dict[Path, Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nested(child, (*path, key), parts) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(child, (*path, index), parts) for index, child in enumerate(space.spaces))
    return parts[path]


def _map_leaves(nested: object, function: Callable[[Any], Any]) -> Any:
    """Apply a function to each leaf of nested dicts and tuples; return the results in the same structure."""
    if isinstance(nested, dict):
        return {key: _map_leaves(part, function) for key, part in nested.items()}
    if isinstance(nested, tuple):
        return tuple(_map_leaves(part, function) for part in nested)
    return function(nested)
