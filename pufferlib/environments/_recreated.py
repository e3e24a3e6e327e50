"""Wrappers that recreate an environment at seeded resets, for environments whose own resets leave state behind."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium

__all__ = ["Recreated", "recreated_parallel"]


class _Recreated:
    """A wrapper that recreates its environment with ``env_creator`` at each seeded reset except the very first reset.

    draws: whether a reset without a seed passes a seed to the environment, drawn from the environment's ``np_random``.
    A reset without a seed never recreates the environment.
    """

    env: Any
    np_random: Any

    def __init__(self, env_creator: Callable[[], Any], draws: bool = False) -> None:
        super().__init__(env_creator())  # type: ignore[call-arg]  # of the wrapper class, the other base
        self._env_creator, self._draws, self._new = env_creator, draws, True

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is None:
            seed = int(self.np_random.integers(1 << 31)) if self._draws else None
        elif not self._new:
            self.env.close()
            self.env = self._env_creator()
        self._new = False
        return self.env.reset(seed=seed, options=options)


class Recreated(_Recreated, gymnasium.Wrapper[Any, Any, Any, Any]):
    __doc__ = _Recreated.__doc__


def recreated_parallel(env_creator: Callable[[], Any]) -> Any:
    """Create an environment with PettingZoo's parallel interface, and return it in a wrapper like ``Recreated``."""
    wrapper = importlib.import_module("pettingzoo.utils").BaseParallelWrapper
    return type("Recreated", (_Recreated, wrapper), {})(env_creator)
