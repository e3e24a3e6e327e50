"""TorchRL's environments over pufferlib's workers: one EnvBase of all environments, whose TensorDicts have a row each.

    env = pufferlib.adapters.torchrl.make("ocean/squared", num_envs=64, backend="multiprocessing")
    Collector(env, policy, frames_per_batch=4096)

docs/adapters.md says what differs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.adapters.seam import actions_for, ends_of, make_for, needs, require_rows, require_synchronous
from pufferlib.errors import SpaceError
from pufferlib.vectorization import VecEnv

with needs("torchrl", "torchrl"):
    import torch
    from tensordict import TensorDict
    from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded
    from torchrl.envs import EnvBase

__all__ = ["Face", "make"]

LIBRARY, MODE = "TorchRL", "disabled"
THEIRS = {"action", "reward", "done", "terminated", "truncated", "next"}  # keys of TensorDicts


class Face(EnvBase):
    """A VecEnv as TorchRL's EnvBase. vec: synchronous, one agent an environment, ``autoreset_mode="disabled"``.

    ``batch_size`` is (num_envs,). Keys: "observation" (of a Dict or Tuple space each leaf's path), "action" (choices as
    numbers, in one dimension; one-hot with ``one_hot``), "reward" (num_envs, 1) float32, "terminated", "truncated",
    "done". All stay valid, and are on the CPU, or where ``to`` has moved the environment. TorchRL resets who is done,
    by "_reset". ``set_seed`` seeds the next reset of all. What infos say is in ``vec.batch.infos``. An episode that a
    crash has ended is "terminated": nothing is bootstrapped.

    Raises PlanError or SpaceError where vec is of another kind, or a Dict has a key that TorchRL has a meaning for.
    """

    def __init__(self, vec: VecEnv, one_hot: bool = False) -> None:
        require_rows(LIBRARY, MODE, vec)
        require_synchronous(LIBRARY, vec)
        super().__init__(device="cpu", batch_size=[vec.num_envs])
        self.vec = vec
        self._layout = layout = vec.observation_layout
        self._seed: int | None = None
        first = getattr(vec.single_action_space, "start", 0)  # of choices, which TorchRL counts from 0
        self._first = np.asarray(first) if np.any(first) else None
        self._choices = _choices(vec.single_action_space) if one_hot else []
        self._paths = [tuple(map(str, leaf.path)) or "observation" for leaf in layout.leaves]
        if taken := THEIRS.intersection(path[0] for path in self._paths if isinstance(path, tuple)):
            raise SpaceError(
                f"observations have the key {min(taken)!r}, which is TorchRL's own in TensorDicts; "
                "wrap the environment so that it has another name"
            )
        shape = (vec.num_envs,)
        self.observation_spec = Composite(
            {
                path: _observation_spec(vec.single_observation_space if layout.is_leaf else None, leaf).expand(
                    *shape, *leaf.shape
                )
                for path, leaf in zip(self._paths, layout.leaves, strict=True)
            },
            shape=shape,
        )
        action_spec = _action_spec(vec.single_action_space, one_hot)
        self.action_spec = action_spec.expand(*shape, *action_spec.shape)
        self.reward_spec = Unbounded((*shape, 1))
        flag = Categorical(2, dtype=torch.bool, shape=(*shape, 1))
        self.done_spec = Composite({key: flag.clone() for key in ("done", "terminated", "truncated")}, shape=shape)

    def _reset(self, tensordict: Any = None, **_: Any) -> Any:
        asked = None if tensordict is None else tensordict.get("_reset", None)
        ids = None if asked is None or asked.all() else torch.nonzero(asked.reshape(-1)).reshape(-1).tolist()
        batch = self.vec.batch
        if ids == [] and batch is not None:
            rows = batch.observations
        else:
            rows = self.vec.reset(self._seed if ids is None else None, env_ids=ids)[0]
        if ids is None:
            self._seed = None
        return TensorDict(self._observations(rows), batch_size=self.batch_size, device=self.device)

    def _step(self, tensordict: Any) -> Any:
        actions, space = tensordict.get("action").detach().cpu(), self.vec.single_action_space
        if self._choices:
            actions = torch.stack([part.argmax(-1) for part in actions.long().split(self._choices, -1)], -1)
        actions = actions_for(space, actions.reshape(self.vec.num_envs, *(space.shape or ())).numpy())
        self.vec.send(actions if self._first is None else actions + self._first)
        batch = self.vec.recv()
        terminations, truncations = ends_of(batch)
        flags = {"terminated": terminations, "truncated": truncations, "done": terminations | truncations}
        told = {key: torch.from_numpy(flag).unsqueeze(-1) for key, flag in flags.items()}
        told["reward"] = torch.from_numpy(batch.rewards.copy()).unsqueeze(-1)
        told |= self._observations(batch.observations)
        return TensorDict(told, batch_size=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close all environments; safe to call again."""
        self.vec.close()
        self.is_closed = True

    def _observations(self, rows: Any) -> dict[Any, Any]:
        rows = rows.copy()  # TorchRL keeps what it is given
        if self._layout.is_leaf:
            return {"observation": torch.from_numpy(rows)}
        nested = self._layout.unflatten(torch.from_numpy(rows))
        found: dict[Any, Any] = {}
        for path, leaf in zip(self._paths, self._layout.leaves, strict=True):
            part = nested
            for key in leaf.path:
                part = part[key]
            found[path] = part
        return found


def make(env: Any, one_hot: bool = False, **kwargs: Any) -> Face:
    """Return ``pufferlib.make(env, …)`` with this face. Takes the arguments of ``make``, and raises as that does."""
    return Face(make_for(LIBRARY, MODE, env, kwargs), one_hot)


def _dtype(dtype: Any) -> Any:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _observation_spec(space: Any, leaf: Any) -> Any:
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Categorical(int(space.n), dtype=_dtype(leaf.dtype))
    return Unbounded(leaf.shape, dtype=_dtype(leaf.dtype))


def _action_spec(space: Any, one_hot: bool) -> Any:
    if isinstance(space, spaces.Discrete):
        return OneHot(int(space.n)) if one_hot else Categorical(int(space.n), dtype=_dtype(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiOneHot(_choices(space)) if one_hot else MultiCategorical(_choices(space), dtype=_dtype(space.dtype))
    if isinstance(space, spaces.MultiBinary):
        return Binary(shape=space.shape, dtype=_dtype(space.dtype))
    if not (np.isfinite(space.low).any() or np.isfinite(space.high).any()):
        return Unbounded(space.shape, dtype=_dtype(space.dtype))  # whose samples are finite
    return Bounded(torch.from_numpy(space.low), torch.from_numpy(space.high), space.shape, dtype=_dtype(space.dtype))


def _choices(space: Any) -> list[int]:
    """Return how many choices each part of a discrete action has; [] where it is not discrete."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return list(map(int, space.nvec.reshape(-1))) if isinstance(space, spaces.MultiDiscrete) else []
