"""Recordings of the results of real environments, in files that every version of NumPy and Gymnasium can read.

A recording is a dict:

    agents       None, or the names of all possible agents of a PettingZoo environment
    observation  the observation space as returned by ``described``; with agents, a dict of one per agent
    action       the same for the action space
    episodes     a list of (the result of ``reset``, the results of ``step``); with agents each result is a pair:
                 ``env.agents`` after the call, and its return value
    notes        the objects that the environment returned again instead of new ones, and the versions of packages

Results are copied when they are returned, so an object that an environment returns again is recorded in each step.
``benchmarks/record.py`` writes recordings; ``replayed.py`` and ``agents.py`` replay them. Imports only NumPy and
Gymnasium, since the virtual environments of all libraries import it.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections import OrderedDict, defaultdict
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

__all__ = ["FOLDER", "STEPS", "built", "described", "load", "path_of", "record", "record_agents", "store"]

FOLDER = Path(__file__).parent / ".recordings"
STEPS = 1000
SEED = 7

ATOMS = (type(None), bool, int, float, complex, str, bytes)
DICTS = (dict, OrderedDict, defaultdict)


def path_of(recording: str) -> Path:
    """Return the file of a recording, which is given by its name or by the path of a .pickle file."""
    return Path(recording) if recording.endswith(".pickle") else FOLDER / f"{recording}.pickle"


# --------------------------------------------------------------------------------------------------------- spaces


def described(space: spaces.Space[Any]) -> tuple[Any, ...]:
    """Describe a space by numbers, strings and arrays. Raises TypeError for classes other than Gymnasium's."""
    kind = type(space)
    if kind is spaces.Box:
        return "Box", space.low, space.high, np.dtype(space.dtype).str
    if kind is spaces.Discrete:
        return "Discrete", int(space.n), int(space.start)
    if kind is spaces.MultiBinary:
        return "MultiBinary", np.array(space.n).tolist()
    if kind is spaces.MultiDiscrete:
        return "MultiDiscrete", space.nvec, np.dtype(space.dtype).str
    if kind is spaces.Text:
        return "Text", space.min_length, space.max_length, "".join(space.character_list)
    if kind is spaces.Dict:
        return "Dict", [(key, described(part)) for key, part in space.spaces.items()]
    if kind is spaces.Tuple:
        return "Tuple", [described(part) for part in space.spaces]
    raise TypeError(f"a recording cannot hold a space of {kind.__module__}.{kind.__qualname__}")


def built(description: tuple[Any, ...]) -> spaces.Space[Any]:
    """Return the space of a description."""
    kind, *arguments = description
    if kind == "Box":
        low, high, dtype = arguments
        return spaces.Box(low, high, dtype=np.dtype(dtype).type)
    if kind == "Discrete":
        return spaces.Discrete(arguments[0], start=arguments[1])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(arguments[0], dtype=np.dtype(arguments[1]).type)
    if kind == "Text":
        least, most, charset = arguments
        return spaces.Text(most, min_length=least, charset=charset)
    if kind == "Dict":
        return spaces.Dict({key: built(part) for key, part in arguments[0]})
    if kind == "Tuple":
        return spaces.Tuple([built(part) for part in arguments[0]])
    assert kind == "MultiBinary", kind
    return spaces.MultiBinary(arguments[0])


# ------------------------------------------------------------------------------------------------------- recording


def record(env: Any, steps: int = STEPS, seed: int = SEED) -> dict[str, Any]:
    """Play a Gymnasium environment with actions drawn from its space, and return the recording.

    An episode that is not over after the last step is recorded as truncated by it.
    """
    env.action_space.seed(seed)
    episodes: list[Any] = []
    returned = _Again("observation", "info")
    begin = env.reset(seed=seed)
    count = 0
    while count < steps:
        results: list[Any] = []
        episodes.append((_copied(begin), results))
        over = False
        while not over and count < steps:
            result = env.step(env.action_space.sample())
            returned.note(result[0], result[-1])
            results.append(_copied(result))
            count += 1
            over = bool(result[2]) or bool(result[3])
        if not over:
            observation, reward, terminated, truncated, info = results[-1]
            results[-1] = (observation, reward, terminated, type(truncated)(True), info)
        elif count < steps:
            begin = env.reset()
    return {
        "agents": None,
        "observation": described(env.observation_space),
        "action": described(env.action_space),
        "episodes": episodes,
        "notes": returned.notes(),
    }


def record_agents(env: Any, steps: int = STEPS, seed: int = SEED) -> dict[str, Any]:
    """Play a PettingZoo ParallelEnv, each living agent with actions from its space, and return the recording."""
    agents = list(env.possible_agents)
    for number, agent in enumerate(agents):
        env.action_space(agent).seed(seed + number)
    episodes: list[Any] = []
    returned = _Again("dict of observations", "dict of infos", "first agent's observation", "first agent's info")
    begin = env.reset(seed=seed)
    count = 0
    while count < steps:
        results: list[Any] = []
        episodes.append(((list(env.agents), _copied(begin)), results))
        while env.agents and count < steps:
            result = env.step({agent: env.action_space(agent).sample() for agent in env.agents})
            observations, infos = result[0], result[-1]
            returned.note(
                observations, infos, *(next(iter(by_agent.values()), None) for by_agent in (observations, infos))
            )
            results.append((list(env.agents), _copied(result)))
            count += 1
        if env.agents:
            observations, rewards, terminations, truncations, infos = results[-1][1]
            results[-1] = ([], (observations, rewards, terminations, dict.fromkeys(truncations, True), infos))
        elif count < steps:
            begin = env.reset()
    return {
        "agents": agents,
        "observation": {agent: described(env.observation_space(agent)) for agent in agents},
        "action": {agent: described(env.action_space(agent)) for agent in agents},
        "episodes": episodes,
        "notes": returned.notes(),
    }


class _Again:
    """A record of the objects that an environment returns in two consecutive steps, and of non-contiguous arrays."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._last: tuple[Any, ...] = ()
        self._again: set[str] = set()
        self._strided: set[str] = set()

    def note(self, *objects: Any) -> None:
        for name, now, before in zip(self._names, objects, self._last or [None] * len(objects), strict=True):
            if now is before and not isinstance(now, ATOMS):
                self._again.add(name)
            if isinstance(now, np.ndarray) and not now.flags.c_contiguous:
                self._strided.add(name)
        self._last = objects

    def notes(self) -> dict[str, Any]:
        return {"returned again": sorted(self._again), "not contiguous": sorted(self._strided)}


def _copied(value: Any) -> Any:
    """Return a copy of a result. Raises TypeError for types that another virtual environment might lack."""
    _check(value)
    return deepcopy(value)


def _check(value: Any) -> None:
    kind = type(value)
    if kind in DICTS:
        for key, item in value.items():
            _check(key)
            _check(item)
    elif kind in (tuple, list):
        for item in value:
            _check(item)
    elif not (kind in ATOMS or isinstance(value, np.generic) or (kind is np.ndarray and value.dtype != object)):
        raise TypeError(f"a recording cannot hold a {kind.__module__}.{kind.__qualname__}: {value!r:.200}")


# ----------------------------------------------------------------------------------------------------------- files


def store(recording: dict[str, Any], path: Path) -> None:
    """Write a recording atomically."""
    part = path.with_suffix(".part")
    part.write_bytes(pickle.dumps(recording, protocol=4))
    part.rename(path)


@functools.cache
def load(recording: str) -> dict[str, Any]:
    """Return a recording, read once per process. Raises FileNotFoundError with the command that makes it."""
    path = path_of(recording)
    if not path.exists():
        raise FileNotFoundError(f"{path.name} is not recorded yet: python -m benchmarks.record {path.stem}")
    with open(path, "rb") as file:
        content: dict[str, Any] = _fresh(_Unpickler(file).load())
    return content


class _Unpickler(pickle.Unpickler):
    """An unpickler that finds the contents of NumPy 2's ``numpy._core`` in NumPy 1, too."""

    def find_class(self, module: str, name: str) -> Any:
        if np.__version__.startswith("1."):
            module = module.replace("numpy._core", "numpy.core")
        return super().find_class(module, name)


def _fresh(value: Any) -> Any:
    """Return a value as an environment would make it: with interned keys, and NumPy's dtype objects, not copies.

    Compiled code may compare both by identity first, and a replay must not be slower than its environment there.
    """
    kind = type(value)
    if kind in DICTS:
        items = [(sys.intern(key) if type(key) is str else key, _fresh(item)) for key, item in value.items()]
        result = copy(value)
        result.clear()
        result.update(items)
        return result
    if kind in (tuple, list):
        return kind(_fresh(item) for item in value)
    if kind is str and len(value) < 32:
        return sys.intern(value)
    if kind is np.ndarray:
        array = np.empty_like(value, dtype=np.dtype(value.dtype.str))
        array[...] = value
        return array
    return value
