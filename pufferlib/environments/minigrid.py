"""MiniGrid and BabyAI: grid worlds with missions in text form."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv


def _ids(folder: Path) -> list[str]:
    """Return the ids that are literals in the package's source; the package composes a few more at run time.

    folder: the package's folder; if it has no ``__init__.py``, there are no ids.
    """
    file = folder / "__init__.py"  # missing in an unrelated folder of that name
    return re.findall(r'id="([\w-]+)"', file.read_text(encoding="utf-8")) if file.is_file() else []


FAMILY = Family(
    names=("MiniGrid-*", "BabyAI-*"),
    description="grid worlds with a mission",
    package="minigrid",
    extra="minigrid",
    examples=(
        Example("MiniGrid-Fetch-5x5-N2-v0", {"max_episode_steps": 30}),
        Example("BabyAI-GoToLocalS5N2-v0", {"max_episode_steps": 50}),
    ),
    listed=_ids,
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make an environment whose mission space has a maximum length, which MiniGrid leaves undefined."""
    env = from_gymnasium(FAMILY, name, **kwargs)
    space: Any = env.observation_space
    space["mission"].max_length = 256 if name.startswith("BabyAI-") else 128
    return env
