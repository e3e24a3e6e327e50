"""What the faces for other libraries share: the library by name, and a VecEnv that suits it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces

from pufferlib.backends import make
from pufferlib.errors import MissingExtra, PlanError, PufferError, SpaceError, WorkerError
from pufferlib.layout import Layout
from pufferlib.vectorization import VecEnv

__all__ = ["leaves_of", "make_for", "needs", "raise_cause", "require_rows", "require_synchronous", "space_of_leaves"]

LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@contextlib.contextmanager
def needs(library: str, extra: str) -> Iterator[None]:
    """Import a library in this block. Raises MissingExtra, with the command to type, where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f'this adapter needs {library} ({error}): pip install "pufferlib[{extra}]"', name=error.name
        ) from error


def make_for(library: str, mode: str, env: Any, kwargs: dict[str, Any]) -> VecEnv:
    """Return ``pufferlib.make(env, …)`` with the autoreset mode that a library counts on.

    Raises PlanError for another mode, SpaceError for environments of several agents, and what ``make`` raises.
    """
    given = kwargs.pop("autoreset_mode", mode)
    if given != mode:
        raise PlanError(f"autoreset_mode={given!r}, but {library} counts on {mode!r}; leave it out")
    vec = make(env, autoreset_mode=mode, **kwargs)
    try:
        require_rows(library, mode, vec)
    except PufferError:
        vec.close()
        raise
    return vec


def require_rows(library: str, mode: str, vec: VecEnv) -> None:
    """Raise unless a VecEnv has one agent an environment, actions of one array, and this autoreset mode."""
    if vec.agents_per_env != 1:
        raise SpaceError(
            f"{vec.agents_per_env} agents an environment, but {library} knows one; pass an environment of one agent"
        )
    if isinstance(vec.single_action_space, spaces.Tuple):
        raise SpaceError(
            f"actions {vec.single_action_space} are discrete and continuous, for which {library} has no distribution; "
            "wrap the environment so that they are one or the other"
        )
    if vec.autoreset_mode != mode:
        raise PlanError(
            f"autoreset_mode={vec.autoreset_mode!r}, but {library} counts on {mode!r}; "
            f"use make(…, autoreset_mode={mode!r})"
        )


def require_synchronous(library: str, vec: VecEnv) -> None:
    """Raise PlanError unless batches hold all environments."""
    if vec.agents_per_batch != vec.num_envs:
        raise PlanError(
            f"batches of {vec.agents_per_batch}, but {library} steps all {vec.num_envs} environments at once; "
            "leave batch_size out"
        )


def raise_cause(error: WorkerError) -> NoReturn:
    """Raise the exception that an environment raised, from the WorkerError about it, or that error if there is none."""
    cause = error.__cause__
    if cause is None or isinstance(cause, PufferError):
        raise error
    error.__cause__ = None
    raise cause from error


def space_of_leaves(layout: Layout) -> spaces.Space[Any]:
    """Return a layout's space; for a Dict or Tuple, however nested, a Dict with a space for each leaf, by its name."""
    if layout.is_leaf:
        return layout.flat_space
    return spaces.Dict({leaf.name: _space_of(layout.space, leaf) for leaf in layout.leaves})


def leaves_of(layout: Layout, rows: Any) -> Any:
    """Return rows as ``space_of_leaves`` has them: as they are, or a dict of views of them."""
    if layout.is_leaf:
        return rows
    nested = layout.unflatten(rows)
    return {leaf.name: functools.reduce(lambda part, key: part[key], leaf.path, nested) for leaf in layout.leaves}


def _space_of(space: Any, leaf: Any) -> spaces.Space[Any]:
    for key in leaf.path:
        space = space[key] if isinstance(space, (spaces.Dict, spaces.Tuple)) else None
    if isinstance(space, LEAVES) and space.shape == leaf.shape:
        return space
    low, high = (-np.inf, np.inf) if leaf.dtype.kind == "f" else (np.iinfo(leaf.dtype).min, np.iinfo(leaf.dtype).max)
    return spaces.Box(low, high, leaf.shape, leaf.dtype.type)
