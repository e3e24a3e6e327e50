"""Replacements for Stable-Baselines3's vector environments that run on pufferlib's workers.

    from pufferlib.adapters.sb3 import SubprocVecEnv                  # instead of from stable_baselines3
    PPO("MlpPolicy", SubprocVecEnv([make_env] * 64)).learn(100_000)
    PPO("MlpPolicy", pufferlib.adapters.sb3.make("ocean/squared", num_envs=64, backend="multiprocessing"))

docs/adapters.md lists the differences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from pufferlib.adapters.common import (
    AdapterParameters,
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
from pufferlib.util.annotations import Array, EnvSource, Function
from pufferlib.util.parameters import Unpack
from pufferlib.util.renamed import renamed_members
from pufferlib.vectorization import VecEnv

with needs("stable-baselines3", "sb3"):
    from stable_baselines3.common.vec_env import VecEnv as Base

__all__ = ["DummyVecEnv", "SB3VecEnv", "SubprocVecEnv", "make"]

Indices = int | Iterable[int] | None

LIBRARY, MODE = "Stable-Baselines3", "same_step"
LAYERS = "_layers_of_env"  # an attribute set on environments: the class names of all their wrappers
OURS = ("env_id", "agent_id", "env")  # keys of infos that Stable-Baselines3 does not need
OF_THE_END = ("episode", "final_obs", "final_info")  # keys about the ended episode, in an info about two episodes


class SB3VecEnv(Base):
    """A Stable-Baselines3 VecEnv backed by a pufferlib VecEnv.

    vec: a synchronous VecEnv with one agent per environment and ``autoreset_mode="same_step"``. Observations are
    copies: an array (num_envs, …) or, for Dict and Tuple spaces, a dict with one array per leaf, keyed by the leaf's
    path, such as "a/b/0". Each info of a step has ``TimeLimit.truncated`` and, at an episode's end,
    ``terminal_observation`` and ``episode`` ({"r", "l", "t"}, as from Monitor). Infos of resets are in ``reset_infos``.
    An episode that ends in a crash has no ``terminal_observation``, so that nothing is bootstrapped from it.

    Raises PlanError if vec is not synchronous or has another autoreset mode; SpaceError if it has several agents per
    environment or mixed discrete and continuous actions.
    """

    def __init__(self, vec: VecEnv) -> None:
        require_rows(LIBRARY, MODE, vec)
        require_synchronous(LIBRARY, vec)
        self.vec = vec
        self._leaf_rows = LeafRows(vec.observation_layout)
        super().__init__(vec.num_envs, self._leaf_rows.space, vec.single_action_space)
        self.metadata = vec.metadata

    def reset(self) -> Any:
        """Start new episodes with the seeds and options set since the last reset; return the observations."""
        seeds = None if self._seeds[0] is None else self._seeds
        options = [env_options or None for env_options in self._options] if any(self._options) else None
        observations, infos = reset_arrays(self.vec, seeds, options)
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        row_infos: Sequence[dict[str, Any]] = infos
        for info in row_infos:
            self.reset_infos[info["env_id"]] = _without(info, OURS)
        self._reset_seeds()
        self._reset_options()
        return self._observations(observations)

    def step_async(self, actions: Array) -> None:
        """Start one step. actions: (num_envs, …), one element of ``action_space`` per environment."""
        self.vec.send(actions_for(self.action_space, actions))

    def step_wait(self) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        """Wait for the step and return its (observations, rewards, dones, infos).

        Raises WorkerError if an environment or a worker fails.
        """
        batch = recv_arrays(self.vec)
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        row_infos: Sequence[dict[str, Any]] = batch.infos
        for row_info in row_infos:
            env_id = row_info["env_id"]
            if "final_info" in row_info:
                info = {**_without(row_info["final_info"], OURS), "episode": row_info["episode"]}
                info["terminal_observation"] = self._observations(row_info["final_obs"])
                info["TimeLimit.truncated"] = bool(batch.truncations[env_id] and not batch.terminations[env_id])
                self.reset_infos[env_id] = _without(row_info, OURS + OF_THE_END)
            else:
                info = {**_without(row_info, OURS), "TimeLimit.truncated": False}
            infos[env_id] = info
        dones = np.logical_or(batch.terminations, batch.truncations)
        return self._observations(batch.observations), batch.rewards.copy(), dones, infos

    def close(self) -> None:
        """Close all environments; safe to call again."""
        self.vec.close()

    def get_images(self) -> Sequence[Any]:
        """Render each environment and return the images."""
        return self.env_method("render")

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return the value of an attribute for each selected environment.

        If the environments run in other processes, the values are copies.

        An environment's exception is raised unchanged, except that a PufferError is raised as a WorkerError.
        """
        try:
            return self.vec.get_attr(attr_name, env_ids=self._ids(indices))
        except WorkerError as error:
            raise_cause(error)

    def set_attr(self, attr_name: str, value: object, indices: Indices = None) -> None:
        """Set an attribute of the selected environments to one value.

        An environment's exception is raised unchanged, except that a PufferError is raised as a WorkerError.
        """
        ids = self._ids(indices)
        try:
            self.vec.set_attr(attr_name, [value] * len(ids), env_ids=ids)
        except WorkerError as error:
            raise_cause(error)

    def env_method(
        self, method_name: str, *method_args: object, indices: Indices = None, **method_kwargs: object
    ) -> list[Any]:
        """Call a method of the selected environments and return the results.

        An environment's exception is raised unchanged, except that a PufferError is raised as a WorkerError.
        """
        try:
            return self.vec.call(method_name, *method_args, env_ids=self._ids(indices), **method_kwargs)
        except WorkerError as error:
            raise_cause(error)

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        """Return whether each selected environment is wrapped in ``wrapper_class``.

        If this module did not make all of them, returns False for every environment.
        """
        ids, name = self._ids(indices), _name(wrapper_class)
        try:
            return [name in layers for layers in self.get_attr(LAYERS, ids)]
        except AttributeError:
            return [False] * len(ids)

    def _ids(self, indices: Indices) -> list[int]:
        return ids_of(self._get_indices(indices), self.num_envs)

    def _observations(self, rows: Array) -> Any:
        return self._leaf_rows.of(rows.copy())


class DummyVecEnv(SB3VecEnv):
    """A replacement for Stable-Baselines3's DummyVecEnv, which steps all environments in this process.

    ``envs`` lists the environments.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]]) -> None:
        self.envs: list[Any] = []
        super().__init__(make_for(LIBRARY, MODE, [_with_layers(env_fn, self.envs) for env_fn in env_fns], {}))


class SubprocVecEnv(SB3VecEnv):
    """A replacement for Stable-Baselines3's SubprocVecEnv. A worker process may hold several environments.

    start_method: "fork", "spawn" or "forkserver"; by default fork if that is safe.
    num_workers: the number of processes, by default one per available CPU; Stable-Baselines3 starts one per
    environment.
    """

    def __init__(
        self, env_fns: Sequence[Callable[[], Any]], start_method: str | None = None, num_workers: int | None = None
    ) -> None:
        kwargs = {"backend": "multiprocessing", "context": start_method, "num_workers": num_workers}
        super().__init__(make_for(LIBRARY, MODE, [_with_layers(env_fn) for env_fn in env_fns], kwargs))


def make(env: EnvSource, **kwargs: Unpack[AdapterParameters]) -> SB3VecEnv:
    """Return ``pufferlib.make(env, …)`` as an SB3VecEnv.

    Takes the arguments of ``pufferlib.make``, and those below. Raises the errors of ``pufferlib.make`` and
    SB3VecEnv.

    agents: "rows" makes each agent of a PettingZoo environment a separate environment. The agents must have identical
        spaces, and their episodes must end together; otherwise SpaceError is raised.
    """
    if kwargs.get("backend") != "cuda":
        env = (
            [_with_layers(creator(env_fn)) for env_fn in env]
            if isinstance(env, (list, tuple))
            else _with_layers(creator(env))  # type: ignore[arg-type]  # refuses another sequence
        )
    return SB3VecEnv(make_for(LIBRARY, MODE, env, kwargs))


def _with_layers(env_fn: Function, envs: list[Any] | None = None) -> Function:
    """Return a function that makes the same environments as ``env_fn`` and notes their wrappers for ``env_is_wrapped``.

    On each environment that it makes, the function sets the attribute LAYERS to a set of class names: those of the
    environment's class, of the classes of all environments inside it, and of the bases of these classes. envs: a list
    to which the function appends each environment, or None.
    """

    @functools.wraps(env_fn)
    def make_env(*args: object, **kwargs: object) -> object:
        env = env_fn(*args, **kwargs)
        layer, names = env, set[str]()
        while layer is not None:
            names.update(map(_name, type(layer).__mro__))
            layer = layer.__dict__.get("env")
        setattr(env, LAYERS, names)
        if envs is not None:
            envs.append(env)
        return env

    return make_env


def _without(info: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: part for key, part in info.items() if key not in keys}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


__getattr__ = renamed_members(__name__, {"Face": "SB3VecEnv"})
