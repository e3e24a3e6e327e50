"""Atari 2600 games: "ALE/…" unchanged, "atari/…" with the usual preprocessing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gymnasium

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.util.annotations import GymnasiumEnv


def _games(folder: Path) -> Iterator[str]:
    """Yield both names of each game whose ROM is in the package's folder.

    For example, breakout.bin yields "ALE/Breakout-v5" and "atari/Breakout-v5".
    """
    for rom in (folder / "roms").glob("*.bin"):
        game = "".join(word.capitalize() for word in rom.stem.split("_"))
        yield from (f"ALE/{game}-v5", f"atari/{game}-v5")


FAMILY = Family(
    names=("ALE/*", "atari/*"),
    description="Atari 2600 games",
    package="ale_py",
    extra="atari",
    examples=(
        Example("atari/Breakout-v5", {"max_episode_steps": 250}),
        Example("ALE/Breakout-v5", {"max_episode_steps": 250}),
    ),
    aliases={"atari/": "ALE/"},
    listed=_games,
    needs=("cv2",),
)


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make a game: "ALE/…" unchanged, "atari/…" with grayscale images, uint8 (84, 84), one per four frames.

    As for DQN, an "atari/…" episode starts with up to 30 no-ops, an image is the pixelwise maximum of the last two
    frames, and there are no sticky actions; "max_episode_steps" counts emulator frames, four per action. Stacking
    frames, clipping rewards and ending episodes when a life is lost are left to the learner: see atari.toml.
    Source: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518 (2015).
    """
    if name.startswith("ALE/"):
        return from_gymnasium(FAMILY, name, **kwargs)
    plain = {"frameskip": 1, "repeat_action_probability": 0.0, **kwargs}
    env = from_gymnasium(FAMILY, name.replace("atari/", "ALE/", 1), **plain)
    return gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
