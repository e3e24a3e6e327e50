"""PettingZoo's arcade games for teams: raw under its names, and under "butterfly-gray/…" in small gray pictures."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.environments import Example, Family, from_module

FAMILY = Family(
    names=("butterfly/*", "butterfly-gray/*"),
    description="cooperative arcade games (PettingZoo)",
    package="pettingzoo",
    extra="butterfly",
    examples=(
        Example("butterfly/knights_archers_zombies_v11", {"max_cycles": 100, "spawn_delay": 4, "line_death": True}),
        Example("butterfly-gray/pistonball_v6", {"max_cycles": 40}, slow=True),
        Example("butterfly-gray/cooperative_pong_v6", {"max_cycles": 100}, slow=True),
    ),
    folder="pettingzoo.butterfly",
    needs=("pygame", "pymunk"),
)
SIZE = 84  # pixels, high and wide
LUMA = np.array([77, 150, 29], np.uint16)  # of 256: how bright red, green and blue are, after ITU-R BT.601


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Any:
    """Return a game: "butterfly/…" as its package has it, "butterfly-gray/…" in gray pictures, uint8 (84, 84).

    These show all that an agent's picture shows, each pixel the mean of those in its place. Observations that are no
    pictures (those of knights_archers_zombies) are the same under both names, and so is the state.
    """
    env = from_module(FAMILY, name, **kwargs)
    return _gray(env) if name.startswith("butterfly-gray/") else env


def _gray(env: Any) -> Any:
    """Return a parallel environment whose pictures are gray and small."""
    wrapper: Any = importlib.import_module("pettingzoo.utils").BaseParallelWrapper
    gray = spaces.Box(0, 255, (SIZE, SIZE), np.uint8)

    class Gray(wrapper):  # type: ignore[misc]
        """The same game, seen in gray."""

        def observation_space(self, agent: Any) -> Any:
            space = self.env.observation_space(agent)
            return gray if _is_picture(space) else space

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            observations, infos = self.env.reset(seed=seed, options=options)
            return self._seen(observations), infos

        def step(self, actions: Any) -> Any:
            observations, *rest = self.env.step(actions)
            return self._seen(observations), *rest

        def _seen(self, observations: Any) -> Any:
            return {
                agent: _small(seen) if _is_picture(self.env.observation_space(agent)) else seen
                for agent, seen in observations.items()
            }

    return Gray(env)


def _is_picture(space: Any) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


def _small(picture: Any) -> Any:
    """Return a picture, uint8 (height, width, 3), in gray, uint8 (SIZE, SIZE), in whole numbers throughout."""
    starts = [np.arange(SIZE) * length // SIZE for length in picture.shape[:2]]
    high, wide = (np.diff(each, append=length) for each, length in zip(starts, picture.shape[:2], strict=True))
    gray = sum(picture[..., color] * share for color, share in enumerate(LUMA))
    # All pixels are weighed before any are added: the other way round took two to four times as long.
    total = np.add.reduceat(np.add.reduceat(gray.astype(np.uint32), starts[0], 0), starts[1], 1)
    return (total // (256 * high[:, None] * wide)).astype(np.uint8)
