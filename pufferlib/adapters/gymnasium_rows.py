"""GymnasiumRowsVecEnv, an adapter that presents a VecEnv on any backend as a Gymnasium VectorEnv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from pufferlib.adapters.common import LeafRows, actions_for, ends_of, recv_arrays, require_rows, require_synchronous
from pufferlib.adapters.gymnasium_vecenv import AutoresetMode, GymnasiumVecEnv, columns_of
from pufferlib.errors import PlanError
from pufferlib.util.annotations import Array
from pufferlib.vectorization import Infos, VecEnv

__all__ = ["GymnasiumRowsVecEnv"]

Seeds = int | Sequence[int] | None
Step = tuple[Any, Array, Array, Array, dict[str, Any]]  # observations, rewards, terminations, truncations, infos

LIBRARY = "Gymnasium"


class GymnasiumRowsVecEnv(VectorEnv):
    """A Gymnasium VectorEnv backed by a VecEnv.

    vec: a synchronous VecEnv (each batch has all environments) with one agent per environment. Observations are copies:
    arrays (num_envs, …) or, for Dict and Tuple spaces, a dict with one such array per leaf, keyed by the leaf's path,
    such as "a/b/0". Rewards are float32. Infos have Gymnasium's form, a dict of arrays. An episode that ends in a crash
    is terminated, so that nothing is bootstrapped from it.

    Raises PlanError if vec is not synchronous; SpaceError if it has several agents per environment or mixed discrete
    and continuous actions.
    """

    library = LIBRARY
    untold: tuple[str, ...] = ("env_id", "agent_id", "env", "episode")  # keys left out of the infos
    closed = True  # until __init__ has finished: deletion calls close

    def __init__(self, vec: VecEnv) -> None:
        require_rows(self.library, vec.autoreset_mode, vec)
        require_synchronous(self.library, vec)
        self.vec = vec
        self.num_envs = vec.num_envs
        self._leaf_rows = LeafRows(vec.observation_layout)
        self.single_observation_space = self._leaf_rows.space
        self.single_action_space = vec.single_action_space
        self.observation_space = batch_space(self.single_observation_space, vec.num_envs)
        self.action_space = batch_space(vec.single_action_space, vec.num_envs)
        self.autoreset_mode = AutoresetMode[vec.autoreset_mode.upper()]
        self.metadata = {**vec.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode, self.spec = vec.render_mode, vec.spec
        self.is_vector_env, self.viewer = True, None  # read by Gymnasium 0.29
        self.closed = False

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start new episodes and return (observations, infos). Arguments: see ``reset_async``."""
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(self, seed: Seeds = None, options: dict[str, Any] | None = None) -> None:
        """Start new episodes, without waiting for the first observations, which ``reset_wait`` returns.

        seed: an integer gives row i seed + i; a list has one seed per row; by default, every environment keeps its
            random generator.
        options: a dict for all rows. The key "reset_mask", a bool array (num_envs,), restricts the reset to the rows
            for which it is True.

        Raises PlanError if the mask does not have that shape and dtype, or contains no True.
        """
        seeds, env_ids = self._seeds(seed), None
        if options is not None and "reset_mask" in options:
            mask = np.asarray(options["reset_mask"])
            if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
                raise PlanError(f"reset_mask={mask} is no bool array ({self.num_envs},) with a True in it")
            options = {key: value for key, value in options.items() if key != "reset_mask"} or None
            env_ids = np.flatnonzero(mask).tolist()
            if isinstance(seeds, list):
                seeds = [seeds[row] for row in env_ids]
        self.vec.async_reset(seeds, options, env_ids)

    def reset_wait(self, timeout: float | None = None, **_: object) -> tuple[Any, dict[str, Any]]:
        """Wait for the reset and return its (observations, infos).

        timeout: seconds, after which RecvTimeout is raised.
        """
        batch = recv_arrays(self.vec, timeout)
        return self._observations(batch.observations), self._infos(batch.infos)

    def step(self, actions: object) -> Step:
        """Play one step and return (observations, rewards, terminations, truncations, infos).

        actions: an array or a list with one action per row. Raises WorkerError if an environment or a worker fails;
        a later ``reset`` recovers.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: object) -> None:
        """Start one step, without waiting for its results, which ``step_wait`` returns. actions: see ``step``."""
        self.vec.send(actions_for(self.single_action_space, np.asarray(actions)))

    def step_wait(self, timeout: float | None = None) -> Step:
        """Wait for the step and return its result as ``step`` does.

        timeout: seconds, after which RecvTimeout is raised.
        """
        batch = recv_arrays(self.vec, timeout)
        return self._observations(batch.observations), batch.rewards.copy(), *ends_of(batch), self._infos(batch.infos)

    def render(self) -> tuple[Any, ...]:
        """Render each environment and return the results."""
        return tuple(self.vec.call("render"))

    def call(self, name: str, *args: object, **kwargs: Any) -> tuple[Any, ...]:
        """Call method ``name`` of each row's environment and return the results.

        If the attribute ``name`` is not callable, its values are returned.
        """
        return tuple(self.vec.call(name, *args, **kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return attribute ``name`` of each row's environment."""
        return tuple(self.vec.get_attr(name))

    def set_attr(self, name: str, values: object) -> None:
        """Set attribute ``name``. values: a list or tuple with one value per row, or one value for all."""
        self.vec.set_attr(name, values)

    def close_extras(self, **kwargs: object) -> None:
        """Close all environments."""
        self.vec.close()

    def _seeds(self, seed: Seeds) -> Seeds:
        return [seed + row for row in range(self.num_envs)] if isinstance(seed, (int, np.integer)) else seed

    def _observations(self, rows: Array) -> Any:
        return self._leaf_rows.of(rows.copy())

    def _infos(self, batch_infos: Infos) -> dict[str, Any]:
        columns = columns_of(self, batch_infos, self.untold, "final_info", "final_obs")
        if columns is not None:
            return columns
        infos: dict[str, Any] = {}
        row_infos: Sequence[dict[str, Any]] = batch_infos
        for info in row_infos:
            row, row_info = info["env_id"], {key: part for key, part in info.items() if key not in self.untold}
            if "final_info" in row_info:
                final = {key: part for key, part in row_info.pop("final_info").items() if key not in self.untold}
                ends: dict[str, Any] = {"final_info": final}
                if "final_obs" in row_info:
                    ends[GymnasiumVecEnv.final_obs_key] = self._leaf_rows.of(row_info.pop("final_obs").copy())
                infos = self._add_info(infos, ends, row)
            infos = self._add_info(infos, row_info, row)
        return infos
