"""Real environments to play and record, in addition to those of envs.py: each a function without arguments.

Names of environments differ between versions of a package, so each function takes the newest name that exists. Imports
only Gymnasium; the packages of environments are imported in the functions that make them.
"""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium

__all__ = ["AGENTS", "GAMES"]


def by_id(*ids: str) -> gymnasium.Env[Any, Any]:
    """Return the first of these that Gymnasium has, without the passive checker, whose time is not compared."""
    newest = next(env_id for env_id in ids if env_id in gymnasium.registry)
    return gymnasium.make(newest, disable_env_checker=True)


def pong() -> gymnasium.Env[Any, Any]:
    """Return ALE's Pong as gray images, uint8 (84, 84), four frames a step, with the emulator's infos."""
    from ale_py import registration

    if "ALE/Pong-v5" not in gymnasium.registry:  # ALE does not notice Gymnasium 0.29, but works with it
        registration.register_v5_envs()
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, disable_env_checker=True)
    return gymnasium.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)


def by_module(*paths: str, **kwargs: Any) -> Any:
    """Return the ``parallel_env`` of the first of these modules that is installed."""
    module = next(path for path in paths if find_spec(path.partition(".")[0]) and find_spec(path))
    return import_module(module).parallel_env(**kwargs)


GAMES = {
    "pendulum": functools.partial(by_id, "Pendulum-v1"),
    "frozen_lake": functools.partial(by_id, "FrozenLake-v1"),
    "cliff_walking": functools.partial(by_id, "CliffWalking-v1", "CliffWalking-v0"),
    "taxi": functools.partial(by_id, "Taxi-v4", "Taxi-v3"),
    "lunar_lander": functools.partial(by_id, "LunarLander-v3", "LunarLander-v2"),
    "half_cheetah": functools.partial(by_id, "HalfCheetah-v5", "HalfCheetah-v4"),
    "reacher": functools.partial(by_id, "Reacher-v5", "Reacher-v4"),
    "pong": pong,
    "simple_spread": functools.partial(by_module, "mpe2.simple_spread_v3", "pettingzoo.mpe.simple_spread_v3"),
    "pursuit": functools.partial(by_module, "pettingzoo.sisl.pursuit_v5", "pettingzoo.sisl.pursuit_v4"),
}
AGENTS = ("simple_spread", "pursuit")  # those of PettingZoo
