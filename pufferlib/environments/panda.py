"""A robot arm in PyBullet, for goals: panda-gym."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium

from pufferlib.environments import Example, Family, from_gymnasium

FAMILY = Family(
    names=("Panda*",),
    description="a robot arm in PyBullet, for goals",
    package="panda_gym",
    extra="panda",
    examples=(
        Example("PandaReach-v3", slow=True),
        Example("PandaPickAndPlace-v3", slow=True),
    ),
)


class Seeded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A task whose goals follow from the seed of the first reset, also in those after it.

    Bullet remembers touches through a reset, and where it is asked to restore a state: by itself an episode depends on
    those before it, whatever the seed. So a second reset with a seed makes the task anew.
    """

    def __init__(self, env_creator: Callable[[], Any]) -> None:
        super().__init__(env_creator())
        self._env_creator, self._new = env_creator, True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is None:
            seed = int(self.np_random.integers(1 << 31))
        elif not self._new:
            self.env.close()
            self.env = self._env_creator()
        self._new = False
        return self.env.reset(seed=seed, options=options)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Any:
    """Return a task, whose observations are Dicts: of the arm and the things, the goal, and what is reached of it.

    PandaFlip cannot be made where the package lacks its texture, as panda-gym 3.0.7 does.
    """
    return Seeded(functools.partial(from_gymnasium, FAMILY, name, **kwargs))
