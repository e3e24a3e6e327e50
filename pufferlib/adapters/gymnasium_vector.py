"""Replacements for Gymnasium's SyncVectorEnv and AsyncVectorEnv that run on pufferlib's backends.

    from pufferlib.adapters.gymnasium_vector import AsyncVectorEnv      # instead of from gymnasium.vector

docs/gymnasium.md lists the differences.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from pufferlib.adapters.common import AdapterParameters, make_for
from pufferlib.adapters.gymnasium_rows import LIBRARY, GymnasiumRowsVecEnv
from pufferlib.adapters.gymnasium_vecenv import DEFAULT_MODE, AutoresetMode, GymnasiumVecEnv, WaitTimeout
from pufferlib.emulation import wrap
from pufferlib.errors import PlanError
from pufferlib.registry import creator
from pufferlib.util.annotations import EnvSource, GymnasiumEnv
from pufferlib.util.parameters import Unpack
from pufferlib.util.suggestions import not_one_of
from pufferlib.vectorization import Multiprocessing, Serial
from pufferlib.vectorization.core.plan import checked_mode

__all__ = ["AsyncVectorEnv", "AutoresetMode", "SyncVectorEnv", "WaitTimeout", "make", "make_vec"]


class SyncVectorEnv(GymnasiumVecEnv):
    """A replacement for Gymnasium's SyncVectorEnv, which steps all environments in this process, one after another.

    ``envs`` lists the environments. env_fns: callables that make one environment each. copy: whether observations are
    copies; if not, they are valid until the second step or reset after the one that returned them. observation_mode:
    "same", "different" or a pair of spaces, as in Gymnasium. autoreset_mode: an AutoresetMode or its name in ``make``;
    by default, the installed Gymnasium's default.

    Raises the same errors as Gymnasium's class: RuntimeError if the environments' action spaces differ, or if their
    observation spaces differ more than observation_mode allows; TypeError or ValueError for an impossible
    observation_mode; and the exceptions of env_fns.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        copy: bool = True,
        observation_mode: Any = "same",
        autoreset_mode: str | AutoresetMode = DEFAULT_MODE,
    ) -> None:
        self.envs: list[Any] = []
        super().__init__(Serial, env_fns, copy, observation_mode, autoreset_mode, self.envs)


class AsyncVectorEnv(GymnasiumVecEnv):
    """A replacement for Gymnasium's AsyncVectorEnv, which steps the environments in worker processes.

    env_fns, copy, observation_mode, autoreset_mode: see SyncVectorEnv.
    context: the processes' start method; by default fork if that is safe, else spawn.
    shared_memory: ignored, because arrays always go through shared memory and objects never do.
    daemon: ignored, because the worker processes always end with this process, and the environments in them may start
        processes of their own.
    worker: not supported, because only pufferlib's workers step the environments; PlanError is raised unless it is
        None.
    max_concurrency: the largest number of processes; by default one per environment.

    Raises the errors of SyncVectorEnv, and WorkerError if a process dies.
    """

    uncallable = frozenset(("reset", "step", "close"))
    logs_errors = True

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: Callable[..., None] | None = None,
        observation_mode: Any = "same",
        autoreset_mode: str | AutoresetMode = DEFAULT_MODE,
        max_concurrency: int | None = None,
    ) -> None:
        if worker is not None:
            raise PlanError(
                f"worker={worker!r} cannot be honoured: pufferlib's own workers step the environments; "
                "change its behaviour in the env_fn, with a gymnasium.Wrapper, or use gymnasium.vector.AsyncVectorEnv"
            )
        if max_concurrency is not None:
            if not isinstance(max_concurrency, (int, np.integer)):
                raise PlanError(f"`max_concurrency` must be an integer or None, got {max_concurrency!r}")
            if max_concurrency < 1:
                raise PlanError(f"`max_concurrency` must be a positive or None, got {max_concurrency}; use 1 or more")
        self.shared_memory, self.context, self.daemon, self.worker = shared_memory, context, daemon, worker
        self.max_concurrency = max_concurrency
        env_fns = list(env_fns)
        num_workers = len(env_fns) if max_concurrency is None else min(int(max_concurrency), len(env_fns))
        make = functools.partial(Multiprocessing, num_workers=num_workers, context=context)
        super().__init__(make, env_fns, copy, observation_mode, autoreset_mode, None)

    @property
    def envs(self) -> list[Any]:
        """Unavailable, because the environments are in other processes.

        Access raises AttributeError, whose text names alternatives.
        """
        raise AttributeError(
            f"the environments of this {type(self).__name__} are in other processes, so it has no `envs`; use "
            "get_attr(name)[0] or call(name, …)[0] in place of envs[0].name, or a SyncVectorEnv, whose environments "
            "are here"
        )


def make(env: EnvSource, **kwargs: Unpack[AdapterParameters]) -> GymnasiumRowsVecEnv:
    """Return ``pufferlib.make(env, …)``, on any backend, as a GymnasiumRowsVecEnv.

    Takes the arguments of ``make`` and the following. Raises the errors of ``make`` and of GymnasiumRowsVecEnv.

    agents: "rows" makes each agent of a PettingZoo environment a separate environment. The agents must have identical
        spaces, and their episodes must end together; otherwise SpaceError is raised.
    autoreset_mode: an AutoresetMode or its name in ``make``; by default the installed Gymnasium's default.
    """
    mode = checked_mode(kwargs.get("autoreset_mode", DEFAULT_MODE))
    return GymnasiumRowsVecEnv(make_for(LIBRARY, mode, env, {**kwargs, "autoreset_mode": mode}))


def make_vec(
    env: str | EnvSpec | Callable[..., Any] | None = None,
    num_envs: int = 1,
    vectorization_mode: Any = None,
    vector_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Callable[[Any], Any]] | None = None,
    *,
    id: str | EnvSpec | None = None,
    vectorizer: Callable[..., VectorEnv] | str | None = None,
    vectorizer_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    agents: str | None = None,
    **env_kwargs: object,
) -> VectorEnv:
    """Return a vector environment of copies of an environment, like ``gymnasium.make_vec``.

    By default, the result is an AsyncVectorEnv.

        make_vec("MountainCar-v0", 64, max_episode_steps=500, vector_kwargs={"max_concurrency": 8})

    The function can serve as a ``vector_entry_point``:

        gymnasium.register("Mine-v0", Mine, vector_entry_point=functools.partial(make_vec, Mine))
        gymnasium.register("Squared-v0", vector_entry_point="pufferlib.adapters.gymnasium_vector:make_vec",
                           kwargs={"env": "ocean/squared"})
        gymnasium.make_vec("Squared-v0", num_envs=64, vectorizer_kwargs={"max_concurrency": 8})

    env: a Gymnasium id or specification, a name in pufferlib's registry, or a callable that makes one environment. id:
        an alias of env, as in Gymnasium.
    vectorization_mode: "async" (the default) or "sync", or Gymnasium's enum; "vector_entry_point" (before 1.0 "custom")
        returns, through ``gymnasium.make_vec``, the vector environment that is registered for env.
    vector_kwargs: further arguments of the vector environment's class. wrappers: applied to each environment, in the
        given order.
    vectorizer, vectorizer_kwargs: aliases of vectorization_mode and vector_kwargs, because ``gymnasium.make_vec``
        passes the aliases, but not the originals, to a ``vector_entry_point``; vectorizer may also be the class of the
        vector environment.
    max_episode_steps: truncates episodes after this many steps, in place of the environment's limit; -1: no limit.
    env_kwargs: arguments of the environment.
    agents: "rows" returns ``make(…, agents="rows")``, with backend "multiprocessing" for "async" and "serial" for
        "sync"; vector_kwargs are then further arguments of ``make``. Wrappers and max_episode_steps must be left out.

    If env is a Gymnasium id or specification, the result has a ``spec``, and ``make_vec(spec)`` makes an equal vector
    environment. Raises PlanError for unknown or contradictory arguments, and the errors of the registry and of the
    vector environment's class.
    """
    env = _same("env", env, "id", id)
    mode = _same("vectorization_mode", vectorization_mode, "vectorizer", vectorizer)
    kwargs = _same("vector_kwargs", vector_kwargs, "vectorizer_kwargs", vectorizer_kwargs)
    if agents is not None:
        mode = getattr(mode, "value", mode) or "async"
        return _make_agents(env, num_envs, mode, kwargs, wrappers, max_episode_steps, agents, env_kwargs)
    spec = _spec_of(env)
    if spec is not None:
        old_kwargs, spec.kwargs = spec.kwargs, {}  # a vector environment's spec also holds this function's arguments
        num_envs, wrappers = old_kwargs.pop("num_envs", num_envs), old_kwargs.pop("wrappers", wrappers)
        mode, kwargs = old_kwargs.pop("vectorization_mode", mode), old_kwargs.pop("vector_kwargs", kwargs)
        if max_episode_steps is None:
            max_episode_steps = old_kwargs.pop("max_episode_steps", None)
        env_kwargs = {**old_kwargs, **env_kwargs}
    mode, kwargs, wrappers = getattr(mode, "value", mode) or "async", dict(kwargs or {}), list(wrappers or ())
    limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    if mode in ("vector_entry_point", "custom") and spec is not None:
        spec.kwargs = env_kwargs
        return gymnasium.make_vec(spec, num_envs, mode, kwargs, wrappers, **limit)
    kinds: dict[Any, Callable[..., VectorEnv]] = {"async": AsyncVectorEnv, "sync": SyncVectorEnv}
    if not callable(mode) and mode not in [*kinds]:
        name, more = ("vectorizer", ", or a class") if vectorizer is not None else ("vectorization_mode", "")
        raise PlanError(not_one_of(name, mode, kinds, more))
    maker: Any = creator(env) if not isinstance(env, EnvSpec) else _maker(copy.deepcopy(spec))
    make = functools.partial(_make_env, maker, max_episode_steps, wrappers, env_kwargs)
    envs: VectorEnv = (kinds[mode] if isinstance(mode, str) else mode)([make] * num_envs, **kwargs)
    if spec is not None:
        settings: dict[str, Any] = {
            "vector_kwargs": kwargs,
            "wrappers": wrappers,
            "num_envs": num_envs if num_envs > 1 else None,
        }
        settings["vectorization_mode"] = mode if isinstance(mode, str) else None
        spec.kwargs = {**env_kwargs, **limit, **{name: value for name, value in settings.items() if value}}
        envs.unwrapped.spec = spec
    return envs


def _make_agents(
    env: Any,
    num_envs: int,
    mode: object,
    make_kwargs: Mapping[str, Any] | None,
    wrappers: Sequence[Any] | None,
    max_episode_steps: int | None,
    agents: str,
    env_kwargs: dict[str, Any],
) -> GymnasiumRowsVecEnv:
    backends = {"async": "multiprocessing", "sync": "serial"}
    if not isinstance(mode, str) or mode not in backends:
        names = " or ".join(map(repr, backends))
        raise PlanError(f"the vectorizer (vectorization_mode) is {mode!r} with agents={agents!r}; use {names}")
    if wrappers:
        raise PlanError(f"wrappers are for environments of one agent; with agents={agents!r} wrap where env is made")
    if max_episode_steps is not None:
        raise PlanError(
            f"max_episode_steps={max_episode_steps} is for environments of one agent; with agents={agents!r} limit "
            "episodes by an argument of the environment, such as PettingZoo's max_cycles"
        )
    kwargs = {"backend": backends[mode], "num_envs": num_envs, "env_kwargs": env_kwargs or None}
    return make(env, agents=agents, **{**kwargs, **(make_kwargs or {})})


def _maker(spec: Any) -> Callable[..., Any]:
    # Emulation checks every environment; the passive checker would check each step a second time.
    return functools.partial(gymnasium.make, spec, disable_env_checker=True)


def _spec_of(env: object) -> EnvSpec | None:
    """Return a copy of the Gymnasium specification that ``env`` is or names; None for any other environment.

    For an id with a module, such as "my_module:Mine-v0", imports the module first, which registers the id.
    """
    if isinstance(env, str) and ":" in env and env not in gymnasium.registry:
        creator(env)  # imports the module, which registers the id after the colon
        env = env.partition(":")[2]
    if isinstance(env, str):
        env = gymnasium.registry.get(env)
    return copy.deepcopy(env) if isinstance(env, EnvSpec) else None


def _same(name: str, value: object, other: str, also: object) -> Any:
    if value is not None and also is not None:
        raise PlanError(f"{name}={value!r} and {other}={also!r} set the same argument twice; leave one out")
    return also if value is None else value


def _make_env(
    env_creator: Callable[..., Any],
    max_episode_steps: int | None,
    wrappers: Sequence[Callable[[Any], Any]],
    kwargs: dict[str, Any],
) -> Any:
    env = env_creator(**kwargs)
    if (max_episode_steps is not None or wrappers) and not isinstance(env, gymnasium.Env):
        env = wrap(env)  # such as a PufferEnv
    if max_episode_steps is not None:
        env = _limited(env, sys.maxsize if max_episode_steps == -1 else max_episode_steps)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def _limited(env: GymnasiumEnv, max_episode_steps: int) -> GymnasiumEnv:
    """Set the limit of an environment's TimeLimit wrapper, or add one if there is none; return the environment."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            layer._max_episode_steps = max_episode_steps
            return env
        layer = layer.env
    return gymnasium.wrappers.TimeLimit(env, max_episode_steps)
