"""Console games in stable-retro's emulator: "stable-retro/…" unchanged, "retro/…" with the usual preprocessing.

The package contains one game, Airstriker, and the memory address of the score for about a thousand others. To import
the ROMs of those games, run ``python -m stable_retro.import FOLDER``.

A process can hold only one emulator, so there must be as many workers as environments: use the backend "pool" or
"multiprocessing" with ``num_workers=num_envs``. The backend "serial" supports one environment; a second raises
PlanError.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike

from pufferlib.environments import Example, Family
from pufferlib.environments._pictures import GrayPictures
from pufferlib.errors import PlanError, RegistryError
from pufferlib.util.annotations import GymnasiumEnv

FAMILY = Family(
    names=("retro/*", "stable-retro/*"),
    description="games of consoles, one a process: pool, num_workers=num_envs",
    package="stable_retro",
    extra="retro",
    examples=(
        Example("retro/Airstriker-Genesis-v0", {"max_episode_steps": 100}),
        Example("stable-retro/Airstriker-Genesis-v0", {"max_episode_steps": 250}),
    ),
    needs=("cv2",),
    alone=True,
)
ENUMERATIONS = {"state": "State", "use_restricted_actions": "Actions", "obs_type": "Observations"}


class Played(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that returns float rewards and converts actions to the arrays that the emulator takes."""

    def step(self, action: ArrayLike) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        picture, reward, terminated, truncated, info = self.env.step(np.asarray(action))
        return picture, float(reward), terminated, truncated, info


def env_creator(
    name: str = FAMILY.examples[0].name,
    *,
    max_episode_steps: int | None = None,
    render_mode: str | None = None,
    **kwargs: object,
) -> GymnasiumEnv:
    """Make a game: "stable-retro/…" unchanged, "retro/…" with grayscale images, uint8 (84, 84), one per four frames.

    In "retro/…", the first of the four frames repeats the previous action with a probability of 1/4, because games are
    deterministic and always start the same way. This probability and the default ``max_episode_steps`` follow the
    package's ``examples/ppo.py``; retro.toml contains the settings of that example.

    max_episode_steps: the number of actions after which an episode is truncated; by default, 4,500 in "retro/…" and no
    limit in "stable-retro/…". kwargs: arguments of ``stable_retro.make``. Members of the package's enumerations may be
    given by name, such as ``use_restricted_actions="DISCRETE"``. By default, actions are MultiBinary, with a bit for
    each button.

    Raises RegistryError if the ROM is missing; PlanError for an unknown member of the enumerations of actions or
    observations, and if the process already has an emulator or was forked from a process that had one; SpaceError for
    "retro/…" with ``obs_type="RAM"``, which only "stable-retro/…" supports.
    """
    retro = importlib.import_module("stable_retro")
    for argument, enumeration in ENUMERATIONS.items():
        members = getattr(retro, enumeration).__members__
        if (named := kwargs.get(argument)) in members:
            kwargs[argument] = members[named]
        elif isinstance(named, str) and argument != "state":  # a state may also be a file's name
            # The package would treat an unknown name as unrestricted actions.
            raise PlanError(f"{argument}={named!r} is not one of {', '.join(members)}; use one of these")
    kind, _, game = name.partition("/")
    try:
        env = retro.make(game, render_mode=render_mode, **kwargs)
    except FileNotFoundError as error:
        if "rom" not in str(error).lower():
            raise
        raise RegistryError(
            f'"{name}": {error}; `python -m stable_retro.import FOLDER` imports the ROMs that you have'
        ) from error
    except RuntimeError as error:
        if "multiple emulator" not in str(error):
            raise
        raise PlanError(
            f'"{name}": a process can hold only one emulator, and this process has one or was forked from one that '
            'had; use backend="pool" (or "multiprocessing") with num_workers=num_envs, and first close other such '
            "environments"
        ) from error
    env = Played(env)
    if kind == "retro":
        env = GrayPictures(env, sticky=0.25)
        max_episode_steps = 4500 if max_episode_steps is None else max_episode_steps
    return env if max_episode_steps is None else gymnasium.wrappers.TimeLimit(env, max_episode_steps)
