"""PufferLib's ``GymnasiumPufferEnv``: one Gymnasium environment whose observations are rows of a buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.compat.exceptions import APIUsageError, raises_usage_errors
from pufferlib.compat.sources import Buffered, FlatEnv, StoredEnv, copy_row
from pufferlib.compat.structs import is_emulated, make_object
from pufferlib.compat.versions import version_of_program
from pufferlib.emulation.gymnasium_env import GymnasiumRows
from pufferlib.emulation.rows import RowEnv
from pufferlib.emulation.single_agent import Caller, own_space
from pufferlib.util.annotations import Array

__all__ = ["GymnasiumPufferEnv"]


class GymnasiumPufferEnv(Buffered, gymnasium.Env[Any, Any]):
    """A Gymnasium environment with flat spaces, whose observation is the only row of ``observations``.

    env: the environment; or env_creator, env_args, env_kwargs: a callable that makes it, and its arguments. buf: the
        arrays to write to, by key or by attribute; by default, new ones. seed: accepted as in version 3; the
        environment is seeded by ``reset``.

    Returned observations are the buffer itself, of shape (1, \\*shape), which the next step overwrites; in programs for
    version 1, its only row. Workers step ``env`` directly, unless a subclass defines ``step``, ``reset``, ``notify`` or
    ``close``.

    Raises ValueError or TypeError unless there is exactly one of env and env_creator; SpaceError for spaces without a
    layout.
    """

    def __init__(
        self,
        env: Any = None,
        env_creator: Callable[..., Any] | None = None,
        env_args: Sequence[Any] = (),
        env_kwargs: Mapping[str, Any] | None = None,
        buf: Any = None,
        seed: int = 0,
    ) -> None:
        self.env = make_object(env, env_creator, env_args, env_kwargs)
        self._source = StoredEnv(self.env) if is_emulated(own_space(self.env.observation_space)) else self.env
        self._caller = caller = Caller(self._source, {}, False, "first")
        self.set_up(
            *(caller.observation_layout, caller.action_layout, caller.raw_observation_space, caller.raw_action_space),
            num_agents=1,
            buf=buf,
        )
        self.observation_space, self.action_space = self.single_observation_space, self.single_action_space
        self.spec = getattr(self.env, "spec", None)
        self.done = True
        self._row: Array = self.observations[0, ...]
        self.obs_struct = self._row.view(self.obs_dtype) if self.is_obs_emulated else self._row
        self.buf, self.obs = buf, self._row  # version 1's names
        self._bare = version_of_program() == 1

    @raises_usage_errors
    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; return the observation buffer and the environment's info.

        Raises APIUsageError if the first observation does not fit its space.
        """
        observation, info = self._caller.regular_reset(self._caller.raw_reset(seed, options))
        copy_row(self._observation_layout, observation, self._row)
        self.initialized, self.done, self.is_observation_checked = True, False, True
        self.rewards[0], self.terminals[0], self.truncations[0], self.masks[0] = 0, False, False, True
        return self._observations(), info

    @raises_usage_errors
    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Play one step; return the observation buffer and the environment's other four values.

        action: a value or an array of the action space, whose shape may have axes of length 1 in front. Raises
        APIUsageError before the first reset, after an episode's end, and for an action outside its space.
        """
        if not self.initialized:
            raise APIUsageError("step before reset; call reset() first")
        if self.done:
            raise APIUsageError("step after the episode's end; call reset() first")
        result = self._caller.raw_step(self._native_action(action))
        self.is_action_checked = True
        observation, reward, terminated, truncated, info = self._caller.regular_step(result)
        copy_row(self._observation_layout, observation, self._row)
        self.done = terminated or truncated
        self.rewards[0], self.terminals[0], self.truncations[0] = reward, terminated, truncated
        if len(result) == 5:
            _, reward, terminated, truncated, _ = result
        return self._observations(), reward, terminated, truncated, info

    def _native_action(self, action: Any) -> Any:
        space = self.action_space
        if not isinstance(space, spaces.Tuple):
            action = np.asarray(action)
            shape = space.shape or ()
            if action.shape != shape and action.size == int(np.prod(shape)):
                action = action.reshape(shape)
        native = self._action_layout.unpack_checked(action)
        return int(native) if isinstance(space, spaces.Discrete) else native

    def _observations(self) -> Any:
        return self._row if self._bare else self.observations

    def seed(self, seed: int) -> Any:
        """Pass a seed on to the environment's ``seed``."""
        return self.env.seed(seed)

    def close(self) -> None:
        """Close the environment."""
        self._caller.close()

    def as_rows(self, **arguments: Any) -> RowEnv:
        """Return the environment as a RowEnv for a worker. arguments: as for ``pufferlib.wrap``."""
        return GymnasiumRows(FlatEnv(self) if self.overrides(GymnasiumPufferEnv) else self._source, **arguments)

    def take_rows(self, *rows: Array) -> bool:
        """Take the row of a step that was played without this object; return whether it ends the episode."""
        self.done = super().take_rows(*rows)
        return self.done
