"""The arguments of the learner: settings, and arrays, which are checked before compiled code reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pufferlib.errors import PlanError, SpaceError

__all__ = ["OBJECTIVES", "Floats", "Rows", "Settings", "address", "array_of", "joined", "require"]

Floats = NDArray[np.float32]
OBJECTIVES = ("ppo", "a2c")


@dataclass(frozen=True)
class Settings:
    """The settings of an update.

    objective: "ppo", or "a2c", which neither compares with the policy that played nor clips. clip: the distance from 1
    at which PPO bounds ratios of probabilities. advantage_floor: the minimum of the standard deviation by which
    advantages are divided. max_grad_norm: the norm to which larger gradients are scaled down. betas, epsilon: Adam's.
    most_groups: the groups of a minibatch's rows whose gradients are computed at the same time, at most, and then
    added; so how results are rounded depends on it, and a GPU has twice as many blocks to run.
    Raises PlanError for an unknown objective and for numbers out of bounds.
    """

    objective: str = "ppo"
    clip: float = 0.2
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    advantage_floor: float = 0.1
    max_grad_norm: float = 0.5
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-5
    most_groups: int = 16

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise PlanError(f"objective={self.objective!r} is out of bounds; use {', '.join(OBJECTIVES)}")
        for name in ("clip", "advantage_floor", "max_grad_norm", "epsilon"):
            require(name, getattr(self, name), "more than 0", lambda number: number > 0)
        for name in ("entropy_coefficient", "value_coefficient"):
            require(name, getattr(self, name), "a finite number", math.isfinite)
        require("most_groups", self.most_groups, "1 to 1,024", lambda number: 1 <= number <= 1024)
        require("betas", self.betas, "two numbers from 0 to below 1", lambda betas: all(0 <= b < 1 for b in betas))


@dataclass(frozen=True)
class Rows:
    """The rows to learn from, as C-contiguous arrays.

    features: float32 (rows, num_inputs). discrete_actions: int64 (rows, len(nvec)). continuous_actions: float32 (rows,
    num_continuous). log_probs: of the actions, by the policy that played; advantages, returns: float32 (rows,).
    allowed: bool (rows, num_options), the options that were allowed; None: all. masks: bool (rows,), False for rows
    that are ignored, such as those of absent agents, whatever their other columns hold; None: no row is ignored.
    """

    features: Floats
    discrete_actions: NDArray[np.int64]
    continuous_actions: Floats
    log_probs: Floats
    advantages: Floats
    returns: Floats
    allowed: NDArray[np.bool_] | None = None
    masks: NDArray[np.bool_] | None = None


def require(name: str, value: Any, expected: str, accepts: Callable[[Any], bool]) -> None:
    """Raise PlanError unless a setting is accepted. expected: what is, in words."""
    if not accepts(value):
        raise PlanError(f"{name}={value!r} is out of bounds; use {expected}")


def joined(minibatches: Sequence[Any], count: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the rows of all minibatches, and where each begins and ends. Raises SpaceError unless count rows do."""
    for minibatch in minibatches:
        indices = array_of("a minibatch", minibatch, 1)
        if indices.dtype.kind not in "iu" and len(indices):
            raise SpaceError(f"a minibatch has {indices.dtype} indices; give the indices of rows as integers")
    order = np.concatenate([*minibatches, np.empty(0, np.int64)]).astype(np.int64, copy=False)
    if len(order) and not (0 <= order.min() and order.max() < count):
        raise SpaceError(f"minibatches have rows {order.min()} to {order.max()}, and there are {count} rows")
    return order, np.cumsum([0, *map(len, minibatches)], dtype=np.int32)


def array_of(name: str, array: Any, num_dimensions: int) -> NDArray[Any]:
    """Return an array. Raises SpaceError for anything else, and for another number of dimensions."""
    if not isinstance(array, np.ndarray):
        raise SpaceError(f"{name}: a {type(array).__name__}; give a NumPy array, for example tensor.numpy()")
    if array.ndim != num_dimensions:
        raise SpaceError(f"{name}: an array with shape {array.shape}; give one with {num_dimensions} dimensions")
    return array


def address(name: str, array: Any, dtype: Any, shape: tuple[int, ...]) -> int:
    """Return the address of an array's data. Raises SpaceError unless the array is as compiled code expects it."""
    array_of(name, array, len(shape))
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise SpaceError(
            f"{name} are {array.dtype} {array.shape}{'' if array.flags.c_contiguous else ', not contiguous'}; they "
            f"have to be a C-contiguous array, {np.dtype(dtype)} {shape}"
        )
    return int(array.ctypes.data)
