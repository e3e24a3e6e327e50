"""Super Mario Bros.: "SuperMarioBros…" with every frame, "mario/…" with the usual preprocessing."""

from __future__ import annotations

import importlib
from typing import Any, SupportsInt

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.environments import Example, Family, member
from pufferlib.environments._pictures import GrayPictures
from pufferlib.errors import PlanError
from pufferlib.util.annotations import GymnasiumEnv

ROMS = ("vanilla", "downsample", "pixel", "rectangle")  # v0 to v3
STAGES = tuple(f"{world}-{stage}" for world in range(1, 9) for stage in range(1, 5))
IDS = (
    *(f"SuperMarioBros-v{version}" for version in range(4)),
    *(f"SuperMarioBros2-v{version}" for version in range(2)),
    *(f"SuperMarioBros-{stage}-v{version}" for version in range(4) for stage in STAGES),
)
FAMILY = Family(
    names=("mario/*", "SuperMarioBros*"),
    description="Super Mario Bros.",
    package="gym_super_mario_bros",
    extra="mario",
    examples=(
        Example("mario/SuperMarioBros-1-1-v0", {"max_episode_steps": 60}),
        Example("SuperMarioBros-v0", {"max_episode_steps": 200}),
    ),
    members=(*(f"mario/{env_id}" for env_id in IDS), *IDS),
    needs=("cv2",),
)
MOVEMENTS = {"right_only": "RIGHT_ONLY", "simple": "SIMPLE_MOVEMENT", "complex": "COMPLEX_MOVEMENT"}


class Mario(gymnasium.Env[Any, Any]):
    """A Gymnasium environment for Super Mario Bros., with observations uint8 (240, 256, 3) and Discrete actions.

    movement: "right_only", "simple" or "complex", the package's lists of 5, 7 and 12 button combinations; None for all
    256. An episode of a single stage ends when a life is lost or the flag is reached; an episode of the complete game
    ends when the third life is lost. Nothing is random: the game depends only on the actions, not on the seed. Raises
    PlanError for an unknown movement.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}

    def __init__(self, env_id: str, movement: str | None = "simple", render_mode: str | None = None) -> None:
        if movement is not None and movement not in MOVEMENTS:
            raise PlanError(f"movement={movement!r} is not one of {', '.join(MOVEMENTS)}; use one of these, or None")
        package = importlib.import_module("gym_super_mario_bros")
        self.render_mode = render_mode
        stem, _, version = env_id.rpartition("-v")
        title, _, stage = stem.partition("-")
        self._game: Any = package.SuperMarioBrosEnv(
            rom_mode=ROMS[int(version)],
            lost_levels=title.endswith("2"),
            target=tuple(map(int, stage.split("-"))) if stage else None,
        )
        self._buttons = list(range(256))
        if movement is not None:
            bits = importlib.import_module("nes_py.wrappers").JoypadSpace._button_map
            combinations = getattr(importlib.import_module(f"{FAMILY.package}.actions"), MOVEMENTS[movement])
            self._buttons = [sum(bits[button] for button in buttons) for buttons in combinations]
        self.observation_space = spaces.Box(0, 255, self._game.observation_space.shape, np.uint8)
        self.action_space = spaces.Discrete(len(self._buttons))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._game.reset().copy(), {}  # a view of the emulator's screen

    def step(self, action: SupportsInt) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        screen, reward, done, info = self._game.step(self._buttons[int(action)])
        return screen.copy(), float(reward), bool(done), False, info

    def render(self) -> Any:
        return self._game.screen.copy()

    def close(self) -> None:
        if self._game is not None:
            self._game.close()
            self._game = None


def env_creator(
    name: str = FAMILY.examples[0].name, *, max_episode_steps: int | None = None, **kwargs: Any
) -> GymnasiumEnv:
    """Make the game or one stage.

    "SuperMarioBros…" returns every frame; "mario/…" returns grayscale images, uint8 (84, 84), one per four frames.

    max_episode_steps: counted in actions; by default there is no limit, because the game has a clock. kwargs: arguments
    of ``Mario``.
    """
    env: GymnasiumEnv = Mario(member(FAMILY, name), **kwargs)
    if name.startswith("mario/"):
        env = GrayPictures(env)
    return env if max_episode_steps is None else gymnasium.wrappers.TimeLimit(env, max_episode_steps)
