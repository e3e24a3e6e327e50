"""SyncVectorEnv and AsyncVectorEnv as Gymnasium has them, over pufferlib's workers.

    from pufferlib.adapters.gymnasium_vector import AsyncVectorEnv      # rather than from gymnasium.vector

docs/gymnasium.md says what differs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from pufferlib.adapters.gymnasium_face import DEFAULT_MODE, AutoresetMode, Face, WaitTimeout
from pufferlib.adapters.gymnasium_rows import LIBRARY, RowsFace
from pufferlib.adapters.seam import make_for
from pufferlib.errors import PlanError
from pufferlib.registry import creator
from pufferlib.suggestions import not_one_of
from pufferlib.vectorization import Multiprocessing, Serial

__all__ = ["AsyncVectorEnv", "AutoresetMode", "SyncVectorEnv", "WaitTimeout", "make", "make_vec"]


class SyncVectorEnv(Face):
    """Gymnasium's SyncVectorEnv: all environments in this process, stepped in turn. ``envs`` are the environments.

    env_fns: each makes one. observation_mode: "same", "different" or spaces, as with Gymnasium.
    Raises as Gymnasium's: RuntimeError for spaces that differ, TypeError or ValueError for an impossible
    observation_mode, an env_fn's own exception.
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


class AsyncVectorEnv(Face):
    """Gymnasium's AsyncVectorEnv: a process for each environment, or ``max_concurrency`` processes that share them.

    env_fns, observation_mode: as SyncVectorEnv has them.
    context: how processes start; None: fork where that is safe, else spawn.
    shared_memory: arrays always go through shared memory, whatever this says, and all else, of any space, does not.
    daemon: processes end with this one in any case, and their environments may start processes of their own.
    worker: refused, as environments are stepped by pufferlib's workers only.
    Raises as SyncVectorEnv; WorkerError where a process dies.
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
                "change what one does in its env_fn, with a gymnasium.Wrapper, or use gymnasium.vector.AsyncVectorEnv"
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


def make(env: Any, **kwargs: Any) -> RowsFace:
    """Return ``pufferlib.make(env, …)`` as a VectorEnv of arrays, of any backend. Takes and raises what ``make`` does.

    agents: "rows" makes each agent of a PettingZoo environment an environment of its own, for agents with equal spaces
        that live equally long; SpaceError for others.
    autoreset_mode: Gymnasium's, or its name in ``make``; by default that of the installed Gymnasium.
    """
    mode = kwargs.get("autoreset_mode", DEFAULT_MODE)
    mode = mode.name.lower() if isinstance(mode, AutoresetMode) else mode
    return RowsFace(make_for(LIBRARY, mode, env, {**kwargs, "autoreset_mode": mode}))


def make_vec(
    env: str | Callable[..., Any],
    num_envs: int = 1,
    *,
    vectorizer: Callable[..., VectorEnv] | str = "async",
    vectorizer_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    agents: str | None = None,
    **env_kwargs: Any,
) -> Any:
    """Return a SyncVectorEnv or AsyncVectorEnv of one environment: what ``vector_entry_point`` is to name.

        gymnasium.register("Mine-v0", Mine, vector_entry_point=functools.partial(make_vec, Mine))
        gymnasium.register("Squared-v0", vector_entry_point="pufferlib.adapters.gymnasium_vector:make_vec",
                           kwargs={"env": "ocean/squared"})
        gymnasium.make_vec("Squared-v0", num_envs=64, vectorizer_kwargs={"max_concurrency": 8})

    env: a callable that makes one environment, a Gymnasium id, or a name of pufferlib's registry.
    vectorizer: "async", "sync", or a class to call; vectorizer_kwargs: its further arguments.
    max_episode_steps: ends episodes by truncation. env_kwargs: for the environment.
    agents: "rows" returns what ``make(…, agents="rows")`` does, on backend "multiprocessing" for "async" and "serial"
        for "sync"; vectorizer_kwargs are then further arguments of ``make``.
    """
    if agents is not None:
        return _make_agents(env, num_envs, vectorizer, vectorizer_kwargs, max_episode_steps, agents, env_kwargs)
    kinds: dict[Any, Callable[..., VectorEnv]] = {"async": AsyncVectorEnv, "sync": SyncVectorEnv}
    if isinstance(vectorizer, str) and vectorizer not in kinds:
        raise PlanError(not_one_of("vectorizer", vectorizer, kinds, ", or a class"))
    make = functools.partial(_make_env, creator(env), max_episode_steps, env_kwargs)
    kind = kinds[vectorizer] if isinstance(vectorizer, str) else vectorizer
    return kind([make] * num_envs, **(vectorizer_kwargs or {}))


def _make_agents(
    env: Any,
    num_envs: int,
    vectorizer: Any,
    vectorizer_kwargs: Mapping[str, Any] | None,
    max_episode_steps: int | None,
    agents: str,
    env_kwargs: dict[str, Any],
) -> RowsFace:
    backends = {"async": "multiprocessing", "sync": "serial"}
    if not isinstance(vectorizer, str) or vectorizer not in backends:
        raise PlanError(f"vectorizer={vectorizer!r} with agents={agents!r}; use {' or '.join(map(repr, backends))}")
    if max_episode_steps is not None:
        raise PlanError(
            f"max_episode_steps={max_episode_steps} is for environments of one agent; with agents={agents!r} limit "
            "episodes by an argument of the environment, such as PettingZoo's max_cycles"
        )
    kwargs = {"backend": backends[vectorizer], "num_envs": num_envs, "env_kwargs": env_kwargs or None}
    return make(env, agents=agents, **{**kwargs, **(vectorizer_kwargs or {})})


def _make_env(env_creator: Callable[..., Any], max_episode_steps: int | None, kwargs: dict[str, Any]) -> Any:
    env = env_creator(**kwargs)
    return env if max_episode_steps is None else gymnasium.wrappers.TimeLimit(env, max_episode_steps)
