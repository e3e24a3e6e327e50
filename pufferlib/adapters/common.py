"""Functions shared by the adapters: guarded imports, creation and checks of VecEnvs, and conversion of rows."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces

from pufferlib.adapters.agent_rows import AgentRows
from pufferlib.construct import make
from pufferlib.errors import MissingExtra, PlanError, PufferError, SpaceError, WorkerError
from pufferlib.layout import Layout, Leaf
from pufferlib.util.annotations import Array, EnvSource, Options, ResetSeed
from pufferlib.vectorization import Batch, Infos, VecEnv
from pufferlib.vectorization.core.parameters import MakeParameters
from pufferlib.vectorization.core.plan import checked_mode

__all__ = [
    "AdapterParameters",
    "LeafRows",
    "actions_for",
    "ends_of",
    "ids_of",
    "make_for",
    "needs",
    "raise_cause",
    "recv_arrays",
    "require_rows",
    "require_synchronous",
    "reset_arrays",
    "space_of",
]


TAKE_ROWS = ("Gymnasium", "Stable-Baselines3", "TorchRL", "skrl")  # libraries whose ``make`` takes agents="rows"
LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class AdapterParameters(MakeParameters, total=False):
    """The parameters of an adapter's ``make``, for the libraries in TAKE_ROWS."""

    agents: str | None


@contextlib.contextmanager
def needs(library: str, extra: str) -> Iterator[None]:
    """Raise MissingExtra, with the pip command, in place of an ImportError in the ``with`` block."""
    try:
        yield
    except ImportError as error:  # not always ModuleNotFoundError: Ray raises its own if RLlib's packages are missing
        raise MissingExtra(
            f'this adapter needs {library} ({error}): pip install "pufferlib[{extra}]"', name=error.name
        ) from error


def make_for(library: str, mode: str, env: EnvSource, kwargs: Mapping[str, object]) -> VecEnv:
    """Return ``pufferlib.make(env, …)`` with the autoreset mode that a library needs.

    kwargs: the parameters in AdapterParameters; ``agents="rows"`` makes each agent a separate environment (see
    AgentRows). Raises PlanError for an unsupported ``agents`` or an autoreset mode other than ``mode``, SpaceError for
    several agents per environment or mixed discrete and continuous actions, and the errors of ``make`` and AgentRows.
    """
    arguments: dict[str, Any] = dict(kwargs)
    autoreset_mode, agents = checked_mode(arguments.pop("autoreset_mode", mode)), arguments.pop("agents", None)
    if autoreset_mode != mode:
        raise PlanError(f"autoreset_mode={autoreset_mode!r}, but {library} counts on {mode!r}; leave it out")
    if agents is not None and library not in TAKE_ROWS:
        raise PlanError(f"agents={agents!r}, but the adapter for {library} cannot make agents rows; leave it out")
    if agents not in (None, "rows"):
        raise PlanError(f'agents={agents!r} is not "rows"; use that, or leave it out for environments of one agent')
    vec = make(env, autoreset_mode=mode, **arguments)
    try:
        if vec.autoreset_mode != mode:
            raise PlanError(
                f"the environment is vectorized already and starts episodes by itself, in {vec.autoreset_mode!r}, but "
                f"{library} counts on {mode!r}; make it with that mode, such as "
                f'gymnasium.make_vec(…, vector_kwargs={{"autoreset_mode": AutoresetMode.{mode.upper()}}})'
            )
        if agents is not None:
            vec = AgentRows(vec)
        require_rows(library, mode, vec)
    except PufferError:
        vec.close()
        raise
    return vec


def require_rows(library: str, mode: str, vec: VecEnv) -> None:
    """Check that a library can use a VecEnv.

    Raises SpaceError for several agents per environment or mixed discrete and continuous actions, PlanError for an
    autoreset mode other than ``mode``.
    """
    if vec.agents_per_env != 1:
        way = "pass an environment of one agent"
        if library in TAKE_ROWS:
            way += ', or agents="rows" to make, for agents with equal spaces that live equally long'
        raise SpaceError(f"{vec.agents_per_env} agents an environment, but {library} supports one; {way}")
    if isinstance(vec.single_action_space, spaces.Tuple):
        raise SpaceError(
            f"actions {vec.single_action_space} are discrete and continuous, for which {library} has no distribution; "
            "wrap the environment so that they are one or the other"
        )
    if vec.autoreset_mode != mode:
        raise PlanError(
            f"autoreset_mode={vec.autoreset_mode!r}, but {library} counts on {mode!r}; "
            f"use make(…, autoreset_mode={mode!r})"
        )


def require_synchronous(library: str, vec: VecEnv) -> None:
    """Raise PlanError unless each batch holds all environments."""
    if vec.agents_per_batch != vec.num_envs:
        raise PlanError(
            f"batches of {vec.agents_per_batch}, but {library} steps all {vec.num_envs} environments at once; "
            "leave batch_size out"
        )


def reset_arrays(
    vec: VecEnv,
    seed: ResetSeed = None,
    options: Options = None,
    env_ids: Sequence[int] | None = None,
) -> tuple[Array, Infos]:
    """Reset a VecEnv and return (observations, infos); observations are a NumPy array even if batches are tensors.

    seed, options, env_ids: as for ``VecEnv.reset``.
    """
    _, infos = vec.reset(seed, options, env_ids)
    batch = vec.host_batch
    assert batch is not None
    return batch.observations, infos


def recv_arrays(vec: VecEnv, timeout: float | None = None) -> Batch:
    """Receive a batch and return it with NumPy arrays, even if batches are tensors.

    The arrays are valid as long as the batch.
    """
    vec.recv(timeout)
    batch = vec.host_batch
    assert batch is not None
    return batch


def raise_cause(error: WorkerError) -> NoReturn:
    """Raise the environment's exception, with the WorkerError as its cause.

    Raises the WorkerError itself if no environment raised, or if the environment's exception is a PufferError.
    """
    cause = error.__cause__
    if cause is None or isinstance(cause, PufferError):
        raise error
    error.__cause__ = None
    raise cause from error


def ends_of(batch: Batch) -> tuple[Array, Array]:
    """Return a batch's (terminations, truncations), bool, as copies.

    A crash counts as a termination, because its row has no observation to bootstrap from.
    """
    crashed = batch.truncations & ~batch.masks
    return batch.terminations | crashed, batch.truncations & ~crashed


def ids_of(indices: Iterable[int], num_envs: int) -> list[int]:
    """Convert indices to environment numbers; negative indices count from the end, as in a list.

    Indices out of range are returned unchanged.
    """
    return [index + num_envs if -num_envs <= index < 0 else index for index in map(int, indices)]


def actions_for(space: spaces.Space[Any], actions: object) -> Any:
    """Return actions unchanged, unless they are whole numbers given as floats for an integer space.

    Such floats, for example Bernoulli samples, are cast to the space's dtype.
    """
    array = np.asarray(actions)
    if array.dtype.kind != "f" or space.dtype is None or space.dtype.kind not in "iub":
        return actions
    with np.errstate(invalid="ignore"):
        integers = array.astype(space.dtype)
    return integers if np.array_equal(integers, array) else actions  # ``send`` raises ActionError for fractions


class LeafRows:
    """A converter of rows for libraries without nested spaces.

    A row of a Dict or Tuple becomes a flat dict with one array per leaf; other rows stay unchanged. ``space`` is the
    space of one converted row. Leaves are named by their keys or, if spaces nest, by their paths, such as "a/b/0".
    Paths have slashes rather than dots, because policies use the names as keys of torch's ModuleDict, which refuses
    dots. If keys with slashes make two names equal, leaves are named by ``Leaf.name`` instead. A Box without dimensions
    gets one, because policies concatenate leaves.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.space: spaces.Space[Any] = layout.flat_space
        if not layout.is_leaf:
            names = ["/".join(map(str, leaf.path)) for leaf in layout.leaves]
            if len(set(names)) < len(names):  # keys with slashes
                names = [leaf.name for leaf in layout.leaves]
            self._keys: dict[str, tuple[Any, ...]] = {}  # by leaf name, the keys from the root to the leaf
            parts: dict[str, spaces.Space[Any]] = {}
            for name, leaf in zip(names, layout.leaves, strict=True):
                parts[name] = part = space_of(layout.space, leaf)
                self._keys[name] = leaf.path
                if isinstance(part, spaces.Box) and part.shape == ():
                    parts[name] = spaces.Box(part.low[None], part.high[None], (1,), leaf.dtype.type)
                    self._keys[name] = (*leaf.path, (..., None))
            self.space = spaces.Dict(parts)

    def of(self, rows: Any) -> Any:
        """Convert one or more rows to the form of ``space``; the results are views."""
        if self._layout.is_leaf:
            return rows
        nested = self._layout.unflatten(rows)
        return {name: functools.reduce(operator.getitem, keys, nested) for name, keys in self._keys.items()}


def space_of(space: spaces.Space[Any] | None, leaf: Leaf) -> spaces.Space[Any]:
    """Return the part of a layout's space that corresponds to a leaf.

    If there is no such part, if its type is not in LEAVES, or if its shape differs from the leaf's, return a Box of the
    leaf's dtype and shape instead.
    """
    for key in leaf.path:
        space = space[key] if isinstance(space, (spaces.Dict, spaces.Tuple)) else None
    if isinstance(space, LEAVES) and space.shape == leaf.shape:
        return space
    low, high = (-np.inf, np.inf) if leaf.dtype.kind == "f" else (np.iinfo(leaf.dtype).min, np.iinfo(leaf.dtype).max)
    return spaces.Box(low, high, leaf.shape, leaf.dtype.type)
