"""Check the references' arguments, and choose the layouts that their episodes start from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pufferlib.util.philox import below, philox

__all__ = ["NUM_LAYOUTS", "POOL", "START", "amount", "count", "layout_of", "layouts_of"]

START, POOL = 1, 2  # purposes of draws: the start of an agent; the layout of an episode
NUM_LAYOUTS = 5  # in the pool, if no starts are given
MAX_COUNT = 2**24  # up to here a float32 counts exactly
LARGEST = float(np.finfo(np.float32).max)


def count(name: str, value: Any, most: int = MAX_COUNT) -> int:
    """Return an argument as an int. Raises ValueError if it is not an integer from 1 to ``most``."""
    if not isinstance(value, (int, np.integer)) or not 1 <= value <= most:
        raise ValueError(f"{name}={value!r} is impossible; use an integer from 1 to {most}")
    return int(value)


def amount(name: str, value: Any, least: float = -LARGEST, most: float = LARGEST) -> np.float32:
    """Return an argument as a float32, never -0. Raises ValueError if it is not a number from ``least`` to ``most``."""
    if not isinstance(value, (int, float, np.number)) or not least <= value <= most:
        lower, upper = (limit if abs(limit) < LARGEST else None for limit in (least, most))
        limits = "that a float32 can hold"
        if lower is not None and upper is not None:
            limits = f"from {lower:g} to {upper:g}"
        elif lower is not None or upper is not None:
            limits = f"of at {'most' if lower is None else 'least'} {upper if lower is None else lower:g} {limits}"
        raise ValueError(f"{name}={value!r} is impossible; use a number {limits}")
    return np.float32(value) + np.float32(0)


def layouts_of(
    start: str, starts: ArrayLike | None, shape: tuple[int, ...], default: Callable[[str], NDArray[Any]]
) -> NDArray[Any] | None:
    """Return the layouts that episodes start from, (P, *shape), of any dtype; None if each episode draws its own.

    start: "procedural" for draws, "fixed" for one layout (P = 1), or "pool" for P layouts.
    starts: the layouts, (*shape,) for "fixed" and (P, *shape) for "pool"; None for those that ``default(start)``
        returns.

    Raises ValueError if start is unknown, if starts has the wrong shape, or if it is given with start="procedural".
    """
    if start == "procedural":
        if starts is not None:
            raise ValueError('start="procedural" draws its own starts; leave starts out, or use "fixed" or "pool"')
        return None
    if start not in ("fixed", "pool"):
        raise ValueError(f'start={start!r} is unknown; use "procedural", "fixed" or "pool"')
    if starts is None:
        return default(start)
    layouts = np.asarray(starts)
    expected: tuple[Any, ...] = shape if start == "fixed" else ("P", *shape)
    if layouts.ndim != len(expected) or layouts.shape[-len(shape) :] != shape or not layouts.size:
        listed = ", ".join(map(str, expected))
        raise ValueError(f'starts has the shape {layouts.shape}; start="{start}" takes ({listed})')
    return layouts.reshape(-1, *shape)


def layout_of(layouts: NDArray[Any], seed: int, episode: int) -> NDArray[Any]:
    """Return the layout of an episode, drawn from the pool of layouts."""
    return layouts[below(philox(seed, episode, 0, 0, POOL)[0], len(layouts))]  # type: ignore[no-any-return]
