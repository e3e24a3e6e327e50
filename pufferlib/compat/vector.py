"""PufferLib's ``vector``: its calls and attributes, on the vectorization of ``pufferlib.make``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium  # noqa: F401  # programs read this module's imports, such as pufferlib.vector.pufferlib.emulation
import numpy as np

import pufferlib  # noqa: F401
from pufferlib.compat.creators import KINDS, Creator, close_env, not_puffer, one_each_env
from pufferlib.compat.exceptions import APIUsageError, raises_usage_errors
from pufferlib.compat.gymnasium_env import GymnasiumPufferEnv
from pufferlib.compat.pettingzoo_env import PettingZooPufferEnv
from pufferlib.compat.puffer_env import BufferedEnv, set_buffers
from pufferlib.compat.spaces import joint_space
from pufferlib.compat.vecenv import (
    RECV,
    RESET,
    SEND,
    STEP,
    Multiprocessing,
    Ray,
    Serial,
    make_seeds,
    recv_precheck,
    send_precheck,
)
from pufferlib.environment import PufferEnv
from pufferlib.errors import PlanError

__all__ = [
    "CLOSE",
    "INFO",
    "MAIN",
    "RECV",
    "RESET",
    "SEND",
    "STEP",
    "GymnasiumPufferEnv",
    "Multiprocessing",
    "PettingZooPufferEnv",
    "PufferEnv",
    "Ray",
    "Serial",
    "autotune",
    "check_envs",
    "joint_space",
    "make",
    "make_seeds",
    "recv_precheck",
    "reset",
    "send_precheck",
    "set_buffers",
    "step",
]

CLOSE, MAIN, INFO = range(4, 7)
ARGUMENTS = ("num_workers", "batch_size", "zero_copy", "overwork", "sync_traj", "buf")


@raises_usage_errors
def make(
    env_creator_or_creators: Any,
    env_args: Any = None,
    env_kwargs: Any = None,
    backend: Any = None,
    num_envs: int = 1,
    seed: int | None = None,
    **kwargs: Any,
) -> Any:
    """Return a vecenv of ``num_envs`` environments.

    env_creator_or_creators: a callable that returns a GymnasiumPufferEnv, a PettingZooPufferEnv or a PufferEnv; or a
        list of them, one for each environment. env_args, env_kwargs: the creator's arguments; lists of them, one for
        each environment, if there is a list of creators.
    backend: Serial, Multiprocessing or Ray, as classes or words; or PufferEnv, which returns the only environment
        itself, as its own vecenv. By default, PufferEnv for a PufferEnv, as in versions 2 and 3, else Serial, as in
        version 1.
    seed, and the other arguments: as for the backends; num_workers and batch_size may also be "auto". An environment
    that is returned itself gets the seed only if it is not None.

    Raises APIUsageError for other arguments and impossible counts, and the errors of the backends.
    """
    unknown = [name for name in kwargs if name not in ARGUMENTS]
    if unknown:
        raise APIUsageError(f"Invalid argument: {unknown[0]}; make takes {', '.join(ARGUMENTS)} besides its parameters")
    creators, args, keywords = one_each_env(env_creator_or_creators, env_args, env_kwargs, num_envs)
    kind = _backend_of(backend)
    if kind is PufferEnv or kind is None:
        creator = creators[0] = Creator(creators[0], args[0], keywords[0], seed)
        source = _native(creator, num_envs, must=kind is PufferEnv)
        if _is_native(creator.env):
            return creator.env
        creator.unused, kind = source, Serial
        try:
            return make(creators, args, keywords, kind, num_envs, seed, **kwargs)
        except BaseException:
            if creator.unused is not None:
                close_env(creator.unused)
            raise
    counts = {name: kwargs.pop(name, None) for name in ("num_workers", "batch_size")}
    if counts["num_workers"] == "auto":
        counts["num_workers"] = num_envs
    if counts["batch_size"] == "auto":
        counts["batch_size"] = max(1, num_envs // 2)
    return kind(creators, args, keywords, num_envs, seed=seed, **counts, **kwargs)


def _backend_of(backend: Any) -> Any:
    words = {"Serial": Serial, "Multiprocessing": Multiprocessing, "Ray": Ray, "PufferEnv": PufferEnv}
    if backend is None or backend in (Serial, Multiprocessing, Ray, PufferEnv):
        return backend
    if isinstance(backend, str) and backend in words:
        return words[backend]
    if isinstance(backend, type):
        return backend
    raise APIUsageError(f"Invalid backend: {backend!r}; use {', '.join(words)}")


def _native(creator: Creator, num_envs: int, *, must: bool) -> Any:
    """Create an environment. Raises APIUsageError if it is native and one of several, or if it must be, but is not."""
    source = creator()
    env = creator.env
    if _is_native(env) and num_envs != 1:
        wrong = f"num_envs=1, got {num_envs}; the environment sets num_agents itself"
    elif must and not _is_native(env):
        wrong = f"a native PufferEnv, got {type(env).__name__}; pass backend=Serial or backend=Multiprocessing"
    else:
        return source
    close_env(env)
    raise APIUsageError(f"Native vectorization requires {wrong}")


def _is_native(env: Any) -> bool:
    """Return whether an environment is its own vecenv, as those of versions 2 and 3 are."""
    return isinstance(env, BufferedEnv) and not env.is_version_1


def reset(vecenv: Any, seed: Any = None) -> tuple[Any, Any]:
    """Start new episodes of a vecenv; return (observations, infos)."""
    vecenv.async_reset(seed)
    batch = vecenv.recv()
    return batch[0], batch[-3]


def step(vecenv: Any, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Send actions to a vecenv; return (observations, rewards, terminals, truncations, infos) of the next batch."""
    vecenv.send(np.asarray(actions))
    batch = vecenv.recv()
    return *batch[:4], batch[-3]


def check_envs(envs: Sequence[Any], driver: Any) -> None:
    """Raise APIUsageError unless environments are wrapped for PufferLib and have the spaces of ``driver``."""
    for env in envs:
        if not isinstance(env, KINDS):
            raise not_puffer(env)
        for name in ("single_observation_space", "single_action_space"):
            if getattr(env, name) != getattr(driver, name):
                raise APIUsageError(
                    f"{name} is {getattr(env, name)}, but {getattr(driver, name)} in other environments"
                )


def autotune(
    env_creator: Callable[..., Any],
    batch_size: int,
    max_envs: int = 194,
    model_forward_s: float = 0.0,
    max_env_ram_gb: float = 32,
    max_batch_vram_gb: float = 0.05,
    time_per_test: float = 5,
) -> None:
    """Print which arguments of ``make`` run an environment fastest.

    batch_size: rows. max_envs: the maximum number of environments; one to four batches of them are tried, as far as it
    allows. model_forward_s: the learner's time for a batch, in seconds. max_env_ram_gb: the memory for all
    environments. time_per_test: seconds; the search takes six times as long. Raises ValueError if batch_size is None or
    above max_envs, or if a batch exceeds ``max_batch_vram_gb``.
    """
    if batch_size is None:
        raise ValueError("batch_size=None; give the number of rows that your learner takes")
    if max_envs < batch_size:
        raise ValueError(f"max_envs={max_envs} is less than batch_size={batch_size}")
    driver = Creator(env_creator, (), {}, 0)()
    agents, nbytes = driver.num_agents, driver.observations[0].nbytes
    close_env(driver)
    if batch_size * nbytes > max_batch_vram_gb * 1e9:
        raise ValueError(f"a batch takes {batch_size * nbytes / 1e9:.3g} GB; max_batch_vram_gb={max_batch_vram_gb}")
    from pufferlib.tuning.autotune import autotune as tune  # its imports cost more than this module's

    batch_size = max(1, batch_size // agents)
    totals = [times * batch_size for times in (1, 2, 3, 4) if times * batch_size <= max_envs]
    limits: dict[str, Any] = {
        "learner_s": model_forward_s,
        "max_memory": int(max_env_ram_gb * 1e9),
        "budget_s": 6 * time_per_test / len(totals),
    }
    plans: list[Any] = []
    for num_envs in totals:
        try:
            plans.append(tune(Creator(env_creator, (), {}, 0), num_envs=num_envs, batch_size=batch_size, **limits))
        except PlanError:  # more environments do not fit into the memory either
            if not plans:
                raise
            break
    plan = max(plans, key=lambda plan: next(row.median for row in plan.table if row.plan == dict(plan)))
    backend = "Serial" if plan["backend"] == "serial" else "Multiprocessing"
    counts = [f"{name}={plan[name]}" for name in ("num_envs", "num_workers", "batch_size") if name in plan]
    print(f"fastest: make(env_creator, backend={backend}, {', '.join(counts)})")
