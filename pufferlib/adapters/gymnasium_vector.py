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
from pufferlib.errors import PlanError
from pufferlib.registry import creator
from pufferlib.suggestions import not_one_of
from pufferlib.vectorization import Multiprocessing, Serial

__all__ = ["AsyncVectorEnv", "AutoresetMode", "SyncVectorEnv", "WaitTimeout", "make_vec"]


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


def make_vec(
    env: str | Callable[..., Any],
    num_envs: int = 1,
    *,
    vectorizer: Callable[..., VectorEnv] | str = "async",
    vectorizer_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
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
    """
    kinds: dict[Any, Callable[..., VectorEnv]] = {"async": AsyncVectorEnv, "sync": SyncVectorEnv}
    if isinstance(vectorizer, str) and vectorizer not in kinds:
        raise PlanError(not_one_of("vectorizer", vectorizer, kinds, ", or a class"))
    make = functools.partial(_make_env, creator(env), max_episode_steps, env_kwargs)
    kind = kinds[vectorizer] if isinstance(vectorizer, str) else vectorizer
    return kind([make] * num_envs, **(vectorizer_kwargs or {}))


def _make_env(env_creator: Callable[..., Any], max_episode_steps: int | None, kwargs: dict[str, Any]) -> Any:
    env = env_creator(**kwargs)
    return env if max_episode_steps is None else gymnasium.wrappers.TimeLimit(env, max_episode_steps)
