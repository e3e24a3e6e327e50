"""An adapter that presents a VecEnv with one environment as a dm_env Environment.

    with pufferlib.adapters.dm_env.make("ocean/bandit") as env:
        step = env.reset()
        while not step.last():
            step = env.step(policy(step.observation))

docs/adapters.md lists the differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.adapters.common import ends_of, make_for, needs, recv_arrays, require_rows, reset_arrays
from pufferlib.errors import PlanError, SpaceError
from pufferlib.util.annotations import Array, EnvSource
from pufferlib.util.parameters import Unpack
from pufferlib.util.renamed import renamed_members
from pufferlib.vectorization import VecEnv
from pufferlib.vectorization.core.parameters import MakeParameters

with needs("dm_env", "dm-env"):
    import dm_env
    from dm_env import specs

__all__ = ["DMEnvironment", "make"]

LIBRARY, MODE = "dm_env", "next_step"


class DMEnvironment(dm_env.Environment):
    """A dm_env Environment backed by a VecEnv with ``num_envs=1`` and ``autoreset_mode="next_step"``.

    The first step after the end of an episode ignores its action and starts the next episode. The discount is 0 after a
    termination and 1 after a truncation. Observations keep their nesting and are copies; rewards are float. Infos are
    in ``vec.batch.infos``. An episode that ends in a crash has discount 0, so that nothing is bootstrapped from it.

    Raises PlanError if ``vec`` has several environments or another autoreset mode; SpaceError for several agents per
    environment, mixed discrete and continuous actions, or a space that no dm_env spec can describe.
    """

    def __init__(self, vec: VecEnv) -> None:
        require_rows(LIBRARY, MODE, vec)
        if vec.num_envs != 1:
            raise PlanError(f"num_envs={vec.num_envs}, but dm_env supports one environment; use num_envs=1")
        self.vec = vec
        self._fresh = True
        self._observation_spec = _spec(vec.observation_layout.space, "observation")
        self._action_spec = _spec(vec.single_action_space, "action")

    def reset(self) -> dm_env.TimeStep:
        """Start an episode and return its first TimeStep."""
        rows, _ = reset_arrays(self.vec)
        self._fresh = False
        return dm_env.restart(self._observation(rows))

    def step(self, action: object) -> dm_env.TimeStep:
        """Play one step and return its TimeStep.

        Starts an episode instead if none has begun or if the previous TimeStep was the last of its episode.
        """
        if self._fresh:
            return self.reset()
        self.vec.send(np.asarray(action)[None])
        batch = recv_arrays(self.vec)
        observation, reward = self._observation(batch.observations), float(batch.rewards[0])
        (terminated,), (truncated,) = ends_of(batch)
        if terminated:
            return dm_env.termination(reward, observation)
        if truncated:
            return dm_env.truncation(reward, observation)
        return dm_env.transition(reward, observation) if batch.masks[0] else dm_env.restart(observation)

    def observation_spec(self) -> Any:
        """Return the observation spec, nested like the observations."""
        return self._observation_spec

    def action_spec(self) -> Any:
        """Return the action spec; for a Dict or Tuple space, the spec of the single array that represents an action."""
        return self._action_spec

    def close(self) -> None:
        """Close the environment; safe to call again."""
        self.vec.close()

    def _observation(self, rows: Array) -> Any:
        return _first(self.vec.observation_layout.unflatten(rows))


def make(env: EnvSource, **kwargs: Unpack[MakeParameters]) -> DMEnvironment:
    """Return ``pufferlib.make(env, num_envs=1, …)`` as a DMEnvironment.

    Takes the arguments of ``make``. Raises the errors of ``make`` and of DMEnvironment.
    """
    return DMEnvironment(make_for(LIBRARY, MODE, env, kwargs))


def _first(nested: Any) -> Any:
    """Return a copy of the first row of each array in a nested structure."""
    if isinstance(nested, dict):
        return {key: _first(part) for key, part in nested.items()}
    return tuple(map(_first, nested)) if isinstance(nested, tuple) else nested[0].copy()


def _spec(space: spaces.Space[Any], name: str) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _spec(part, key) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_spec(part, f"{name}.{index}") for index, part in enumerate(space))
    if isinstance(space, spaces.Box):
        return specs.BoundedArray(space.shape, space.dtype, space.low, space.high, name)
    if isinstance(space, spaces.Discrete):
        last = space.start + space.n - 1
        plain = space.start == 0
        return (
            specs.DiscreteArray(int(space.n), space.dtype, name)
            if plain
            else specs.BoundedArray((), space.dtype, space.start, last, name)
        )
    if isinstance(space, spaces.MultiDiscrete):
        return specs.BoundedArray(space.shape, space.dtype, space.start, space.start + space.nvec - 1, name)
    if isinstance(space, spaces.MultiBinary):
        return specs.BoundedArray(space.shape, space.dtype, 0, 1, name)
    raise SpaceError(f"dm_env has no spec for {space}; wrap the environment so that it has arrays of a fixed size")


__getattr__ = renamed_members(__name__, {"Face": "DMEnvironment"})
