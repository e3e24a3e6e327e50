"""Checks of the arguments of a VecEnv: environment creators, backend options, env ids, reset options."""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pufferlib.emulation.parameters import WrapParameters
from pufferlib.errors import CallError, PlanError
from pufferlib.registry import creator
from pufferlib.util.annotations import EnvCreator, EnvSource, Function, Info, Options
from pufferlib.util.suggestions import near, not_one_of
from pufferlib.vectorization.core.plan import Plan, checked_count
from pufferlib.vectorization.core.step_watchdog import Limits
from pufferlib.vectorization.core.tensors import as_numpy

__all__ = [
    "CHECKS",
    "checked_backend_kwargs",
    "checked_env_args",
    "checked_env_kwargs",
    "checked_fair",
    "checked_ids",
    "checked_limits",
    "checked_restarts",
    "checked_seconds",
    "deadline_of",
    "env_creators",
    "misplaced",
    "options_per_env",
    "require_known",
    "require_one_each",
]

CHECKS = ("first", "always")
WEIGHTS = "weights"
# The keys of backend_kwargs of all backends; each backend's class lists those it accepts.
_OF_RAY = ("address", "resources", "placement", "local_workers", "start_timeout")
BACKEND_ARGUMENTS = ("worker_threads", "spin", *_OF_RAY, "threads", "checked", "telemetry")


def env_creators(
    env: EnvSource,
    num_envs: int | None,
    env_args: Sequence[object],
    env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]] | None,
) -> list[EnvCreator]:
    """Return one creator per environment, to be called without arguments.

    A creator with a parameter ``env_index`` gets the environment's index, unless ``env_kwargs`` has an ``env_index``.
    Raises PlanError for invalid arguments, and the errors of ``registry.creator``.
    """
    if isinstance(env, (list, tuple)):
        require_one_each(env, num_envs)
        makers = [creator(item) for item in env]
    else:
        # ``creator`` refuses any other sequence.
        makers = [creator(env)] * (1 if num_envs is None else Plan.of(num_envs, 1, None).num_envs)  # type: ignore[arg-type]
    arguments = checked_env_args(env_args)  # once: an iterator would be empty for the second environment
    kwargs_list = checked_env_kwargs(env_kwargs, len(makers))
    creators: list[EnvCreator] = []
    for index, (maker, kwargs) in enumerate(zip(makers, kwargs_list, strict=True)):
        extra = {"env_index": index} if accepts_env_index(maker) and "env_index" not in kwargs else {}
        creators.append(functools.partial(maker, *arguments, **extra, **kwargs))
    return creators


def require_one_each(env: Sequence[object], num_envs: int | None) -> None:
    """Raise PlanError unless ``env`` has one item per environment. num_envs: None accepts any length except 0."""
    if num_envs is not None and num_envs != len(env):
        raise PlanError(f"num_envs={num_envs}, but env lists {len(env)} creators; leave num_envs out")
    if not env:
        raise PlanError("env is an empty list; give at least one creator")


def checked_env_args(env_args: Iterable[object]) -> tuple[object, ...]:
    """Return the positional arguments of every environment as a tuple. Raises PlanError if they are not iterable."""
    try:
        return tuple(env_args)
    except TypeError:
        raise PlanError(f"env_args={env_args!r} are no arguments; give a tuple, such as (3,)") from None


def checked_env_kwargs(
    env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]] | None, num_envs: int
) -> Sequence[Mapping[str, object]]:
    """Return a sequence of each environment's keyword arguments.

    env_kwargs: one dict for all environments; or a sequence with one dict per environment; or None for no arguments.
    Raises PlanError for anything else.
    """
    if env_kwargs is None or isinstance(env_kwargs, Mapping):
        return [env_kwargs or {}] * num_envs
    if not isinstance(env_kwargs, Sequence) or not all(isinstance(item, Mapping) for item in env_kwargs):
        raise PlanError(f"env_kwargs={env_kwargs!r} is no dict and no list of dicts; give one dict, or one each")
    if len(env_kwargs) != num_envs:
        raise PlanError(f"env_kwargs lists {len(env_kwargs)} dicts for {num_envs} environments; give one each")
    return env_kwargs


def checked_ids(env_ids: Sequence[int], num_envs: int) -> list[int]:
    """Return env ids as a list.

    Raises CallError if there are none, or if an id is not an integer, does not exist, or is repeated.
    """
    try:
        array = np.asarray(as_numpy(env_ids)).reshape(-1)
    except (TypeError, ValueError):  # ragged lists
        array = np.array([None])
    if array.size == 0:
        raise CallError("env_ids is empty; name at least one environment, or leave it out for all")
    if not np.issubdtype(array.dtype, np.integer):
        raise CallError(f"env_ids={env_ids!r} are not whole numbers; use 0 to {num_envs - 1}")
    ids: list[int] = array.tolist()
    wrong = [env_id for env_id in ids if not 0 <= env_id < num_envs]
    if wrong:
        raise CallError(f"env_ids={wrong} do not exist; use 0 to {num_envs - 1}")
    if len(set(ids)) < len(ids):
        twice = sorted({env_id for env_id in ids if ids.count(env_id) > 1})
        raise CallError(f"env_ids names {twice} more than once; name each environment once")
    return ids


def options_per_env(options: Options, num: int) -> list[Info | None]:
    """Return a list of the reset options of each of ``num`` environments; None means no options.

    options: one mapping for all environments; or a sequence with one mapping or None per environment; or None. Raises
    PlanError for anything else.
    """
    if options is None or isinstance(options, Mapping):
        return [None if options is None else dict(options) for _ in range(num)]
    fine = isinstance(options, Sequence) and len(options) == num
    if not fine or not all(item is None or isinstance(item, Mapping) for item in options):
        raise PlanError(f"options={options!r} is neither a mapping nor a sequence of {num} of them")
    return [None if item is None else dict(item) for item in options]


def require_known(name: str, value: object, known: Sequence[str]) -> None:
    """Raise PlanError unless the value of argument ``name`` is one of the known strings."""
    if not isinstance(value, str) or value not in known:
        raise PlanError(not_one_of(name, value, known))


def misplaced() -> dict[str, Sequence[str]]:
    """Return keywords that users may mistakenly pass to ``make`` itself, keyed by the argument that they belong in."""
    return {
        "wrap_kwargs": [name for name in WrapParameters.__annotations__ if name != "check"],  # make has a check, too
        "backend_kwargs": BACKEND_ARGUMENTS,
    }


def checked_backend_kwargs(
    arguments: Mapping[str, object] | None, known: Sequence[str], backend: str
) -> dict[str, object]:
    """Return a backend's arguments as a dict.

    Raises PlanError if they are neither a mapping nor None, or if one of them is not in ``known``.
    """
    if arguments is not None and not isinstance(arguments, Mapping):
        raise PlanError(f"backend_kwargs={arguments!r} is no dict; backend {backend!r} knows {', '.join(known)}")
    kwargs = dict(arguments or {})
    foreign = sorted(set(kwargs) - set(known), key=str)
    if foreign:
        matches = near(str(foreign[0]), known)
        meant = f"; did you mean {matches[0]}?" if matches else ""
        listed = ", ".join(map(str, foreign))
        raise PlanError(f"backend_kwargs has {listed}, but backend {backend!r} knows {', '.join(known)}{meant}")
    return kwargs


def checked_limits(step_timeout: float | None, reset_timeout: float | None) -> Limits:
    """Return the limits of a step and a reset. Raises PlanError if either is not a valid number of seconds."""
    return Limits(checked_seconds("step_timeout", step_timeout), checked_seconds("reset_timeout", reset_timeout))


def checked_seconds(name: str, value: float | None) -> float | None:
    """Return a time limit in seconds, or None for no limit. Raises PlanError if it is not a valid number of seconds."""
    if value is None:
        return None
    try:
        fine = not isinstance(value, (bool, str)) and 0 < float(value) < math.inf
    except (TypeError, ValueError):
        fine = False
    if not fine:
        raise PlanError(f"{name}={value!r} is impossible; use seconds, more than 0, or None for any time")
    return float(value)


def deadline_of(timeout: float) -> float:
    """Return the value of ``time.monotonic`` after which ``recv(timeout)`` gives up. Raises PlanError for no number."""
    try:
        deadline = time.monotonic() + timeout
    except (TypeError, OverflowError):
        deadline = math.nan
    if math.isnan(deadline):
        raise PlanError(f"timeout={timeout!r:.80} is no number of seconds; use one, or None for no limit")
    return deadline


def checked_restarts(on_error: str, max_restarts: int | None) -> tuple[str, int | None]:
    """Return on_error and max_restarts. Raises PlanError if either is invalid."""
    require_known("on_error", on_error, ("raise", "restart"))
    if max_restarts is None:
        return on_error, None
    return on_error, checked_count("max_restarts", max_restarts, 0, ", or None for no limit")


def checked_fair(fair: str | int | None) -> str | int | None:
    """Return ``fair``: "weights", a number of rows, or None. Raises PlanError for anything else."""
    if fair is None or (isinstance(fair, str) and fair == WEIGHTS):
        return fair
    if isinstance(fair, str):
        raise PlanError(f"fair={fair!r} is unknown; use {WEIGHTS!r}, a number of rows such as 8, or None")
    return checked_count("fair", fair, 1, f" rows, {WEIGHTS!r} or None")


def accepts_env_index(creator: Function) -> bool:
    """Return whether a creator has a parameter ``env_index``."""
    try:
        return "env_index" in inspect.signature(creator).parameters
    except (TypeError, ValueError):  # builtins and some extension types have no signature
        return False
