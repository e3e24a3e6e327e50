"""Emulation simplifies one environment: flat spaces, a fixed number of rows, unambiguous ends of episodes.

``wrap`` returns an environment of the same kind with flat spaces; ``emulate`` returns the rows that workers step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, Literal

import gymnasium

from pufferlib.emulation.gymnasium_env import EmulatedEnv, GymnasiumRows
from pufferlib.emulation.native import NativeEnv, native_rows
from pufferlib.emulation.rows import RowEnv, Rows
from pufferlib.emulation.single_agent import own_attribute
from pufferlib.emulation.vectorized import VectorRows, is_vectorized
from pufferlib.environment import PufferEnv
from pufferlib.errors import MissingExtra, PlanError, SpaceError
from pufferlib.registry import creator
from pufferlib.util.suggestions import says_what_was_meant

__all__ = ["RowEnv", "Rows", "emulate", "wrap"]

_MULTI_AGENT = ("max_agents", "observation_space", "action_space", "state", "agent_type")
_DEFAULTS = (("check", "first"), ("state", False), ("agent_type", False))  # treated as not passed


@says_what_was_meant()
def wrap(
    env: Any,
    *,
    max_length: int | None = None,
    max_nodes: int | None = None,
    max_edges: int | None = None,
    bounds: Mapping[str, Mapping[str, int]] | None = None,
    max_agents: int | None = None,
    observation_space: gymnasium.Space[Any] | None = None,
    action_space: gymnasium.Space[Any] | None = None,
    action_mask: bool | None = None,
    state: bool = False,
    agent_type: bool | Callable[[Any], str] = False,
    check: Literal["first", "always"] = "first",
) -> Any:
    """Return env with flat spaces: a Gymnasium environment as one, a PettingZoo environment as a parallel one.

    env: a Gymnasium environment (also one of old gym, or of the same interface), a PettingZoo parallel or AEC
    environment, or a PufferEnv (one agent: Gymnasium; several: parallel). A wrapped one is returned unchanged. Also a
    name, as in ``pufferlib.make``: its environment is made without arguments, a Gymnasium id by ``gymnasium.make``.
    Rewards that are a list (several players under Gymnasium's API) are summed; info["rewards"] keeps the list.
    max_length, max_nodes, max_edges: sizes that the spaces leave open (Text, Sequence, Graph); bounds: the same for
    single leaves, {"path.to.leaf": {"max_length": 5}}.
    max_agents: the most agents that are alive at once; rows need it where an environment has neither possible_agents
        nor PettingZoo's max_num_agents.
    observation_space, action_space: as large as any agent's, for rows of environments that do not know all agents'
    spaces at the start.
    action_mask: whether info["action_mask"] becomes a leaf of the observations, next to "observation"; int8, one
    element a discrete action. By default PettingZoo environments are reset once to look for it; others are not.
    state: whether a PettingZoo environment's state(), after each reset and step, becomes the leaf "state" of each
    agent's observation, of its state_space, for centralized critics; it is zeros in the rows of absent agents.
    agent_type: whether the number of an agent's type becomes the leaf "agent_type", a Discrete. The type is the agent's
    name without "_" and a number at its end, or the str that a function of the agent returns; types are numbered in
    order of appearance in possible_agents. Both leaves lie next to "action_mask" in an observation that has it at its
    top, else next to "observation".
    check: "first" fully checks the results of the first reset and the first step, then shapes and dtypes; "always" all.

    Raises SpaceError for an env that is no environment or whose spaces cannot be flattened; PlanError for arguments
    that do not apply to env; RegistryError for unknown names; MissingExtra if a needed package is not installed.
    """
    arguments = _explicit_arguments(locals())
    if isinstance(env, str):
        env = creator(env)()
        try:
            return wrap(env, **arguments)
        except BaseException:
            env.close()  # no one else has it
            raise
    if _wrapped(env, arguments):
        return env
    kind = _kind(env)
    if kind == "vectorized":
        raise SpaceError(
            f"{type(env).__name__} holds {env.num_envs} environments, and vectorized environments cannot be wrapped as "
            "one; pass what makes it to pufferlib.make, where each of its copies becomes a row"
        )
    _require_applicable(kind, env, arguments)
    if kind == "native":
        return NativeEnv(env) if env.num_agents == 1 else _pettingzoo_env().NativeParallelEnv(env)
    if kind == "gymnasium":
        return EmulatedEnv(env, **arguments)
    return _pettingzoo_env().EmulatedParallelEnv(env, **arguments)


@says_what_was_meant()
def emulate(
    env: Any,
    *,
    max_length: int | None = None,
    max_nodes: int | None = None,
    max_edges: int | None = None,
    bounds: Mapping[str, Mapping[str, int]] | None = None,
    max_agents: int | None = None,
    observation_space: gymnasium.Space[Any] | None = None,
    action_space: gymnasium.Space[Any] | None = None,
    action_mask: bool | None = None,
    state: bool = False,
    agent_type: bool | Callable[[Any], str] = False,
    check: Literal["first", "always"] = "first",
) -> RowEnv:
    """Return env, of any kind that ``wrap`` takes, as a fixed number of rows.

    max_length, max_nodes, max_edges, bounds, max_agents, observation_space, action_space, action_mask, state,
    agent_type, check: as in ``wrap``.

    A wrapped environment keeps the arguments of its ``wrap``. A vector environment (Gymnasium's, ALE's, EnvPool's) also
    works: each of its copies is a row. Raises as ``wrap``, and PlanError where the number of rows is unknown.
    """
    arguments = _explicit_arguments(locals())
    if _wrapped(env, arguments):
        return emulate(env.raw, **env.wrap_kwargs)
    kind = _kind(env)
    _require_applicable(kind, env, arguments)
    if kind == "native":
        return native_rows(env, check=check)
    if kind == "gymnasium":
        return GymnasiumRows(env, **arguments)
    if kind == "vectorized":
        return VectorRows(env, **arguments)
    from pufferlib.emulation.pettingzoo_rows import PettingZooRows

    return PettingZooRows(env, **arguments)


def _explicit_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in arguments.items()
        if name != "env" and value is not None and (name, value) not in _DEFAULTS
    }


def _wrapped(env: object, arguments: dict[str, Any]) -> bool:
    if not hasattr(type(env), "wrap_kwargs"):
        return False
    if arguments:
        raise PlanError(
            f"this environment is wrapped already, so {_names(arguments)} cannot be set; pass env.raw instead"
        )
    return True


def is_wrapped(env: object) -> bool:
    """Return whether the user has wrapped an environment, directly or below other wrappers."""
    while env is not None and not hasattr(type(env), "wrap_kwargs"):
        env = own_attribute(env, "env")
    return env is not None


def _kind(env: object) -> Literal["native", "vectorized", "gymnasium", "pettingzoo"]:
    if isinstance(env, PufferEnv):
        return "native"
    if is_vectorized(env):  # first, because EnvPool's and Gymnasium 0.29's are also gymnasium.Env
        return "vectorized"
    if isinstance(env, gymnasium.Env):
        return "gymnasium"
    space = getattr(env, "observation_space", None)
    steps = callable(getattr(env, "step", None)) and callable(getattr(env, "reset", None))
    if not isinstance(env, type) and steps and space is not None:
        return "pettingzoo" if callable(space) else "gymnasium"
    raise SpaceError(
        f"expected a Gymnasium or PettingZoo environment or a PufferEnv, got {env!r}"
        + ("; pass the environment, or its name, not what makes it" if callable(env) else "")
    )


def _require_applicable(kind: str, env: object, arguments: dict[str, Any]) -> None:
    if kind == "native":
        unsupported = set(arguments) - {"check"}
        reason = "is a PufferEnv, which sets its rows itself"
    elif kind == "gymnasium":
        unsupported = set(arguments) & set(_MULTI_AGENT)
        reason = "has one agent, whose spaces are known"
    elif kind == "vectorized":
        unsupported = set(arguments) & {*_MULTI_AGENT, "action_mask"}
        reason = "is vectorized, with a row for each of its copies"
    else:
        return
    if unsupported:
        raise PlanError(f"{type(env).__name__} {reason}: {_names(unsupported)} cannot be set")


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _pettingzoo_env() -> ModuleType:
    try:
        from pufferlib.emulation import pettingzoo_env
    except ImportError as error:
        raise MissingExtra("environments of several agents need PettingZoo: pip install pettingzoo") from error
    return pettingzoo_env
