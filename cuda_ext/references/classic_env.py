"""ClassicEnv, the base of classic control: shared arguments, and episodes that are a function of the seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from cuda_ext.references.episodes import START, count
from pufferlib.util.philox import episode_of, philox

__all__ = ["ClassicEnv", "Floats"]

Floats = NDArray[np.float32]


class ClassicEnv(gymnasium.Env[Floats, Any], ABC):
    """A base class: subclasses define ``begin``, ``observed`` and ``step``, which counts ``t``.

    Its state consists of ``seed``, ``episode`` and ``t`` (ints). Raises ValueError for invalid arguments.
    """

    def __init__(self, max_episode_steps: int, render_mode: str | None) -> None:
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            names = ", ".join(f'"{mode}"' for mode in modes)
            raise ValueError(f"render_mode={render_mode!r} is unknown; use {names} or None")
        self.max_episode_steps = count("max_episode_steps", max_episode_steps)
        self.render_mode = render_mode
        self.seed: int | None = None
        self.episode = self.t = 0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start an episode and return (observation, info).

        seed: from 0 to 2**32 - 1; the episode is number 0 of this seed. Without a seed, the episode is the next of the
        last seed or, in the first reset, number 0 of a random seed. options: ignored.
        """
        super().reset(seed=seed)
        self.seed, self.episode = episode_of(seed, self.seed, self.episode)
        self.t = 0
        self.begin(*philox(self.seed, self.episode, 0, 0, START))
        return self.observed(), {}

    @abstractmethod
    def begin(self, *words: Any) -> None:
        """Set the state for a new episode. words: four random ints, 0 to 2**32 - 1."""

    @abstractmethod
    def observed(self) -> Floats:
        """Return the observation of the state."""
