"""Emulation: flat spaces, a fixed number of rows and unambiguous ends of episodes for any environment.

``wrap`` returns a Gymnasium environment or a PettingZoo parallel environment with flat spaces. ``emulate`` returns a
RowEnv, which workers step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Literal

import gymnasium

from pufferlib.emulation.gymnasium_env import EmulatedEnv, GymnasiumRows
from pufferlib.emulation.native import NativeEnv, native_rows
from pufferlib.emulation.parameters import WrapParameters
from pufferlib.emulation.rows import RowEnv, Rows
from pufferlib.emulation.single_agent import own_attribute
from pufferlib.emulation.vectorized import VectorRows, is_vectorized
from pufferlib.environment import PufferEnv
from pufferlib.errors import MissingExtra, PlanError, SpaceError
from pufferlib.registry import creator
from pufferlib.util import compat_names
from pufferlib.util.parameters import Unpack, keywords_of
from pufferlib.util.suggestions import says_what_was_meant

__all__ = ["RowEnv", "Rows", "emulate", "wrap"]

__getattr__ = functools.partial(compat_names.member, __name__)  # the names that PufferLib has here

_MULTI_AGENT = ("max_agents", "observation_space", "action_space", "state", "agent_type")
_DEFAULTS = {keyword.name: keyword.default for keyword in keywords_of(WrapParameters) if keyword.default is not None}


@says_what_was_meant(parameters=WrapParameters)
def wrap(env: Any, **kwargs: Unpack[WrapParameters]) -> Any:
    """Wrap an environment so that its observation and action spaces are flat.

    A Gymnasium environment stays one; a PettingZoo environment, AEC or parallel, becomes a parallel one.

    env: a Gymnasium environment (or one of old gym, or any object with the same interface), a PettingZoo parallel or
        AEC environment, or a PufferEnv, which becomes a Gymnasium environment if it has one agent, else a parallel
        one. A wrapped environment is returned unchanged. env may also be a name, as in ``pufferlib.make``: the
        environment is then created without arguments; for a Gymnasium id, by ``gymnasium.make``. Rewards that are a
        list (several players under Gymnasium's API) are summed; info["rewards"] keeps the list.
    max_length, max_nodes, max_edges: bounds for spaces of variable size (Text, Sequence, Graph). bounds: the same for
        single leaves, {"path.to.leaf": {"max_length": 5}}.
    max_agents: the maximum number of agents alive at once; ``emulate`` needs it for an environment that has neither
        possible_agents nor PettingZoo's max_num_agents.
    observation_space, action_space: spaces at least as large as those of every agent, for the rows of an environment
        whose agents' spaces are not all known at the start. Pass both or neither.
    action_mask: whether info["action_mask"] becomes a leaf of the observations, next to "observation". The leaf is
        int8, with one element per option of the discrete actions. By default, a PettingZoo environment is reset once
        to look for a mask in its infos, and no other environment gets the leaf.
    state: whether a PettingZoo environment's state(), read after each reset and step, becomes the leaf "state" of each
        agent's observation, for centralized critics. The leaf's space is the environment's state_space; in the rows of
        absent agents, the leaf is zeros.
    agent_type: whether the number of an agent's type becomes the leaf "agent_type", a Discrete. The type is the agent's
        name without a trailing "_" and number, or the str that agent_type, if it is a function, returns for the agent;
        types are numbered by first appearance in possible_agents. The leaves "state" and "agent_type" lie next to
        "action_mask" if an observation has it at the top, else next to "observation".
    check: "first" fully checks the first reset and the first step, and only shapes and dtypes after that; "always"
        fully checks every reset and step.

    Raises SpaceError if env is not an environment or its spaces cannot be flattened, and for a PufferEnv for PufferLib
    2 or 3, which is its own vector environment; PlanError for arguments that do not apply to env; RegistryError for an
    unknown name; MissingExtra if a required package is not installed.
    """
    arguments = _explicit_arguments(kwargs)
    if isinstance(env, str):
        env = creator(env)()
        try:
            return wrap(env, **arguments)
        except BaseException:
            env.close()  # the caller has no reference to it
            raise
    if _wrapped(env, arguments):
        return env
    kind = _kind(env)
    if kind == "vectorized":
        raise SpaceError(
            f"{type(env).__name__} holds {env.num_envs} environments, and vectorized environments cannot be wrapped as "
            "one; pass a function that makes it to pufferlib.make, where each of its copies becomes a row"
        )
    _require_applicable(kind, env, arguments)
    if kind == "native" and hasattr(type(env), "as_rows"):
        raise SpaceError(
            f"{type(env).__name__} is a PufferEnv for PufferLib 2 or 3, which returns all its agents' rows and cannot "
            "be wrapped; call its own reset and step, or pass its class to pufferlib.make"
        )
    if kind == "native":
        return NativeEnv(env) if env.num_agents == 1 else _pettingzoo_env().NativeParallelEnv(env)
    if kind == "gymnasium":
        return EmulatedEnv(env, **arguments)
    return _pettingzoo_env().EmulatedParallelEnv(env, **arguments)


@says_what_was_meant(parameters=WrapParameters)
def emulate(env: Any, *sample: Any, **kwargs: Unpack[WrapParameters]) -> RowEnv:
    """Return an environment as a RowEnv, with a fixed number of rows.

    Takes the arguments of ``wrap``. With a second positional argument, ``sample``, this is instead PufferLib's function
    of the same name, which writes a sample into a structured array and returns None.

    env: any environment that ``wrap`` accepts, but not a name; or a vector environment (Gymnasium's, ALE's or
    EnvPool's), each of whose copies is a row; or an object with a method ``as_rows``, which takes the arguments and
    returns the RowEnv. A wrapped environment keeps the arguments of its ``wrap``. Raises the errors of ``wrap``, and
    PlanError if the number of rows is unknown.
    """
    if sample:
        rows: RowEnv = compat_names.member(__name__, "emulate")(env, *sample)
        return rows
    arguments = _explicit_arguments(kwargs)
    if hasattr(type(env), "as_rows"):
        rows = env.as_rows(**arguments)
        return rows
    if _wrapped(env, arguments):
        return emulate(env.raw, **env.wrap_kwargs)
    kind = _kind(env)
    _require_applicable(kind, env, arguments)
    if kind == "native":
        return native_rows(env, **arguments)
    if kind == "gymnasium":
        return GymnasiumRows(env, **arguments)
    if kind == "vectorized":
        return VectorRows(env, **arguments)
    from pufferlib.emulation.pettingzoo_rows import PettingZooRows

    return PettingZooRows(env, **arguments)


def _explicit_arguments(arguments: WrapParameters) -> dict[str, Any]:
    """Return the arguments that are not None and differ from their defaults."""
    return {
        name: value for name, value in arguments.items() if value is not None and (name, value) not in _DEFAULTS.items()
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
    """Return whether an environment, or one that it wraps, was made by ``wrap``."""
    while env is not None and not hasattr(type(env), "wrap_kwargs"):
        env = own_attribute(env, "env")
    return env is not None


def _kind(env: object) -> Literal["native", "vectorized", "gymnasium", "pettingzoo"]:
    if isinstance(env, PufferEnv):
        return "native"
    if is_vectorized(env):  # first, because EnvPool's and those of Gymnasium 0.29 are also gymnasium.Env
        return "vectorized"
    if isinstance(env, gymnasium.Env):
        return "gymnasium"
    space = getattr(env, "observation_space", None)
    steps = callable(getattr(env, "step", None)) and callable(getattr(env, "reset", None))
    if not isinstance(env, type) and steps and space is not None:
        return "pettingzoo" if callable(space) else "gymnasium"
    raise SpaceError(
        f"expected a Gymnasium or PettingZoo environment or a PufferEnv, got {env!r}"
        + ("; pass the environment or its name, not a function that makes it" if callable(env) else "")
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
