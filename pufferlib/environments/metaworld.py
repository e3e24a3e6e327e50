"""Meta-World: tasks for a robot arm."""

from __future__ import annotations

from typing import Any

import gymnasium

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("Meta-World/*",),
    description="tasks of one robot arm",
    package="metaworld",
    extra="metaworld",
    examples=(Example("Meta-World/MT1", {"env_name": "reach-v3", "max_episode_steps": 50}),),
)


class Seeded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper whose seeded resets also seed the choice of goals, for which Meta-World has a separate method."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.unwrapped.seed(seed)  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=options)


def env_creator(name: str = FAMILY.examples[0].name, *, seed: int = 0, **kwargs: object) -> GymnasiumEnv:
    """Make an environment with fifty possible goals.

    seed: determines these goals; by default, all environments have the same goals.
    """
    return Seeded(from_gymnasium(FAMILY, name, seed=seed, **kwargs))
