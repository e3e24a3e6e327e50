"""First-person Doom: ViZDoom's environments, unchanged as "Vizdoom…", and with small images as "doom/…"."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.environments._recreated import Recreated
from pufferlib.util.annotations import Array, GymnasiumEnv

FAMILY = Family(
    names=("Vizdoom*", "doom/*"),
    description="Doom, seen from within",
    package="vizdoom",
    extra="vizdoom",
    examples=(
        Example("VizdoomBasic-v1"),
        Example("doom/Basic-v1"),
        Example("doom/DeadlyCorridor-v1", {"game_variables": True}),
    ),
    registers="vizdoom.gymnasium_wrapper",
    aliases={"doom/": "Vizdoom"},
)
MOST = 12.5  # bound of a turn, in degrees, or of a movement, per frame


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: object) -> GymnasiumEnv:
    """Make the environment of a Doom scenario.

    "Vizdoom…" is ViZDoom's environment, unchanged. In "doom/…", an observation is an image, uint8 (60, 80, 3), and a
    step lasts four frames. Doom draws the image at twice this size, and each pixel is the mean of four. The action
    space bounds continuous turns, in degrees, and movements to ±12.5 per frame; ViZDoom's does not bound them. The
    reward is the sum over the four frames. A scenario's sounds, maps and notifications are available only in
    "Vizdoom…".

    game_variables: in "doom/…", whether an observation is a dict instead: "screen" is the image, and "gamevariables",
    float32, holds the scenario's numbers, such as health and ammunition. It has no effect in a scenario without such
    numbers. kwargs: arguments of ViZDoom; in "doom/…", "frame_skip" and "screen_resolution" change the number of frames
    and the image's size.
    """
    # Otherwise all instances in a folder share a settings file there, and start with what others left in it.
    kwargs = {"doom_config_path": os.devnull, **kwargs}
    with contextlib.suppress(OSError):  # Doom makes this folder; when two did so at once, one crashed Python
        os.makedirs("_vizdoom", exist_ok=True)
    if name.startswith("Vizdoom"):
        return _recreated(name, **kwargs)
    game_variables = kwargs.pop("game_variables", False)
    plain = {"frame_skip": 4, "screen_resolution": "RES_160X120", **kwargs}
    env = _recreated(name.replace("doom/", "Vizdoom", 1), **plain)
    return _bounded(_small(env, game_variables))


def _recreated(name: str, **kwargs: object) -> GymnasiumEnv:
    # Without this, a second seed started a different episode in 3 of about 650 trials: one image of a hundred differed,
    # in 60 pixels.
    return Recreated(functools.partial(from_gymnasium, FAMILY, name, **kwargs))


def _small(env: Any, game_variables: object) -> GymnasiumEnv:
    """Wrap an environment so that it returns images of half the height and width.

    game_variables: whether to return the game variables as well, if the environment has them.
    """
    space = env.observation_space
    height, width, channels = space["screen"].shape
    screen = spaces.Box(0, 255, (height // 2, width // 2, channels), np.uint8)
    if game_variables and "gamevariables" in space.spaces:
        both = spaces.Dict(screen=screen, gamevariables=space["gamevariables"])
        return gymnasium.wrappers.TransformObservation(
            env, lambda seen: {"screen": _halved(seen["screen"]), "gamevariables": seen["gamevariables"]}, both
        )
    return gymnasium.wrappers.TransformObservation(env, lambda seen: _halved(seen["screen"]), screen)


def _halved(image: Array) -> Array:
    """Halve the height and width of an image, uint8 (height, width, channels).

    Each pixel is the mean of four, rounded down; an odd last row or column is dropped.
    """
    image = image[: len(image) // 2 * 2, : image.shape[1] // 2 * 2]
    total = image[::2, ::2].astype(np.uint16)
    for rows, columns in ((0, 1), (1, 0), (1, 1)):
        total += image[rows::2, columns::2]
    return (total // 4).astype(np.uint8)


def _bounded(env: GymnasiumEnv) -> GymnasiumEnv:
    """Wrap an environment so that its action space bounds continuous actions to ±MOST.

    Actions themselves are passed on unchanged. Returns the environment itself if it has no continuous actions.
    """
    raw_space = env.action_space
    bounded = {
        key: spaces.Box(-MOST, MOST, space.shape, np.float32) if isinstance(space, spaces.Box) else space
        for key, space in (raw_space.spaces if isinstance(raw_space, spaces.Dict) else {"": raw_space}).items()
    }
    space = spaces.Dict(bounded) if isinstance(raw_space, spaces.Dict) else bounded[""]
    return env if space == raw_space else gymnasium.wrappers.TransformAction(env, lambda action: action, space)
