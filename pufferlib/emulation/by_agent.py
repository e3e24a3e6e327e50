"""Checks of the dicts, keyed by agent, that multi-agent environments return: no agent is missing or unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pufferlib.errors import SpaceError
from pufferlib.util.annotations import AgentId

__all__ = ["COMMON", "checked_info", "checked_step", "lacking", "require_known", "split_reset"]

COMMON = frozenset(("common", "__common__"))  # PettingZoo's and RLlib's keys in infos for values of no single agent
STEP = ("observations", "rewards", "terminations", "truncations", "infos")


def split_reset(result: Any, name: str) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
    """Split a reset's result into observations and infos; infos are {} if they are missing or None.

    Raises SpaceError unless both are mappings.
    """
    observations, infos = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    infos = {} if infos is None else infos
    _require_dicts((observations, infos), ("observations", "infos"), f"{name}.reset")
    return observations, infos


def checked_step(result: Any, name: str, parallel: Any = None, acted: Iterable[AgentId] = ()) -> Any:
    """Check and return the five mappings of a parallel environment's step, with {} in place of infos that are None.

    If rewards or flags are a defaultdict, or another mapping with ``__missing__``, entries are added for the agents in
    ``acted`` that are still in ``parallel.agents`` or ended in this step. Raises SpaceError unless result is a tuple or
    list of five mappings, the last of which may be None.
    """
    if not isinstance(result, (tuple, list)) or len(result) != 5:
        got = f"{len(result)} values" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
        raise SpaceError(
            f"{name}.step returned {got}; expected five dicts by agent: observations, rewards, terminations, "
            "truncations and infos"
        )
    for value in result:
        if type(value) is not dict:
            break
    else:
        return result
    *others, infos = result
    result = (*others, {} if infos is None else infos)
    _require_dicts(result, STEP, f"{name}.step")
    observations, rewards, terminations, truncations, infos = result
    agents = [agent for agent in acted if agent in parallel.agents or terminations.get(agent) or truncations.get(agent)]
    return observations, *(_filled(values, agents) for values in (rewards, terminations, truncations)), infos


def _filled(values: Mapping[Any, Any], agents: Iterable[Any]) -> Mapping[Any, Any]:
    if not hasattr(type(values), "__missing__"):
        return values
    return {**values, **{agent: values[agent] for agent in agents if agent not in values}}


def _require_dicts(values: Iterable[Any], names: Iterable[str], call: str) -> None:
    for value, what in zip(values, names, strict=True):
        if not isinstance(value, Mapping):
            raise SpaceError(
                f"{call} returned {what} that are not a dict but a {type(value).__name__}, {value!r:.60}; return one "
                "by agent"
            )


def checked_info(info: object, agent: AgentId, call: str) -> dict[Any, Any]:
    """Return an agent's info as a dict. Raises SpaceError unless it is a mapping."""
    if isinstance(info, dict):
        return info
    if not isinstance(info, Mapping):
        raise SpaceError(f"{call} returned the info {info!r:.60} for agent {agent!r}; expected a dict")
    return dict(info)


def lacking(name: str, what: str, agent: AgentId, values: Mapping[Any, Any]) -> SpaceError:
    """Return the SpaceError for an agent that acted but is missing from one of a step's dicts."""
    return SpaceError(
        f"{name}.step gave no {what} for agent {agent!r}, which acted; it gave those of {list(values)}: give one to "
        "each agent that acted"
    )


def require_known(call: str, knows: Callable[[AgentId], bool], **dicts: Mapping[Any, Any]) -> None:
    """Raise SpaceError if rewards, flags or infos have a key that is not an agent's name.

    Infos may also have the keys in COMMON and, as PettingZoo allows, other keys whose value is neither a mapping nor
    None; a mapping or None under another key looks like the info of an unknown agent. call: the call that returned the
    dicts, for the error. knows: a function that returns whether a key is an agent's name. dicts: any of rewards,
    terminations, truncations and infos, as keyword arguments.
    """
    for what, values in dicts.items():
        foreign = [agent for agent in values if not knows(agent)]
        if foreign and what == "infos":
            foreign = [key for key in foreign if key not in COMMON and isinstance(values[key], (Mapping, type(None)))]
        if foreign:
            hint = "; put values of no single agent under 'common'" if what == "infos" else ""
            raise SpaceError(
                f"{call} returned {what} for {', '.join(map(repr, foreign))}, which no agent has as its name; use the "
                f"names in agents{hint}"
            )
