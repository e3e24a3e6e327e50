"""Environments of which a reset leaves something, though it has a seed: they are made anew instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

__all__ = ["MadeAnew"]


class MadeAnew(gymnasium.Wrapper[Any, Any, Any, Any]):
    """What ``env_creator`` makes, and makes anew where a reset with a seed is not the first reset.

    draws: a reset without a seed is given one, drawn from the generator that the last seed began.
    """

    def __init__(self, env_creator: Callable[[], Any], draws: bool = False) -> None:
        super().__init__(env_creator())
        self._env_creator, self._draws, self._new = env_creator, draws, True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is None:
            seed = int(self.np_random.integers(1 << 31)) if self._draws else None
        elif not self._new:
            self.env.close()
            self.env = self._env_creator()
        self._new = False
        return self.env.reset(seed=seed, options=options)
