"""Craftax, an open-world survival game with dungeons, in JAX; Craftax-Classic reimplements Crafter."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from types import ModuleType
from typing import Any

from pufferlib.environments import Example, Family, member
from pufferlib.environments._functional import Compiled, Functional, functions_of, load, space_of
from pufferlib.util.annotations import Function
from pufferlib.util.files import written_whole

FAMILY = Family(
    names=("craftax/*",),
    description="an open world to survive in, in JAX",
    package="craftax",
    extra="craftax",
    examples=(
        Example("craftax/Craftax-Classic-Symbolic-v1", {"max_timesteps": 100}),
        Example("craftax/Craftax-Symbolic-v1", {"max_timesteps": 100}),
    ),
    members=tuple(
        f"craftax/Craftax-{which}-v1" for which in ("Symbolic", "Pixels", "Classic-Symbolic", "Classic-Pixels")
    ),
)
PIXELS = 16  # a cell's height and width in an image; a size for which Craftax has textures


@functools.cache
def _parts(name: str) -> tuple[Any, Compiled]:
    """Return the Craftax environment with this name and its compiled functions. Calls with the same name share both."""
    _game(name)
    env = load("craftax.craftax_env").make_craftax_env_from_name(name, auto_reset=False)
    return env, functions_of(env)


@functools.cache
def _picture(name: str) -> Function:
    """Return a function that draws a state of the named game as a uint8 image. JAX compiles it on its first call."""
    draw = load("jax").jit(load(f"{_game(name)}.renderer").make_craftax_pixel_renderer(PIXELS))
    return lambda state: draw(state).astype("uint8")


def _game(name: str) -> str:
    """Patch the package of the named game so that it writes its cache file atomically; return the package's name."""
    package = f"craftax.craftax{'_classic' if 'Classic' in name else ''}"
    constants: Any = load(f"{package}.constants")
    constants.save_compressed_pickle = functools.partial(_keep, load("craftax.environment_base.util"))
    return package


def _keep(util: ModuleType, file: str, data: object) -> None:
    """Write a cache file atomically, because other workers read it.

    Ignores OSError: without write access, each process computes the data.
    """
    with contextlib.suppress(OSError), written_whole(file) as part:
        util.save_compressed_pickle(part, data)


def env_creator(name: str = FAMILY.examples[0].name, render_mode: str | None = None, **kwargs: object) -> Functional:
    """Make a world. render_mode: "rgb_array" or None. kwargs: fields of Craftax's ``EnvParams``.

    One of these fields is ``max_timesteps``, the number of steps after which an episode is truncated. Infos are
    returned only at an episode's end; they hold, for each achievement, 100 if it was unlocked and 0 otherwise.
    """
    game = member(FAMILY, name)
    env, functions = _parts(game)
    params = dataclasses.replace(env.default_params, **kwargs)
    observed, acted = space_of(env.observation_space(params)), space_of(env.action_space(params))

    def picture(state: object) -> object:
        return _picture(game)(state)

    return Functional(functions, observed, acted, params, last_infos=True, render_mode=render_mode, picture=picture)
