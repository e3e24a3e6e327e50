"""Entry points for ``gymnasium.make``: ``import ocean`` registers one, by name, for each Ocean environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from pufferlib import registry
from pufferlib.emulation import wrap
from pufferlib.environment import PufferEnv
from pufferlib.errors import SpaceError

__all__: list[str] = []


def __getattr__(name: str) -> Callable[..., gymnasium.Env[Any, Any]]:
    """Return the entry point of ``ocean/<name>``, which takes the arguments of the environment's class.

    Raises AttributeError for a name that begins with "_".
    """
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(_single_agent_env, f"ocean/{name}")


def _single_agent_env(name: str, /, **kwargs: object) -> gymnasium.Env[Any, Any]:
    """Create a single-agent environment and return it, wrapped if it is a PufferEnv.

    If the environment has several agents, closes it and raises SpaceError instead.
    """
    env = registry.creator(name)(**kwargs)
    if isinstance(env, PufferEnv) and env.num_agents == 1:
        env = wrap(env)
    if not isinstance(env, gymnasium.Env):
        env.close()
        raise SpaceError(
            f"{name} has several agents, and a Gymnasium environment has one; "
            f'pufferlib.make("{name}", num_envs=…) makes a row of each agent'
        )
    return env
