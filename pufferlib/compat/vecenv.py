"""The vecenvs of PufferLib's ``vector``, on the vectorization of ``pufferlib.make``."""

from __future__ import annotations

import copy
import functools
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

from pufferlib import construct
from pufferlib.compat.creators import Creator, one_each_env
from pufferlib.compat.exceptions import APIUsageError, raises_usage_errors
from pufferlib.compat.puffer_env import TEACHER_ACTIONS
from pufferlib.compat.sources import AGENTS_ABSENT
from pufferlib.compat.spaces import Tuple, joint_space
from pufferlib.compat.versions import version_of_creator
from pufferlib.util.annotations import Array
from pufferlib.vectorization.core import transfer
from pufferlib.vectorization.processes.start import start_method

__all__ = [
    "RECV",
    "RESET",
    "SEND",
    "STEP",
    "Multiprocessing",
    "Ray",
    "Serial",
    "make_seeds",
    "recv_precheck",
    "send_precheck",
]

RESET, STEP, SEND, RECV = range(4)
FIRST_SEED = 42  # PufferLib's seed of a reset without one


class _Vectorized:
    """The base class of Serial, Multiprocessing and Ray: PufferLib's vecenv over a VecEnv, which is ``vecenv``."""

    _backend = "serial"
    _ids_by_worker = False  # whether ``agent_ids`` has a row for each worker

    @raises_usage_errors
    def __init__(
        self,
        env_creators: Sequence[Callable[..., Any]],
        env_args: Sequence[Sequence[Any]],
        env_kwargs: Sequence[Mapping[str, Any]],
        num_envs: int,
        num_workers: int | None = None,
        batch_size: int | None = None,
        zero_copy: bool = True,
        sync_traj: bool = True,
        overwork: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Make the environments. The first three arguments are lists with an item for each environment.

        num_workers, batch_size: counts, by default num_envs; they need not divide num_envs. zero_copy, sync_traj: False
        for either makes batches of the environments that finish first; otherwise, environments return in the order of
        sending if their creators accept ``seed``, as those for version 3 do. overwork: accepted, since any number of
        workers is allowed. seed: environment i is created with seed + i, and its first reset without a seed uses
        seed + i; None stands for 0 there, and for 42 here. Other arguments are ignored.

        Raises APIUsageError for impossible counts and for environments that are not wrapped for PufferLib; WorkerError
        if an environment cannot be made.
        """
        creators = one_each_env(list(env_creators), env_args, env_kwargs, num_envs)
        num_workers = num_envs if num_workers is None else num_workers
        batch_size = num_envs if batch_size is None else batch_size
        base = 0 if seed is None else int(seed)
        self._creators = [
            item[0] if isinstance(item[0], Creator) else Creator(*item, base + index)
            for index, item in enumerate(zip(*creators, strict=True))
        ]
        in_turn = zero_copy and sync_traj and version_of_creator(self._creators[0].creator) == 3
        backend = self._backend
        if backend == "multiprocessing" and not in_turn and batch_size < num_envs:
            backend = "pool"
        context = {} if backend in ("serial", "ray") else {"context": _start_method(self._creators)}
        keywords: dict[str, Any] = {"num_workers": num_workers, "batch_size": batch_size, "seed": base, **context}
        self.vecenv = vec = construct.make(list(self._creators), backend=backend, **keywords)
        self._is_native = vec.autoreset_mode == "same_step"
        self._first_seed: int | None = FIRST_SEED if seed is None else base
        self._begins: set[int] = set()  # the environments whose next rows are those of a reset
        self._has_teachers = False
        self._driver: Any = None
        self.flag = RESET
        self.initialized = False
        self.num_environments, self.num_workers = vec.num_envs, vec.num_workers
        self.num_agents = vec.num_envs * vec.agents_per_env
        self.agents_per_batch = vec.agents_per_batch
        self.envs_per_worker = -(-vec.num_envs // vec.num_workers)
        self.workers_per_batch = max(1, -(-vec.batch_size // self.envs_per_worker))
        self.single_observation_space = vec.single_observation_space
        self.single_action_space = vec.single_action_space
        self.observation_space = _joint(vec.single_observation_space, vec.agents_per_batch, vec.observation_space)
        self.action_space = _joint(vec.single_action_space, vec.agents_per_batch, vec.action_space)
        self.obs_batch_shape = (vec.agents_per_batch, *(vec.single_observation_space.shape or ()))
        groups = self.workers_per_batch if vec.agents_per_batch % self.workers_per_batch == 0 else 1
        action_shape = () if isinstance(self.single_action_space, Tuple) else self.single_action_space.shape or ()
        self.atn_batch_shape = (groups, vec.agents_per_batch // groups, *action_shape)
        self.agent_ids: Array = np.arange(self.num_agents)
        if self._ids_by_worker and self.num_agents % self.num_workers == 0:
            self.agent_ids = self.agent_ids.reshape(self.num_workers, -1)
        self.actions: Any = None  # the last ones sent
        self._everyone = np.ones(vec.agents_per_batch, bool)
        self._batch: Any = None
        self._zeros: Any = None  # in its place before the first one
        self._masks: Any = None

    @property
    def num_envs(self) -> int:
        """The number of rows of a batch, as in PufferLib; ``num_environments`` counts environments."""
        return self.agents_per_batch

    @property
    def driver_env(self) -> Any:
        """The first environment if it runs in this process; else one that is made on first use and never stepped."""
        creator = self._creators[0]
        if creator.env is not None:
            return self.envs[0]
        if self._driver is None:
            self._driver = copy.copy(creator)()
        return self._driver

    @property
    def emulated(self) -> Any:
        """The dtypes of the environments' rows; False if they are PufferEnvs."""
        return False if self._is_native else self.driver_env.emulated

    @property
    def envs(self) -> list[Any]:
        """The environments of this process.

        Wrappers have the rows of the last batch in their arrays and ``done``, as of this access.
        """
        if self._batch is not None and self._creators[0].env is not None and not self._is_native:
            batch, n = self._batch, self.vecenv.agents_per_env
            arrays = batch.observations, batch.rewards, batch.terminations, batch.truncations, self._masks
            for index, env_id in enumerate(batch.env_ids.tolist()):
                self._creators[env_id].env.take_rows(*(array[index * n : index * n + n] for array in arrays))
        return [creator.env for creator in self._creators if creator.env is not None]

    @property
    def agents_per_env(self) -> list[int]:
        """The number of rows of each environment."""
        return [self.vecenv.agents_per_env] * self.vecenv.num_envs

    @raises_usage_errors
    def async_reset(self, seed: Any = None) -> None:
        """Start new episodes; ``recv`` returns their first rows.

        seed: an int, to which each environment adds its index; a list or tuple with a seed for each environment; or
        None, with which environments continue with their own generators after the first reset. Raises APIUsageError for
        any other seed.
        """
        if seed is None:
            seed, self._first_seed = self._first_seed, None
        self._first_seed = None
        self.vecenv.async_reset(None if seed is None else make_seeds(seed, self.vecenv.num_envs))
        self.flag, self._begins = RECV, {*range(self.vecenv.num_envs)}

    @raises_usage_errors
    def recv(self) -> tuple[Any, ...]:
        """Return (observations, rewards, terminals, truncations, infos, agent_ids, masks) of the next batch.

        If environments have teacher_actions, as those for pufferlib-core, these are the fifth of eight values: int32
        rows, 0 where there are none. The arrays are valid until the second ``recv`` after this one. masks: False for
        the rows of absent agents.
        Raises APIUsageError before the first reset, and WorkerError if an environment raised or a worker died.
        """
        recv_precheck(self)
        batch = self._batch = self.vecenv.recv()
        self.flag = SEND
        infos: Any = batch.infos.copy()
        teacher_actions: tuple[Any, ...] = ()
        if self._is_native:
            masks = batch.masks
            teacher_actions = self._of_teachers(batch.env_ids, infos)
        elif self.vecenv.multi_agent:
            infos, masks = self._by_environment(batch)
        else:
            masks = self._everyone.copy()
            for info in infos:  # what programs would take for numbers of the environment
                info.pop("agent_id", None)
                if info.get("env") is True:
                    del info["env"]
            if self._begins:
                infos = self._of_resets(batch.env_ids, {info["env_id"]: info for info in infos})
        self._masks = masks
        if self._begins:
            self._begins.difference_update(batch.env_ids.tolist())
        return (
            batch.observations,
            batch.rewards,
            batch.terminations,
            batch.truncations,
            *teacher_actions,
            infos,
            batch.agent_ids,
            masks,
        )

    def _of_teachers(self, env_ids: Array, infos: list[Any]) -> tuple[Any, ...]:
        """Return the teachers' actions, of each row, in a tuple, which is empty without teachers.

        infos: what BufferedRows adds is removed.
        """
        actions = {info["env_id"]: info[TEACHER_ACTIONS] for info in infos if TEACHER_ACTIONS in info}
        self._has_teachers |= bool(actions)
        if not self._has_teachers:
            return ()
        infos[:] = [info for info in infos if TEACHER_ACTIONS not in info]
        nothing = np.zeros((self.vecenv.agents_per_env, *(self.single_action_space.shape or ())), np.int32)
        return (np.concatenate([actions.get(env_id, nothing) for env_id in env_ids.tolist()]),)

    def _by_environment(self, batch: Any) -> tuple[list[dict[str, Any]], Array]:
        """Return infos of agents by name, for each environment that has any, or after a reset for all; and the masks.

        An agent's info has the ``env_id``. The environment's own infos, and then also the ``env_id``, lie next to
        agents.
        """
        vec = self.vecenv
        masks = batch.masks.reshape(-1, vec.agents_per_env)
        begins = ~masks.any(1)
        if begins.any():
            masks = masks.copy()
            masks[begins] = True
        infos: dict[int, dict[str, Any]] = {}
        for info in batch.infos:
            of_env = infos.setdefault(info["env_id"], {})
            if "agent_id" in info:
                name = self._agents[info["agent_id"] % vec.agents_per_env]
                of_env[name] = {key: value for key, value in info.items() if key != "agent_id"}
                continue
            common = dict(info.get("common", {}))  # where ParallelSource puts infos of no agent
            absent = common.pop(AGENTS_ABSENT, None)
            if absent is not None:
                masks[batch.env_ids.tolist().index(info["env_id"]), absent] = False
            if common:
                of_env.update({key: value for key, value in info.items() if key not in ("env", "common")})
                of_env.update(common)
        return self._of_resets(batch.env_ids, infos), masks.reshape(-1)

    @functools.cached_property
    def _agents(self) -> Sequence[Any]:
        """The agents' names, of which the VecEnv has the texts; the environment's own may be numbers or tuples."""
        names = self.vecenv.agent_names
        if all(name.isidentifier() for name in names):
            return names
        agents: Sequence[Any] = self.driver_env.possible_agents
        return agents

    def _of_resets(self, env_ids: Array, infos: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the infos of a batch, by environment, that are not empty, and all of those that were reset."""
        all_infos = [(env_id, infos.get(env_id, {})) for env_id in env_ids.tolist()]
        return [info for env_id, info in all_infos if info or env_id in self._begins]

    @raises_usage_errors
    def send(self, actions: Any) -> None:
        """Send an action for each row of the last batch.

        Raises APIUsageError for actions of a wrong shape, kind or value, and if no batch has been received.
        """
        send_precheck(self, actions)
        self.vecenv.send(actions)
        self.flag, self.initialized, self.actions = RECV, True, actions

    def reset(self, seed: Any = None) -> tuple[Any, Any]:
        """Start new episodes; return (observations, infos). seed: see ``async_reset``."""
        self.async_reset(seed)
        batch = self.recv()
        return batch[0], batch[-3]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Send actions; return (observations, rewards, terminals, truncations, infos) of the next batch."""
        self.send(actions)
        batch = self.recv()
        return *batch[:4], batch[-3]

    def notify(self) -> None:
        """Call ``notify`` of each environment that has it."""
        if callable(getattr(self.driver_env, "notify", None)):
            self.vecenv.call("notify")

    def close(self) -> None:
        """Close all environments and end all workers; it can be called again."""
        self.vecenv.close()
        driver, self._driver = self._driver, None
        if driver is not None and self._creators[0].env is not driver:
            driver.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def observations(self) -> Any:
        """The observations of the last batch."""
        return self._last().observations

    @property
    def rewards(self) -> Any:
        """The rewards of the last batch."""
        return self._last().rewards

    @property
    def terminals(self) -> Any:
        """The terminations of the last batch."""
        return self._last().terminations

    @property
    def truncations(self) -> Any:
        """The truncations of the last batch."""
        return self._last().truncations

    @property
    def masks(self) -> Any:
        """The masks of the last batch."""
        self._last()
        return self._masks

    def _last(self) -> Any:
        """Return the last batch, or zeros of its form before the first."""
        if self._batch is None:
            rows, space = self.agents_per_batch, self.single_observation_space
            self._masks = np.ones(rows, bool)
            self._zeros = self._zeros or SimpleNamespace(
                observations=np.zeros((rows, *(space.shape or ())), space.dtype),
                rewards=np.zeros(rows, np.float32),
                terminations=np.zeros(rows, bool),
                truncations=np.zeros(rows, bool),
            )
            return self._zeros
        return self._batch


def _start_method(creators: Sequence[Creator]) -> str | None:
    """Return "fork", as in PufferLib, if other processes inherit the creators and cannot unpickle them; else None.

    Queues and locks of ``multiprocessing`` among a creator's arguments are such.
    """
    if start_method(None) == "fork" or "fork" not in multiprocessing.get_all_start_methods():
        return None
    try:
        transfer.dumps(creators)
    except Exception:
        return "fork"
    return None


def _joint(space: gymnasium.Space[Any], rows: int, batched: Any) -> Any:
    try:
        return joint_space(space, rows)
    except ValueError:
        return batched


class Serial(_Vectorized):
    """A vecenv whose environments run in this process, one after another, and raise their own exceptions."""

    raises_causes = True

    def __init__(
        self,
        env_creators: Sequence[Callable[..., Any]],
        env_args: Sequence[Sequence[Any]],
        env_kwargs: Sequence[Mapping[str, Any]],
        num_envs: int,
        buf: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Make the environments. The arguments are those of Multiprocessing; ``buf`` is accepted and not used."""
        super().__init__(env_creators, env_args, env_kwargs, num_envs, seed=seed, **kwargs)


class Multiprocessing(_Vectorized):
    """A vecenv whose environments run in worker processes."""

    _backend = "multiprocessing"
    _ids_by_worker = True


class Ray(_Vectorized):
    """A vecenv whose environments run in Ray actors."""

    _backend = "ray"
    _ids_by_worker = True


def make_seeds(seed: Any, num_envs: int) -> list[int]:
    """Return a seed for each environment: seed + index for an int, or the items of a list or tuple.

    Raises APIUsageError for a list of another length, and for anything else.
    """
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        return [int(seed) + index for index in range(num_envs)]
    if isinstance(seed, (list, tuple)) and len(seed) == num_envs:
        return list(seed)
    raise APIUsageError(f"seed must be an int, or a list of {num_envs} ints, got {seed!r:.80}")


def recv_precheck(vecenv: Any) -> None:
    """Raise APIUsageError unless a vecenv has been reset or been sent actions since its last batch."""
    if vecenv.flag != RECV:
        raise APIUsageError("Call reset before stepping" if vecenv.flag == RESET else "Call send before recv")


def send_precheck(vecenv: Any, actions: Any = None) -> None:
    """Raise APIUsageError unless the last batch of a vecenv has been received and not yet been answered."""
    if vecenv.flag != SEND:
        raise APIUsageError("Call (async) reset + recv before sending")
