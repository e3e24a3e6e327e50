"""PufferLib's ``vector``: its calls and attributes, on the vectorization of ``pufferlib.make``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

import pufferlib  # noqa: F401  # programs read pufferlib.vector.pufferlib.emulation
from pufferlib import construct
from pufferlib.compat.exceptions import APIUsageError, raises_usage_errors
from pufferlib.compat.gymnasium_env import GymnasiumPufferEnv
from pufferlib.compat.pettingzoo_env import PettingZooPufferEnv
from pufferlib.compat.puffer_env import BufferedEnv, set_buffers
from pufferlib.compat.sources import AGENTS_ABSENT
from pufferlib.compat.spaces import Tuple, joint_space
from pufferlib.compat.versions import parameters_of, version_of_creator
from pufferlib.environment import PufferEnv
from pufferlib.errors import PlanError
from pufferlib.util.annotations import Array

__all__ = [
    "CLOSE",
    "INFO",
    "MAIN",
    "RECV",
    "RESET",
    "SEND",
    "STEP",
    "GymnasiumPufferEnv",
    "Multiprocessing",
    "PettingZooPufferEnv",
    "PufferEnv",
    "Ray",
    "Serial",
    "autotune",
    "check_envs",
    "joint_space",
    "make",
    "make_seeds",
    "recv_precheck",
    "reset",
    "send_precheck",
    "set_buffers",
    "step",
]

RESET, STEP, SEND, RECV, CLOSE, MAIN, INFO = range(7)
KINDS = (GymnasiumPufferEnv, PettingZooPufferEnv, BufferedEnv)
FIRST_SEED = 42  # PufferLib's seed of a reset without one
ARGUMENTS = ("num_workers", "batch_size", "zero_copy", "overwork", "sync_traj", "buf")


class _Creator:
    """A creator of one environment, with its arguments, that passes ``buf`` and ``seed`` only if they are accepted.

    A creator that takes any keyword gets both in programs for version 3, and is called again without those that a
    TypeError names. seed: None offers neither. ``env``: the environment that it made last in this process. ``unused``:
    an environment that the next call returns.
    """

    def __init__(
        self, creator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], seed: int | None
    ) -> None:
        self.creator, self.args, self.kwargs, self.seed = creator, args, kwargs, seed
        self.env: Any = None
        self.unused: Any = None

    def __call__(self) -> Any:
        if self.unused is not None:
            env, self.unused = self.unused, None
            return env
        names, takes_any = parameters_of(self.creator)
        if takes_any and version_of_creator(self.creator) == 3:
            names = {*names, "buf", "seed"}
        offered = {} if self.seed is None else {"buf": None, "seed": self.seed}
        extra = {name: value for name, value in offered.items() if name in names and name not in self.kwargs}
        env = self._create(extra)
        if not isinstance(env, KINDS):
            _close(env)
            raise _not_puffer(env)
        self.env = env
        return env

    def _create(self, extra: Mapping[str, Any]) -> Any:
        try:
            return self.creator(*self.args, **self.kwargs, **extra)
        except TypeError as error:
            fitting = {name: extra[name] for name in extra if f"unexpected keyword argument '{name}'" not in str(error)}
            if len(fitting) == len(extra):
                raise
        return self._create(fitting)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "env": None, "unused": None}


def _not_puffer(env: object) -> APIUsageError:
    name = type(env).__name__
    if isinstance(env, PufferEnv):
        return APIUsageError(
            f"{name} is a PufferEnv that neither takes buf nor calls super().__init__(buf). If its step returns "
            "observations, call super().__init__(buf); if it returns infos alone, use pufferlib.make in place of "
            "pufferlib.vector.make"
        )
    return APIUsageError(
        f"the creator returned a {name}; it must return a GymnasiumPufferEnv, a PettingZooPufferEnv or a PufferEnv, "
        "such as pufferlib.emulation.GymnasiumPufferEnv(env)"
    )


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
        creators = _one_each_env(list(env_creators), env_args, env_kwargs, num_envs)
        num_workers = num_envs if num_workers is None else num_workers
        batch_size = num_envs if batch_size is None else batch_size
        base = 0 if seed is None else int(seed)
        self._creators = [
            item[0] if isinstance(item[0], _Creator) else _Creator(*item, base + index)
            for index, item in enumerate(zip(*creators, strict=True))
        ]
        in_turn = zero_copy and sync_traj and version_of_creator(self._creators[0].creator) == 3
        backend = self._backend
        if backend == "multiprocessing" and not in_turn and batch_size < num_envs:
            backend = "pool"
        self.vecenv = vec = construct.make(
            list(self._creators),
            backend=backend,
            num_workers=num_workers,
            batch_size=batch_size,
            seed=base,
        )
        self._is_native = vec.autoreset_mode == "same_step"
        self._first_seed: int | None = FIRST_SEED if seed is None else base
        self._begins = False  # whether the next batch holds first rows
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
        self.flag, self._begins = RECV, True

    @raises_usage_errors
    def recv(self) -> tuple[Any, Any, Any, Any, Any, Any, Any]:
        """Return (observations, rewards, terminals, truncations, infos, agent_ids, masks) of the next batch.

        The arrays are valid until the second ``recv`` after this one. masks: False for the rows of absent agents.
        Raises APIUsageError before the first reset, and WorkerError if an environment raised or a worker died.
        """
        recv_precheck(self)
        batch = self._batch = self.vecenv.recv()
        self.flag = SEND
        infos = batch.infos.copy()
        if self._is_native:
            masks = batch.masks
        elif self.vecenv.multi_agent:
            infos, masks = self._by_environment(batch)
        else:
            masks = self._everyone.copy()
            if self._begins:
                infos = _one_each(infos, batch.env_ids)
        self._begins, self._masks = False, masks
        return (
            batch.observations,
            batch.rewards,
            batch.terminations,
            batch.truncations,
            infos,
            batch.agent_ids,
            masks,
        )

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
        infos: dict[int, dict[str, Any]] = {env_id: {} for env_id in batch.env_ids.tolist()} if self._begins else {}
        for info in batch.infos:
            of_env = infos.setdefault(info["env_id"], {})
            if "agent_id" in info:
                name = vec.agent_names[info["agent_id"] % vec.agents_per_env]
                of_env[name] = {key: value for key, value in info.items() if key != "agent_id"}
                continue
            common = dict(info.get("common", {}))  # where ParallelSource puts infos of no agent
            absent = common.pop(AGENTS_ABSENT, None)
            if absent is not None:
                masks[batch.env_ids.tolist().index(info["env_id"]), absent] = False
            if common:
                of_env.update({key: value for key, value in info.items() if key not in ("env", "common")})
                of_env.update(common)
        return [info for info in infos.values() if info or self._begins], masks.reshape(-1)

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
        observations, _, _, _, infos, _, _ = self.recv()
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Send actions; return (observations, rewards, terminals, truncations, infos) of the next batch."""
        self.send(actions)
        return self.recv()[:5]

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


def _joint(space: gymnasium.Space[Any], rows: int, batched: Any) -> Any:
    try:
        return joint_space(space, rows)
    except ValueError:
        return batched


def _one_each(infos: Any, env_ids: Array) -> list[dict[str, Any]]:
    by_env = {info["env_id"]: info for info in infos}
    return [by_env.get(env_id, {}) for env_id in env_ids.tolist()]


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


@raises_usage_errors
def make(
    env_creator_or_creators: Any,
    env_args: Any = None,
    env_kwargs: Any = None,
    backend: Any = None,
    num_envs: int = 1,
    seed: int | None = None,
    **kwargs: Any,
) -> Any:
    """Return a vecenv of ``num_envs`` environments.

    env_creator_or_creators: a callable that returns a GymnasiumPufferEnv, a PettingZooPufferEnv or a PufferEnv; or a
        list of them, one for each environment. env_args, env_kwargs: the creator's arguments; lists of them, one for
        each environment, if there is a list of creators.
    backend: Serial, Multiprocessing or Ray, as classes or words; or PufferEnv, which returns the only environment
        itself, as its own vecenv. By default, PufferEnv for a PufferEnv, as in versions 2 and 3, else Serial, as in
        version 1.
    seed, and the other arguments: as for the backends; num_workers and batch_size may also be "auto". An environment
    that is returned itself gets the seed only if it is not None.

    Raises APIUsageError for other arguments and impossible counts, and the errors of the backends.
    """
    unknown = [name for name in kwargs if name not in ARGUMENTS]
    if unknown:
        raise APIUsageError(f"Invalid argument: {unknown[0]}; make takes {', '.join(ARGUMENTS)} besides its parameters")
    creators, args, keywords = _one_each_env(env_creator_or_creators, env_args, env_kwargs, num_envs)
    kind = _backend_of(backend)
    if kind is PufferEnv or kind is None:
        creator = creators[0] = _Creator(creators[0], args[0], keywords[0], seed)
        env = _native(creator, num_envs, must=kind is PufferEnv)
        if isinstance(env, BufferedEnv):
            return env
        creator.unused, kind = env, Serial
        try:
            return make(creators, args, keywords, kind, num_envs, seed, **kwargs)
        except BaseException:
            if creator.unused is not None:
                _close(creator.unused)
            raise
    counts = {name: kwargs.pop(name, None) for name in ("num_workers", "batch_size")}
    if counts["num_workers"] == "auto":
        counts["num_workers"] = num_envs
    if counts["batch_size"] == "auto":
        counts["batch_size"] = max(1, num_envs // 2)
    return kind(creators, args, keywords, num_envs, seed=seed, **counts, **kwargs)


def _one_each_env(creator: Any, args: Any, kwargs: Any, num_envs: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Return lists of creators, arguments and keyword arguments with an item for each environment."""
    if not isinstance(num_envs, (int, np.integer)) or isinstance(num_envs, bool) or num_envs < 1:
        raise APIUsageError(f"num_envs must be a whole number of at least 1, got {num_envs!r}")
    num_envs = int(num_envs)
    if not isinstance(creator, (list, tuple)):
        if not callable(creator):
            raise APIUsageError(f"env_creator must be callable, got {creator!r}")
        return [creator] * num_envs, [args or []] * num_envs, [kwargs or {}] * num_envs
    args = [[]] * num_envs if args is None else args
    kwargs = [{}] * num_envs if kwargs is None else kwargs
    for name, items, kind in (
        ("env_creators", creator, Callable),
        ("env_args", args, (list, tuple)),
        ("env_kwargs", kwargs, Mapping),
    ):
        if not isinstance(items, (list, tuple)) or len(items) != num_envs:
            raise APIUsageError(f"{name} must be a list of length num_envs={num_envs}, got {items!r:.80}")
        wrong = [item for item in items if not isinstance(item, kind)]  # type: ignore[arg-type]
        if wrong:
            raise APIUsageError(f"{name} must be a list of {_plural(name)}, got {wrong[0]!r:.80}")
    return list(creator), list(args), list(kwargs)


def _plural(name: str) -> str:
    return {"env_creators": "callables", "env_args": "lists", "env_kwargs": "dicts"}[name]


def _backend_of(backend: Any) -> Any:
    words = {"Serial": Serial, "Multiprocessing": Multiprocessing, "Ray": Ray, "PufferEnv": PufferEnv}
    if backend is None or backend in (Serial, Multiprocessing, Ray, PufferEnv):
        return backend
    if isinstance(backend, str) and backend in words:
        return words[backend]
    if isinstance(backend, type):
        return backend
    raise APIUsageError(f"Invalid backend: {backend!r}; use {', '.join(words)}")


def _native(creator: _Creator, num_envs: int, *, must: bool) -> Any:
    """Create an environment. Raises APIUsageError if it is native and one of several, or if it must be, but is not."""
    env = creator()
    if isinstance(env, BufferedEnv) and num_envs != 1:
        wrong = f"num_envs=1, got {num_envs}; the environment sets num_agents itself"
    elif must and not isinstance(env, BufferedEnv):
        wrong = f"a native PufferEnv, got {type(env).__name__}; pass backend=Serial or backend=Multiprocessing"
    else:
        return env
    _close(env)
    raise APIUsageError(f"Native vectorization requires {wrong}")


def _close(env: Any) -> None:
    close = getattr(env, "close", None)
    if callable(close):
        close()


def make_seeds(seed: Any, num_envs: int) -> list[int]:
    """Return a seed for each environment: seed + index for an int, or the items of a list or tuple.

    Raises APIUsageError for a list of another length, and for anything else.
    """
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        return [int(seed) + index for index in range(num_envs)]
    if isinstance(seed, (list, tuple)) and len(seed) == num_envs:
        return list(seed)
    raise APIUsageError(f"seed must be an int, or a list of {num_envs} ints, got {seed!r:.80}")


def reset(vecenv: Any, seed: Any = None) -> tuple[Any, Any]:
    """Start new episodes of a vecenv; return (observations, infos)."""
    vecenv.async_reset(seed)
    observations, _, _, _, infos, _, _ = vecenv.recv()
    return observations, infos


def step(vecenv: Any, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Send actions to a vecenv; return (observations, rewards, terminals, truncations, infos) of the next batch."""
    vecenv.send(np.asarray(actions))
    observations, rewards, terminals, truncations, infos, _, _ = vecenv.recv()
    return observations, rewards, terminals, truncations, infos


def recv_precheck(vecenv: Any) -> None:
    """Raise APIUsageError unless a vecenv has been reset or been sent actions since its last batch."""
    if vecenv.flag != RECV:
        raise APIUsageError("Call reset before stepping" if vecenv.flag == RESET else "Call send before recv")


def send_precheck(vecenv: Any, actions: Any = None) -> None:
    """Raise APIUsageError unless the last batch of a vecenv has been received and not yet been answered."""
    if vecenv.flag != SEND:
        raise APIUsageError("Call (async) reset + recv before sending")


def check_envs(envs: Sequence[Any], driver: Any) -> None:
    """Raise APIUsageError unless environments are wrapped for PufferLib and have the spaces of ``driver``."""
    for env in envs:
        if not isinstance(env, KINDS):
            raise _not_puffer(env)
        for name in ("single_observation_space", "single_action_space"):
            if getattr(env, name) != getattr(driver, name):
                raise APIUsageError(
                    f"{name} is {getattr(env, name)}, but {getattr(driver, name)} in other environments"
                )


def autotune(
    env_creator: Callable[..., Any],
    batch_size: int,
    max_envs: int = 194,
    model_forward_s: float = 0.0,
    max_env_ram_gb: float = 32,
    max_batch_vram_gb: float = 0.05,
    time_per_test: float = 5,
) -> None:
    """Print which arguments of ``make`` run an environment fastest.

    batch_size: rows. max_envs: the maximum number of environments; one to four batches of them are tried, as far as it
    allows. model_forward_s: the learner's time for a batch, in
    seconds. max_env_ram_gb: the memory for all environments. time_per_test: seconds; the search takes six times as
    long. Raises ValueError if batch_size is None or above max_envs, or if a batch exceeds ``max_batch_vram_gb``.
    """
    if batch_size is None:
        raise ValueError("batch_size=None; give the number of rows that your learner takes")
    if max_envs < batch_size:
        raise ValueError(f"max_envs={max_envs} is less than batch_size={batch_size}")
    driver = _Creator(env_creator, (), {}, 0)()
    agents, nbytes = driver.num_agents, driver.observations[0].nbytes
    _close(driver)
    if batch_size * nbytes > max_batch_vram_gb * 1e9:
        raise ValueError(f"a batch takes {batch_size * nbytes / 1e9:.3g} GB; max_batch_vram_gb={max_batch_vram_gb}")
    from pufferlib.tuning.autotune import autotune as tune  # its imports cost more than this module's

    batch_size = max(1, batch_size // agents)
    totals = [times * batch_size for times in (1, 2, 3, 4) if times * batch_size <= max_envs]
    limits: dict[str, Any] = {
        "learner_s": model_forward_s,
        "max_memory": int(max_env_ram_gb * 1e9),
        "budget_s": 6 * time_per_test / len(totals),
    }
    plans: list[Any] = []
    for num_envs in totals:
        try:
            plans.append(tune(_Creator(env_creator, (), {}, 0), num_envs=num_envs, batch_size=batch_size, **limits))
        except PlanError:  # more environments do not fit into the memory either
            if not plans:
                raise
            break
    plan = max(plans, key=lambda plan: next(row.median for row in plan.table if row.plan == dict(plan)))
    backend = "Serial" if plan["backend"] == "serial" else "Multiprocessing"
    counts = [f"{name}={plan[name]}" for name in ("num_envs", "num_workers", "batch_size") if name in plan]
    print(f"fastest: make(env_creator, backend={backend}, {', '.join(counts)})")
