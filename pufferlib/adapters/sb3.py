"""Stable-Baselines3's vector environments over pufferlib's workers.

    from pufferlib.adapters.sb3 import SubprocVecEnv                  # rather than from stable_baselines3
    PPO("MlpPolicy", SubprocVecEnv([make_env] * 64)).learn(100_000)
    PPO("MlpPolicy", pufferlib.adapters.sb3.make("ocean/squared", num_envs=64, backend="multiprocessing"))

docs/adapters.md says what differs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from pufferlib.adapters.seam import (
    LeafRows,
    actions_for,
    ids_of,
    make_for,
    needs,
    raise_cause,
    recv_arrays,
    require_rows,
    require_synchronous,
    reset_arrays,
)
from pufferlib.errors import WorkerError
from pufferlib.registry import creator
from pufferlib.vectorization import VecEnv

with needs("stable-baselines3", "sb3"):
    from stable_baselines3.common.vec_env import VecEnv as Base
from pufferlib.util.renamed import renamed_members

__all__ = ["DummyVecEnv", "SB3VecEnv", "SubprocVecEnv", "make"]

Array = np.ndarray[Any, Any]
Indices = int | Iterable[int] | None

LIBRARY, MODE = "Stable-Baselines3", "same_step"
LAYERS = "_layers_of_env"  # an attribute of environments: the classes of all that is wrapped around, by name
OURS = ("env_id", "agent_id", "env")  # in infos, of which Stable-Baselines3's have no need
OF_THE_END = ("episode", "final_obs", "final_info")  # in an info that tells of two episodes


class SB3VecEnv(Base):
    """A VecEnv as Stable-Baselines3's. vec: synchronous, one agent an environment, ``autoreset_mode="same_step"``.

    Observations are arrays (num_envs, …), yours to keep; those of Dict and Tuple spaces a dict with one
    array a leaf, named by its path, such as "a/b/0". Each step's infos have ``TimeLimit.truncated``, at an episode's
    end ``terminal_observation`` and ``episode`` ({"r", "l", "t"}, as of Monitor). What a reset says is in
    ``reset_infos``. An episode that a crash has ended has no ``terminal_observation``: nothing is bootstrapped.

    Raises PlanError or SpaceError where vec is of another kind.
    """

    def __init__(self, vec: VecEnv) -> None:
        require_rows(LIBRARY, MODE, vec)
        require_synchronous(LIBRARY, vec)
        self.vec = vec
        self._leaf_rows = LeafRows(vec.observation_layout)
        super().__init__(vec.num_envs, self._leaf_rows.space, vec.single_action_space)
        self.metadata = vec.metadata

    def reset(self) -> Any:
        """Start new episodes and return their observations; seeds and options are those set since the last reset."""
        seeds = None if self._seeds[0] is None else self._seeds
        options = [each or None for each in self._options] if any(self._options) else None
        observations, infos = reset_arrays(self.vec, seeds, options)
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for info in infos:
            self.reset_infos[info["env_id"]] = _without(info, OURS)
        self._reset_seeds()
        self._reset_options()
        return self._observations(observations)

    def step_async(self, actions: Array) -> None:
        """Start one step. actions: (num_envs, …), as ``action_space`` has them."""
        self.vec.send(actions_for(self.action_space, actions))

    def step_wait(self) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        """Return (observations, rewards, dones, infos) of the step. Raises WorkerError."""
        batch = recv_arrays(self.vec)
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        for told in batch.infos:
            env_id = told["env_id"]
            if "final_info" in told:
                info = {**_without(told["final_info"], OURS), "episode": told["episode"]}
                info["terminal_observation"] = self._observations(told["final_obs"])
                info["TimeLimit.truncated"] = bool(batch.truncations[env_id] and not batch.terminations[env_id])
                self.reset_infos[env_id] = _without(told, OURS + OF_THE_END)
            else:
                info = {**_without(told, OURS), "TimeLimit.truncated": False}
            infos[env_id] = info
        dones = np.logical_or(batch.terminations, batch.truncations)
        return self._observations(batch.observations), batch.rewards.copy(), dones, infos

    def close(self) -> None:
        """Close all environments; safe to call again."""
        self.vec.close()

    def get_images(self) -> Sequence[Any]:
        """Return what ``render()`` of each environment returns."""
        return self.env_method("render")

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of environments, copies where they run elsewhere. Raises what that raises."""
        try:
            return self.vec.get_attr(attr_name, env_ids=self._ids(indices))
        except WorkerError as error:
            raise_cause(error)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of environments to one value. Raises what that raises."""
        ids = self._ids(indices)
        try:
            self.vec.set_attr(attr_name, [value] * len(ids), env_ids=ids)
        except WorkerError as error:
            raise_cause(error)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Return the results of a method of environments. Raises what that raises."""
        try:
            return self.vec.call(method_name, *method_args, env_ids=self._ids(indices), **method_kwargs)
        except WorkerError as error:
            raise_cause(error)

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        """Return whether environments are wrapped in this class; False where this face did not make them."""
        ids, name = self._ids(indices), _name(wrapper_class)
        try:
            return [name in layers for layers in self.get_attr(LAYERS, ids)]
        except AttributeError:
            return [False] * len(ids)

    def _ids(self, indices: Indices) -> list[int]:
        return ids_of(self._get_indices(indices), self.num_envs)

    def _observations(self, rows: Any) -> Any:
        return self._leaf_rows.of(rows.copy())


class DummyVecEnv(SB3VecEnv):
    """Stable-Baselines3's DummyVecEnv: all environments in this process, stepped in turn. They are ``envs``."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]]) -> None:
        self.envs: list[Any] = []
        super().__init__(make_for(LIBRARY, MODE, [_noting(env_fn, self.envs) for env_fn in env_fns], {}))


class SubprocVecEnv(SB3VecEnv):
    """Stable-Baselines3's SubprocVecEnv: worker processes, which share the environments.

    start_method: "fork", "spawn" or "forkserver"; by default fork where it is safe.
    num_workers: processes, by default one for each CPU at hand, where Stable-Baselines3 has one for each environment.
    """

    def __init__(
        self, env_fns: Sequence[Callable[[], Any]], start_method: str | None = None, num_workers: int | None = None
    ) -> None:
        kwargs = {"backend": "multiprocessing", "context": start_method, "num_workers": num_workers}
        super().__init__(make_for(LIBRARY, MODE, [_noting(env_fn) for env_fn in env_fns], kwargs))


def make(env: Any, **kwargs: Any) -> SB3VecEnv:
    """Return ``pufferlib.make(env, …)`` with this face. Takes the arguments of ``make``, and raises as that does.

    agents: "rows" makes each agent of a PettingZoo environment an environment of its own, for agents with equal spaces
        that live equally long; SpaceError for others.
    """
    if kwargs.get("backend") != "cuda":
        env = [_noting(creator(each)) for each in env] if isinstance(env, (list, tuple)) else _noting(creator(env))
    return SB3VecEnv(make_for(LIBRARY, MODE, env, kwargs))


def _noting(env_fn: Callable[..., Any], made: list[Any] | None = None) -> Callable[..., Any]:
    """Have environments know the classes that they are wrapped in, and join ``made``."""

    @functools.wraps(env_fn)
    def make_env(*args: Any, **kwargs: Any) -> Any:
        env = env_fn(*args, **kwargs)
        layer, names = env, set[str]()
        while layer is not None:
            names.update(map(_name, type(layer).__mro__))
            layer = layer.__dict__.get("env")
        setattr(env, LAYERS, names)
        if made is not None:
            made.append(env)
        return env

    return make_env


def _without(info: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: part for key, part in info.items() if key not in keys}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


__getattr__ = renamed_members(__name__, {"Face": "SB3VecEnv"})
