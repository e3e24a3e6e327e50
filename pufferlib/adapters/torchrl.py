"""A TorchRL environment on pufferlib's workers: one EnvBase whose TensorDicts have a row per environment.

    env = pufferlib.adapters.torchrl.make("ocean/squared", num_envs=64, backend="multiprocessing")
    Collector(env, policy, frames_per_batch=4096)

For details, see docs/adapters.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from pufferlib.adapters.common import (
    AdapterParameters,
    actions_for,
    ends_of,
    make_for,
    needs,
    recv_arrays,
    require_rows,
    require_synchronous,
    reset_arrays,
    space_of,
)
from pufferlib.errors import CallError, SpaceError
from pufferlib.layout import Leaf
from pufferlib.util.annotations import Array, EnvSource
from pufferlib.util.parameters import Unpack
from pufferlib.util.renamed import renamed_members
from pufferlib.vectorization import VecEnv

with needs("torchrl", "torchrl"):
    import torch
    from tensordict import TensorDict
    from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded
    from torchrl.envs import EnvBase

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torchrl.data import TensorSpec

__all__ = ["TorchRLVecEnv", "make"]

LIBRARY, MODE = "TorchRL", "disabled"
THEIRS = {"action", "reward", "done", "terminated", "truncated", "next"}  # keys of TensorDicts


class TorchRLVecEnv(EnvBase):
    """A TorchRL EnvBase backed by a VecEnv.

    vec: a synchronous VecEnv with one agent per environment and ``autoreset_mode="disabled"``. ``batch_size`` is
    (num_envs,), or () for one environment, as in TorchRL's GymEnv. Keys: "observation" (for a Dict or Tuple space, the
    path of each leaf instead), "action" (discrete actions are flattened and numbered from 0, or one-hot if ``one_hot``
    is True), "reward" (\\*batch_size, 1) float32, "terminated", "truncated", "done". All tensors are copies, on the CPU
    or on the device to which ``to`` has moved the environment. Infos are in ``vec.batch.infos``. ``set_seed`` seeds the
    next reset of all environments.

    TorchRL resets environments whose episodes have ended, with "_reset". If TorchRL has not done so, as after a rollout
    that stopped at these ends, the next step first starts new episodes in these environments and then plays its
    actions. "_step" may leave environments that are done out of a step; their values then stay those of their last
    step. An episode that ends in a crash is "terminated", so that nothing is bootstrapped from it.

    again: a function that makes an equal VecEnv, for a reset after ``close``. TorchRL's collectors close the
    environment when their last batch is complete. Users may reset the environment after that, as they may reset
    TorchRL's own environments.

    Raises PlanError if vec is not synchronous or has another autoreset mode; SpaceError if it has several agents per
    environment, mixed discrete and continuous actions, or an observation key that TorchRL reserves.
    """

    def __init__(self, vec: VecEnv, one_hot: bool = False, again: Callable[[], VecEnv] | None = None) -> None:
        require_rows(LIBRARY, MODE, vec)
        require_synchronous(LIBRARY, vec)
        shape = () if vec.num_envs == 1 else (vec.num_envs,)
        super().__init__(device="cpu", batch_size=shape)
        self.vec, self._again = vec, again
        self._layout = layout = vec.observation_layout
        self._seed: int | None = None
        self._overs = np.zeros(vec.num_envs, np.bool_)  # whether each episode is over
        self._ended: TensorDict = None  # the result of the last step, if some episodes are over
        first = getattr(vec.single_action_space, "start", 0)  # the first choice; TorchRL counts from 0
        self._first = np.asarray(first) if np.any(first) else None
        self._num_choices = _num_choices(vec.single_action_space) if one_hot else []
        self._paths = [tuple(map(str, leaf.path)) or "observation" for leaf in layout.leaves]
        if taken := THEIRS.intersection(path[0] for path in self._paths if isinstance(path, tuple)):
            raise SpaceError(
                f"observations have the key {min(taken)!r}, which is TorchRL's own in TensorDicts; "
                "wrap the environment so that it has another name"
            )
        self.observation_spec = Composite(
            {
                path: _expanded(_observation_spec(space_of(layout.space, leaf), leaf), shape)
                for path, leaf in zip(self._paths, layout.leaves, strict=True)
            },
            shape=shape,
        )
        self.action_spec = _expanded(_action_spec(vec.single_action_space, one_hot), shape)
        self.reward_spec = Unbounded((*shape, 1))
        flag = Categorical(2, dtype=torch.bool, shape=(*shape, 1))
        self.done_spec = Composite({key: flag.clone() for key in ("done", "terminated", "truncated")}, shape=shape)

    def _reset(self, tensordict: TensorDict | None = None, **_: object) -> TensorDict:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if self.vec.closed and self._again is not None:
            self.vec, self.is_closed, mask = self._again(), False, None
        ids = None if mask is None or mask.all() else torch.nonzero(mask.reshape(-1)).reshape(-1).tolist()
        batch = self.vec.host_batch
        if ids == [] and batch is not None:
            rows = batch.observations
        else:
            rows = reset_arrays(self.vec, self._seed if ids is None else None, env_ids=ids)[0]
            self._overs[... if ids is None else ids] = False
        if ids is None:
            self._seed = None
        return TensorDict(self._observations(rows), batch_size=self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDict) -> TensorDict:
        actions, space = tensordict.get("action").detach().cpu(), self.vec.single_action_space
        if self._num_choices:
            actions = torch.stack([part.argmax(-1) for part in actions.long().split(self._num_choices, -1)], -1)
        actions = actions_for(space, actions.reshape(self.vec.num_envs, *(space.shape or ())).numpy())
        actions = actions if self._first is None else actions + self._first
        steps = tensordict.get("_step", None)
        left_out = None if steps is None or steps.all() else ~steps.reshape(-1).cpu().numpy()
        if left_out is None:
            if self._overs.any():  # TorchRL's rollout ended with these episodes and did not reset them
                self.vec.reset(env_ids=np.flatnonzero(self._overs).tolist())
            self.vec.send(actions)
        else:
            self._send_some(actions, left_out)
        batch = recv_arrays(self.vec)
        terminations, truncations = ends_of(batch)
        self._overs = terminations | truncations
        if left_out is not None:
            self._overs |= left_out
        flags = {"terminated": terminations, "truncated": truncations, "done": terminations | truncations}
        values = {key: self._batched(torch.from_numpy(flag)).unsqueeze(-1) for key, flag in flags.items()}
        values["reward"] = self._batched(torch.from_numpy(batch.rewards.copy())).unsqueeze(-1)
        values |= self._observations(batch.observations)
        result = TensorDict(values, batch_size=self.batch_size, device=self.device)
        if left_out is not None:
            result = torch.where(steps.reshape(self.batch_size), result, self._ended)
        if self._overs.any():
            self._ended = result.clone()
        return result

    def _send_some(self, actions: Array, left_out: Array) -> None:
        """Start new episodes in the environments for which ``left_out`` is True, and send actions to the others.

        actions, left_out: one element per environment. Raises CallError if ``left_out`` is True for an environment
        whose episode has not ended.
        """
        if (self._overs < left_out).any():
            raise CallError("_step leaves out environments whose episodes go on; leave out only those that are done")
        self.vec.async_reset(env_ids=np.flatnonzero(left_out).tolist())
        ids = np.flatnonzero(~left_out)
        self.vec.send(actions[ids], ids.tolist())

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close all environments; safe to call again. With ``again``, the next reset makes new ones.

        raise_if_closed: ignored, but accepted because TorchRL passes it.
        """
        self.vec.close()
        self.is_closed = True

    def _observations(self, rows: Array) -> dict[Any, Any]:
        tensor = torch.from_numpy(rows.copy())  # TorchRL keeps the tensors
        if self._layout.is_leaf:
            return {"observation": self._batched(tensor)}
        nested = self._layout.unflatten(tensor)
        observations: dict[Any, Any] = {}
        for path, leaf in zip(self._paths, self._layout.leaves, strict=True):
            part = nested
            for key in leaf.path:
                part = part[key]
            observations[path] = self._batched(part)
        return observations

    def _batched(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of rows in the shape of ``batch_size``: if that is (), the only row, else all rows."""
        return tensor if self.batch_size else tensor[0]


def make(env: EnvSource, one_hot: bool = False, **kwargs: Unpack[AdapterParameters]) -> TorchRLVecEnv:
    """Return ``pufferlib.make(env, …)`` as a TorchRLVecEnv.

    Takes the arguments of ``pufferlib.make``, and those below. Raises the errors of ``pufferlib.make`` and
    TorchRLVecEnv.

    one_hot: whether discrete actions are one-hot.
    agents: "rows" makes each agent of a PettingZoo environment a separate environment. The agents must have identical
        spaces, and their episodes must end together; otherwise SpaceError is raised.
    """

    def again() -> VecEnv:
        return make_for(LIBRARY, MODE, env, kwargs)

    return TorchRLVecEnv(again(), one_hot, again)


def _dtype(dtype: np.dtype[Any] | None) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _expanded(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """Expand the spec of one environment to that of all environments."""
    return spec.expand(*shape, *spec.shape) if shape else spec


def _observation_spec(space: Any, leaf: Leaf) -> TensorSpec:
    if np.any(getattr(space, "start", 0)):  # TorchRL counts choices from 0
        number = getattr(space, "n", None) or space.nvec
        return _box_spec(space.start, space.start + number - 1, leaf.shape, leaf.dtype)
    return _action_spec(space, False)


def _action_spec(space: Any, one_hot: bool) -> TensorSpec:
    if isinstance(space, spaces.Discrete):
        return OneHot(int(space.n)) if one_hot else Categorical(int(space.n), dtype=_dtype(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        return (
            MultiOneHot(_num_choices(space))
            if one_hot
            else MultiCategorical(_num_choices(space), dtype=_dtype(space.dtype))
        )
    if isinstance(space, spaces.MultiBinary):
        return Binary(shape=space.shape, dtype=_dtype(space.dtype))
    return _box_spec(space.low, space.high, space.shape, space.dtype)


def _box_spec(low: ArrayLike, high: ArrayLike, shape: tuple[int, ...], dtype: np.dtype[Any]) -> TensorSpec:
    """Return a Bounded spec with these bounds or, as in GymEnv, an Unbounded one if they cover the dtype's range."""
    low, high = (np.broadcast_to(np.asarray(bound, dtype), shape).copy() for bound in (low, high))
    info: Any = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
    if np.all(low <= info.min) and np.all(high >= info.max):
        return Unbounded(shape, dtype=_dtype(dtype))  # whose samples are finite
    return Bounded(torch.from_numpy(low), torch.from_numpy(high), shape, dtype=_dtype(dtype))


def _num_choices(space: object) -> list[int]:
    """Return the number of choices for each part of a discrete action, or [] for other spaces."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return list(map(int, space.nvec.reshape(-1))) if isinstance(space, spaces.MultiDiscrete) else []


__getattr__ = renamed_members(__name__, {"Face": "TorchRLVecEnv"})
