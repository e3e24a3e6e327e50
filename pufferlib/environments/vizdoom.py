"""Doom, seen from within: raw under the names of ViZDoom, and under "doom/…" in small pictures, as it is learnt."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.environments import Example, Family, from_gymnasium
from pufferlib.environments._anew import MadeAnew

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
MOST = 12.5  # of a turn, in degrees, or of a movement, a frame


def env_creator(name: str = FAMILY.examples[0].name, **kwargs: Any) -> Any:
    """Return a scenario: "Vizdoom…" as ViZDoom has it, "doom/…" in pictures, uint8 (60, 80, 3), one for every fourth
    frame.

    Doom draws the latter at twice the size, and each pixel is the mean of four. game_variables: makes it a Dict of the
    picture, "screen", and the numbers that the scenario has, "gamevariables", float32, of health, ammunition and so on;
    all else that a scenario may tell (sounds, maps, notifications) only the raw one has. Turns and movements
    by a number lie within ±12.5, where ViZDoom bounds them by nothing. The reward is the sum of four frames'.
    kwargs: of ViZDoom; "frame_skip" and "screen_resolution" change the number of frames and the picture's size.
    """
    # Else all that run in a folder share a file of settings there, and what one leaves in it the next one begins with.
    kwargs = {"doom_config_path": os.devnull, **kwargs}
    with contextlib.suppress(OSError):  # Doom's own folder: of two that make it at a time one died, and so did Python
        os.makedirs("_vizdoom", exist_ok=True)
    if name.startswith("Vizdoom"):
        return _made(name, **kwargs)
    game_variables = kwargs.pop("game_variables", False)
    plain = {"frame_skip": 4, "screen_resolution": "RES_160X120", **kwargs}
    env = _made(name.replace("doom/", "Vizdoom", 1), **plain)
    return _bounded(_small(env, game_variables))


def _made(name: str, **kwargs: Any) -> Any:
    # A second seed began another episode in 3 of some 650 trials: one picture of a hundred differed in 60 pixels.
    return MadeAnew(functools.partial(from_gymnasium, FAMILY, name, **kwargs))


def _small(env: Any, game_variables: bool) -> Any:
    """Return an environment whose observations are pictures of half the size, with its numbers if these are wanted."""
    told = env.observation_space
    height, width, channels = told["screen"].shape
    screen = spaces.Box(0, 255, (height // 2, width // 2, channels), np.uint8)
    if game_variables and "gamevariables" in told.spaces:
        both = spaces.Dict(screen=screen, gamevariables=told["gamevariables"])
        return gymnasium.wrappers.TransformObservation(
            env, lambda seen: {"screen": _halved(seen["screen"]), "gamevariables": seen["gamevariables"]}, both
        )
    return gymnasium.wrappers.TransformObservation(env, lambda seen: _halved(seen["screen"]), screen)


def _halved(image: Any) -> Any:
    """Return an image, uint8 (height, width, channels), at half its height and width; an odd line is left out."""
    image = image[: len(image) // 2 * 2, : image.shape[1] // 2 * 2]
    total = image[::2, ::2].astype(np.uint16)
    for rows, columns in ((0, 1), (1, 0), (1, 1)):
        total += image[rows::2, columns::2]
    return (total // 4).astype(np.uint8)


def _bounded(env: Any) -> Any:
    """Return an environment whose continuous actions have bounds that a policy can aim within."""
    told = env.action_space
    bounded = {
        key: spaces.Box(-MOST, MOST, space.shape, np.float32) if isinstance(space, spaces.Box) else space
        for key, space in (told.spaces if isinstance(told, spaces.Dict) else {"": told}).items()
    }
    space = spaces.Dict(bounded) if isinstance(told, spaces.Dict) else bounded[""]
    return env if space == told else gymnasium.wrappers.TransformAction(env, lambda action: action, space)
