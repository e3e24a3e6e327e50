"""PettingZoo's cooperative arcade games: "butterfly/…" unchanged, "butterfly-gray/…" with small grayscale images."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from pufferlib.environments import Example, Family, from_module
from pufferlib.environments._pictures import gray_space, is_picture, small_gray
from pufferlib.environments._recreated import recreated_parallel
from pufferlib.util.annotations import AgentId, Array, ParallelEnv

FAMILY = Family(
    names=("butterfly/*", "butterfly-gray/*"),
    description="cooperative arcade games (PettingZoo)",
    package="pettingzoo",
    extra="butterfly",
    examples=(
        Example("butterfly/knights_archers_zombies_v11", {"max_cycles": 100, "spawn_delay": 4, "line_death": True}),
        Example("butterfly-gray/pistonball_v6", {"max_cycles": 40}),
        Example("butterfly-gray/cooperative_pong_v6", {"max_cycles": 100}),
    ),
    folder="pettingzoo.butterfly",
    needs=("pygame", "pymunk", "cv2"),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> ParallelEnv:
    """Make a game: "butterfly/…" unchanged, "butterfly-gray/…" with grayscale images, uint8 (84, 84).

    The images show an agent's whole view; each pixel is the mean of the area that it covers. Observations that are not
    images (in knights_archers_zombies) and the state are the same under both names.

    The reset of knights_archers_zombies does not reset the clock that spawns zombies. Each seeded reset after the first
    reset therefore recreates this game.
    """
    make = functools.partial(from_module, FAMILY, name, **kwargs)
    # A reset does not reset the clock that spawns zombies.
    env: ParallelEnv = recreated_parallel(make) if "knights_archers_zombies" in name else make()
    return _gray(env) if name.startswith("butterfly-gray/") else env


def _gray(env: ParallelEnv) -> ParallelEnv:
    """Wrap a parallel environment to convert its images to small grayscale ones."""
    wrapper: Any = importlib.import_module("pettingzoo.utils").BaseParallelWrapper
    gray = gray_space()

    class Gray(wrapper):  # type: ignore[misc]
        """A wrapper that converts a game's images to small grayscale ones."""

        def observation_space(self, agent: AgentId) -> Any:
            space = self.env.observation_space(agent)
            return gray if is_picture(space) else space

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, ...]:
            observations, infos = self.env.reset(seed=seed, options=options)
            return self._converted(observations), infos

        def step(self, actions: object) -> tuple[Any, ...]:
            observations, *rest = self.env.step(actions)
            return self._converted(observations), *rest

        def _converted(self, observations: Mapping[AgentId, Array]) -> dict[AgentId, Array]:
            return {
                agent: small_gray(observation) if is_picture(self.env.observation_space(agent)) else observation
                for agent, observation in observations.items()
            }

    converted: ParallelEnv = Gray(env)
    return converted
