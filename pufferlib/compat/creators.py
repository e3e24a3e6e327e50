"""The creators of environments for PufferLib's ``vector``, and the arguments that its versions pass to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pufferlib import registry
from pufferlib.compat.exceptions import APIUsageError
from pufferlib.compat.gymnasium_env import GymnasiumPufferEnv
from pufferlib.compat.pettingzoo_env import PettingZooPufferEnv
from pufferlib.compat.puffer_env import BufferedEnv, MissingYet, SharedBuffers, adopt_version_1
from pufferlib.compat.sources import OuterEnv
from pufferlib.compat.versions import parameters_of, version_of_creator
from pufferlib.compat.wrappers import EpisodeStats, MultiagentEpisodeStats
from pufferlib.emulation import wrap
from pufferlib.environment import PufferEnv, hold

__all__ = ["KINDS", "Creator", "NamedCreator", "close_env", "not_puffer", "one_each_env"]

KINDS = (GymnasiumPufferEnv, PettingZooPufferEnv, BufferedEnv)


class Creator:
    """A creator of one environment, with its arguments, that passes ``buf`` and ``seed`` only if they are accepted.

    A creator that takes any keyword gets both in programs for version 3, and is called again without those that a
    TypeError names. seed: None offers neither. A call returns the environment, or an OuterEnv around it. ``env``: the
    environment that it made last in this process. ``unused``: what the next call returns.
    """

    def __init__(
        self, creator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], seed: int | None
    ) -> None:
        self.creator, self.args, self.kwargs, self.seed = creator, args, kwargs, seed
        self.env: Any = None
        self.unused: Any = None

    def __call__(self) -> Any:
        if self.unused is not None:
            env, self.unused = self.unused, None
            return env
        names, takes_any = parameters_of(self.creator)
        if takes_any and version_of_creator(self.creator) == 3:
            names = {*names, "buf", "seed"}
        offered = {} if self.seed is None else {"buf": SharedBuffers(), "seed": self.seed}
        extra = {name: value for name, value in offered.items() if name in names and name not in self.kwargs}
        env = self._create(extra)
        self.env = source = env
        if isinstance(env, PufferEnv) and not issubclass(type(env), BufferedEnv):
            adopt_version_1(env)
            if not issubclass(type(env), BufferedEnv) and hasattr(env, "terminals"):
                hold(env)
                source = OuterEnv(env)
        if source is env and not isinstance(env, KINDS):
            close_env(env)
            raise not_puffer(env)
        return source

    def _create(self, extra: Mapping[str, Any]) -> Any:
        try:
            return self.creator(*self.args, **self.kwargs, **extra)
        except TypeError as error:
            fitting = {name: extra[name] for name in extra if f"unexpected keyword argument '{name}'" not in str(error)}
            if len(fitting) == len(extra):
                raise
        except MissingYet:  # the environment reads them by itself; without any, it makes its own
            fitting = {**extra, "buf": None}
        return self._create(fitting)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "env": None, "unused": None}


class NamedCreator:
    """A creator of our environment of a name, wrapped for PufferLib, with the statistics of its episodes in infos."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, buf: Any = None, seed: int = 0, **kwargs: Any) -> Any:
        env = registry.creator(self.name)(**kwargs)
        env = wrap(env) if isinstance(env, PufferEnv) else env
        if hasattr(env, "possible_agents"):
            return PettingZooPufferEnv(MultiagentEpisodeStats(env), buf=buf)
        return GymnasiumPufferEnv(EpisodeStats(env), buf=buf)


def not_puffer(env: object) -> APIUsageError:
    name = type(env).__name__
    if isinstance(env, PufferEnv):
        return APIUsageError(
            f"{name} is a PufferEnv that neither takes buf nor calls super().__init__(buf). If its step returns "
            "observations, call super().__init__(buf); if it returns infos alone, use pufferlib.make in place of "
            "pufferlib.vector.make"
        )
    return APIUsageError(
        f"the creator returned a {name}; it must return a GymnasiumPufferEnv, a PettingZooPufferEnv or a PufferEnv, "
        "such as pufferlib.emulation.GymnasiumPufferEnv(env)"
    )


def one_each_env(creator: Any, args: Any, kwargs: Any, num_envs: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Return lists of creators, arguments and keyword arguments with an item for each environment."""
    if not isinstance(num_envs, (int, np.integer)) or isinstance(num_envs, bool) or num_envs < 1:
        raise APIUsageError(f"num_envs must be a whole number of at least 1, got {num_envs!r}")
    num_envs = int(num_envs)
    if not isinstance(creator, (list, tuple)):
        if not callable(creator):
            raise APIUsageError(f"env_creator must be callable, got {creator!r}")
        return [creator] * num_envs, [args or []] * num_envs, [kwargs or {}] * num_envs
    args = [[]] * num_envs if args is None else args
    kwargs = [{}] * num_envs if kwargs is None else kwargs
    for name, items, kind in (
        ("env_creators", creator, Callable),
        ("env_args", args, (list, tuple)),
        ("env_kwargs", kwargs, Mapping),
    ):
        if not isinstance(items, (list, tuple)) or len(items) != num_envs:
            raise APIUsageError(f"{name} must be a list of length num_envs={num_envs}, got {items!r:.80}")
        wrong = [item for item in items if not isinstance(item, kind)]  # type: ignore[arg-type]
        if wrong:
            raise APIUsageError(f"{name} must be a list of {_plural(name)}, got {wrong[0]!r:.80}")
    return list(creator), list(args), list(kwargs)


def _plural(name: str) -> str:
    return {"env_creators": "callables", "env_args": "lists", "env_kwargs": "dicts"}[name]


def close_env(env: Any) -> None:
    close = getattr(env, "close", None)
    if callable(close):
        close()
