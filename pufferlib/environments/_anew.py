"""Environments of which a reset leaves something, though it has a seed: they are made anew instead."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium

__all__ = ["MadeAnew", "parallel_made_anew"]


class _Anew:
    """What ``env_creator`` makes, and makes anew where a reset with a seed is not the first reset.

    draws: a reset without a seed is given one, drawn from the generator that the last seed began.
    """

    env: Any
    np_random: Any

    def __init__(self, env_creator: Callable[[], Any], draws: bool = False) -> None:
        super().__init__(env_creator())  # type: ignore[call-arg]  # of the wrapper beside this class
        self._env_creator, self._draws, self._new = env_creator, draws, True

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is None:
            seed = int(self.np_random.integers(1 << 31)) if self._draws else None
        elif not self._new:
            self.env.close()
            self.env = self._env_creator()
        self._new = False
        return self.env.reset(seed=seed, options=options)


class MadeAnew(_Anew, gymnasium.Wrapper[Any, Any, Any, Any]):
    __doc__ = _Anew.__doc__


def parallel_made_anew(env_creator: Callable[[], Any]) -> Any:
    """Return the same of an environment under PettingZoo's parallel interface."""
    wrapper = importlib.import_module("pettingzoo.utils").BaseParallelWrapper
    return type("MadeAnew", (_Anew, wrapper), {})(env_creator)
