"""Recordings of what real environments returned, in files that any version of NumPy and Gymnasium reads.

A recording is a dict:

    agents       None, or the names of all possible agents of a PettingZoo environment
    observation  the space of observations as ``described`` returns it; with agents, a dict of one for each
    action       the same of actions
    episodes     a list of (what ``reset`` returned, what each ``step`` returned); with agents each of these is a pair:
                 ``env.agents`` after the call, and what it returned
    notes        which objects the environment returned again instead of new ones, and where it was recorded

Results are copied when they are returned, so an object that an environment returns again is recorded once a step.
``benchmarks/record.py`` writes recordings; ``replayed.py`` and ``agents.py`` replay them. Imports NumPy and Gymnasium
only, as it is imported in the virtual environment of every library.
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
    """Return the file of a recording: its name's, or the path itself."""
    return Path(recording) if recording.endswith(".pickle") else FOLDER / f"{recording}.pickle"


# --------------------------------------------------------------------------------------------------------- spaces


def described(space: spaces.Space[Any]) -> tuple[Any, ...]:
    """Return a space as numbers, strings and arrays. Raises TypeError for a class that is none of Gymnasium's."""
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
    """Return the space that was described."""
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
    """Play a Gymnasium environment with actions that its own space draws, and return the recording.

    An episode that is not over after the last step is recorded as truncated there.
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
    """Play a PettingZoo ParallelEnv likewise, its living agents with actions of their own."""
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
    """Notes which objects an environment returns in one step and again in the next, and which arrays are views."""

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
    """Return a copy of a result. Raises TypeError for what another virtual environment could not read."""
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
    """Write a recording, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_bytes(pickle.dumps(recording, protocol=4))
    part.rename(path)


@functools.cache
def load(recording: str) -> dict[str, Any]:
    """Return a recording, read once a process. Raises FileNotFoundError, with the command that makes it."""
    path = path_of(recording)
    if not path.exists():
        raise FileNotFoundError(f"{path.name} is not recorded yet: python -m benchmarks.record {path.stem}")
    with open(path, "rb") as file:
        content: dict[str, Any] = _fresh(_Unpickler(file).load())
    return content


class _Unpickler(pickle.Unpickler):
    """Finds what NumPy 2 keeps in ``numpy._core`` where NumPy 1 has it."""

    def find_class(self, module: str, name: str) -> Any:
        if np.__version__.startswith("1."):
            module = module.replace("numpy._core", "numpy.core")
        return super().find_class(module, name)


def _fresh(value: Any) -> Any:
    """Return what was read as an environment makes it: keys interned as those in a program, dtypes NumPy's own objects.

    Compiled code may compare either by identity first, so a recording must not be slower there than what it replays.
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
