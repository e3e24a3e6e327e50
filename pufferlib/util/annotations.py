"""Types used in annotations across the package.

A value that pufferlib only passes on, such as an info's value or the result of an environment's method, is
annotated as ``object``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np

__all__ = [
    "AgentId",
    "AgentInfos",
    "Array",
    "DType",
    "Entropy",
    "EnvCreator",
    "EnvSource",
    "Function",
    "Guard",
    "GymnasiumEnv",
    "Info",
    "Keywords",
    "Metadata",
    "Options",
    "ParallelEnv",
    "ResetSeed",
    "RowActions",
]

# NumPy's stubs compute only with arrays whose dtype is known, or Any. Shapes and dtypes are stated next to each array.
Array = np.ndarray[Any, Any]
DType = np.dtype[Any]
RowActions = Array | tuple[Array, ...]  # rows of actions: one array, or one for each part of a Tuple space

Info = dict[str, object]
Metadata = dict[str, Any]  # as Gymnasium annotates an environment's
AgentInfos = list[tuple[int | None, Info]]  # of one environment: by agent index, None for the environment
AgentId = Hashable  # PettingZoo's name of an agent
ResetSeed = int | Sequence[int | None] | None  # for all environments, or one each
Options = Mapping[str, object] | Sequence[Mapping[str, object] | None] | None  # of a reset: for all, or one each
Entropy = int | Sequence[int] | None  # of a numpy.random.SeedSequence

Function = Callable[..., Any]  # a function of the user's, with any arguments
Keywords = dict[str, Any]  # arguments of the user's, which the function that takes them checks
EnvCreator = Callable[[], object]
EnvSource = Function | str | Sequence[Function | str]  # what ``pufferlib.make`` makes environments of

GymnasiumEnv = gymnasium.Env[Any, Any]


class ParallelEnv(Protocol):
    """The interface of a PettingZoo parallel environment; PettingZoo itself provides no types for it."""

    agents: list[Any]

    def observation_space(self, agent: Any, /) -> gymnasium.Space[Any]: ...

    def action_space(self, agent: Any, /) -> gymnasium.Space[Any]: ...

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]: ...

    def step(self, actions: dict[Any, Any], /) -> tuple[Any, Any, Any, Any, Any]: ...


class Guard(Protocol):
    """An object whose ``owner`` is the id of the thread that is inside a call, or 0 if there is none."""

    owner: int
