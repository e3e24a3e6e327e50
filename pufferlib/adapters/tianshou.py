"""Replacements for Tianshou's vector environments that run on pufferlib's workers.

    from pufferlib.adapters.tianshou import SubprocVectorEnv            # instead of from tianshou.env
    Collector(algorithm, SubprocVectorEnv([make_env] * 64, num_workers=8), VectorReplayBuffer(20_000, 64))
    AsyncCollector(algorithm, pufferlib.adapters.tianshou.make("ocean/squared", num_envs=64, wait_num=16), buffer)

Batches hold one environment each. Any environment may therefore be stepped or reset at any time, and a step with
``wait_num`` returns the environments that finish first. docs/adapters.md lists the differences.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pufferlib.adapters.common import (
    actions_for,
    ends_of,
    ids_of,
    make_for,
    needs,
    raise_cause,
    recv_arrays,
    require_rows,
)
from pufferlib.errors import CallError, ClosedError, PlanError, RecvTimeout, WorkerError
from pufferlib.util.annotations import Array, EnvSource
from pufferlib.util.parameters import Unpack
from pufferlib.util.renamed import renamed_members
from pufferlib.vectorization import VecEnv
from pufferlib.vectorization.core.parameters import MakeParameters

with needs("tianshou", "tianshou"):
    from tianshou.env import BaseVectorEnv

__all__ = ["DummyVectorEnv", "SubprocVectorEnv", "TianshouVecEnv", "make"]

Ids = int | Sequence[int] | Array | None  # environments; None for all
Step = tuple[Array, Array, Array, Array, Array]  # observations, rewards, terminations, truncations, infos

LIBRARY, MODE = "Tianshou", "disabled"
OURS = ("agent_id", "env")  # keys of infos that Tianshou does not need


class TianshouVecEnv(BaseVectorEnv):
    """A Tianshou vector environment backed by a VecEnv.

    vec: a VecEnv with ``batch_size=1``, one agent per environment, and ``autoreset_mode="disabled"``. wait_num: the
    number of environments that a step waits for, by default all. timeout: seconds after which a step returns the
    results of the environments that have finished, at least one. A later step returns the results of the environments
    that are still stepping. Observations of Dict and Tuple spaces are object arrays with one element per environment.
    Each info has ``env_id`` and, at an episode's end, ``episode`` ({"r", "l", "t"}). The caller resets ended episodes,
    as Tianshou's collectors do.

    Raises PlanError for another batch size or autoreset mode or an impossible wait_num or timeout; SpaceError if vec
    has several agents per environment or mixed discrete and continuous actions.
    """

    def __init__(self, vec: VecEnv, wait_num: int | None = None, timeout: float | None = None) -> None:
        require_rows(LIBRARY, MODE, vec)
        num = vec.num_envs
        if vec.agents_per_batch != 1:
            raise PlanError(f"batches of {vec.agents_per_batch}, but Tianshou steps any environments; use batch_size=1")
        if wait_num is not None and not 1 <= wait_num <= num:
            raise PlanError(f"wait_num={wait_num} is not 1 to num_envs={num}")
        if timeout is not None and timeout <= 0:
            raise PlanError(f"timeout={timeout} lets no environment finish; use seconds above 0, or None")
        self.vec = vec
        self.env_num = num
        self.wait_num = wait_num or num
        self.timeout = timeout
        self.is_async = self.wait_num != num or timeout is not None
        self.waiting_id: list[int] = []
        self.ready_id = list(range(num))
        self._arrived: deque[int] = deque()  # of waiting_id, the environments whose rows have been received
        self._seeds: list[int | None] = [None] * num  # of the next resets
        self._layout = vec.observation_layout
        space = vec.single_observation_space
        self._rows = np.zeros((num, *(space.shape or ())), space.dtype)
        self._rewards = np.zeros(num)
        self._terminations, self._truncations = np.zeros(num, np.bool_), np.zeros(num, np.bool_)
        self._infos: list[dict[str, Any]] = [{} for _ in range(num)]

    def reset(self, env_id: Ids = None, **kwargs: Any) -> tuple[Array, Array]:
        """Start new episodes and return (observations, infos).

        env_id: an environment's number, a list of numbers, or None for all environments; None also abandons steps in
        progress. seed: an integer gives environment i the seed ``seed + i``; a list has one seed for each environment
        in env_id, or one for each of all environments; by default, the seeds that the method ``seed`` has set are used,
        each of them once. options: a dict for all environments. Raises CallError if a step of an environment in env_id
        is in progress; PlanError for other keywords or a wrong number of seeds.
        """
        ids = self._ids(env_id)
        seeds: Any = self._take_seeds(ids, kwargs.pop("seed", None))
        if seeds.count(None) == len(seeds):  # kernels do not accept a None for single environments
            seeds = None
        options = kwargs.pop("options", None)
        if kwargs:
            raise PlanError(f"reset takes seed and options, not {', '.join(kwargs)}")
        if env_id is None:
            self.vec.async_reset(seeds, options)
            self.waiting_id, self.ready_id = [], list(ids)
            self._arrived.clear()
        else:
            self._require_ready(ids)
            self.vec.async_reset(seeds, options, ids)
        self._await(set(ids))
        return self._observations(ids), self._infos_of(ids)

    def step(self, action: object, id: Ids = None) -> Step:
        """Play one step and return (observations, rewards, terminations, truncations, infos).

        With ``wait_num`` or ``timeout``, the results are those of the environments that finish first.

        action: one for each environment in id, in that order; with ``wait_num`` or ``timeout``, None waits for steps in
        progress without starting any. id: an environment's number, a list of numbers, or None for all environments.
        Raises CallError if a step of an environment in id is in progress.
        """
        if not self.is_async:
            ids = self._ids(id)
            self._send(action, ids)
            self._await(set(ids))
        else:
            if action is not None:
                ids = self._ids(id)
                self._require_ready(ids)
                self._send(action, ids)
                self.waiting_id += ids
                self.ready_id = [env_id for env_id in self.ready_id if env_id not in ids]
            ids = self._first_to_finish()
        return (
            self._observations(ids),
            self._rewards[ids],
            self._terminations[ids],
            self._truncations[ids],
            self._infos_of(ids),
        )

    def seed(self, seed: Any = None) -> list[list[int] | None]:
        """Set the seed of each environment's next reset, and return one entry per environment: [seed] or None.

        seed: an integer gives environment i the seed ``seed + i``; a list has one seed per environment; None removes
        the seeds that were set.
        """
        self._seeds = self._seed_list(seed)
        return [None if env_seed is None else [env_seed] for env_seed in self._seeds]

    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:
        """Return the value of attribute ``key`` for each environment in id.

        If the environments run in other processes, the values are copies. The values of "observation_space" and
        "action_space" are always copies of the VecEnv's spaces.

        An environment's exception is raised unchanged, except that a PufferError is raised as a WorkerError.
        """
        ids, vec = self._ids(id), self.vec
        if key in ("observation_space", "action_space"):  # the VecEnv's; copies, because sampling changes them
            space = self._layout.space if key == "observation_space" else vec.single_action_space
            return [copy.deepcopy(space) for _ in ids]
        try:
            return vec.get_attr(key, env_ids=ids)
        except WorkerError as error:
            raise_cause(error)

    def set_env_attr(self, key: str, value: object, id: Ids = None) -> None:
        """Set attribute ``key`` of the environments in id to one value.

        An environment's exception is raised unchanged, except that a PufferError is raised as a WorkerError.
        """
        ids = self._ids(id)
        try:
            self.vec.set_attr(key, [value] * len(ids), env_ids=ids)
        except WorkerError as error:
            raise_cause(error)

    def render(self, **kwargs: Any) -> list[Any]:
        """Render each environment and return the results."""
        return self.vec.call("render", **kwargs)

    def close(self) -> None:
        """Close all environments; safe to call again."""
        self.vec.close()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` has been called."""
        return self.vec.closed

    def _ids(self, ids: Ids) -> list[int]:
        if self.vec.closed:
            raise ClosedError(f"this {type(self).__name__} is closed; make a new one")
        return list(range(self.env_num)) if ids is None else ids_of(np.atleast_1d(ids), self.env_num)

    def _send(self, actions: object, ids: list[int]) -> None:
        self.vec.send(actions_for(self.vec.single_action_space, np.asarray(actions)), ids)

    def _require_ready(self, ids: list[int]) -> None:
        busy = [env_id for env_id in ids if env_id in self.waiting_id]
        if busy:
            raise CallError(f"environments {busy} are stepping; step(None) waits for them")

    def _seed_list(self, seed: Any) -> list[int | None]:
        if seed is None or np.ndim(seed) == 0:
            return [None if seed is None else int(seed) + env_id for env_id in range(self.env_num)]
        if len(seed) != self.env_num:
            raise PlanError(f"{len(seed)} seeds for {self.env_num} environments; give one each, or a single number")
        return list(seed)

    def _take_seeds(self, ids: list[int], seed: Any) -> list[int | None]:
        if seed is not None:
            if np.ndim(seed) and len(seed) == len(ids):
                return list(seed)
            every_seed = self._seed_list(seed)
            return [every_seed[env_id] for env_id in ids]
        seeds = [self._seeds[env_id] for env_id in ids]
        for env_id in ids:
            self._seeds[env_id] = None
        return seeds

    def _first_to_finish(self) -> list[int]:
        """Wait until ``wait_num`` environments have finished their steps; mark them as ready and return their numbers.

        Returns fewer numbers if fewer environments are stepping, or if the timeout passes after the first has finished.
        """
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        ids: list[int] = []
        while len(ids) < min(self.wait_num, len(self.waiting_id)):
            if self._arrived:
                ids.append(self._arrived.popleft())
                continue
            try:
                left_s = None if deadline is None or not ids else max(0.0, deadline - time.monotonic())
                ids.append(self._receive(left_s))
            except RecvTimeout:
                break
        self.waiting_id = [env_id for env_id in self.waiting_id if env_id not in ids]
        self.ready_id += ids
        return ids

    def _await(self, awaited: set[int]) -> None:
        """Receive rows until all awaited environments have answered.

        Other environments that answer in the meantime are added to ``_arrived``. awaited: the numbers of the awaited
        environments; the set is emptied.
        """
        while awaited:
            env_id = self._receive(None)
            if env_id in awaited:
                awaited.discard(env_id)
            else:
                self._arrived.append(env_id)

    def _receive(self, timeout: float | None) -> int:
        """Receive the next row, store it and return its environment's number."""
        batch = recv_arrays(self.vec, timeout)
        env_id = int(batch.env_ids[0])
        self._rows[env_id] = batch.observations[0]
        self._rewards[env_id] = batch.rewards[0]
        (self._terminations[env_id],), (self._truncations[env_id],) = ends_of(batch)
        info: dict[str, Any] = {}
        for row_info in batch.infos:
            info.update((key, part) for key, part in row_info.items() if key not in OURS)
        info["env_id"] = env_id
        self._infos[env_id] = info
        return env_id

    def _observations(self, ids: list[int]) -> Array:
        rows = self._rows[ids]
        if self._layout.is_leaf:
            return rows
        observations = np.empty(len(ids), object)
        for index, row in enumerate(rows):
            observations[index] = self._layout.decode(row)
        return observations

    def _infos_of(self, ids: list[int]) -> Array:
        infos = np.empty(len(ids), object)
        for index, env_id in enumerate(ids):
            infos[index] = self._infos[env_id]
        return infos


class DummyVectorEnv(TianshouVecEnv):
    """A replacement for Tianshou's DummyVectorEnv, which steps all environments in this process.

    wait_num, timeout: see TianshouVecEnv.
    """

    def __init__(
        self, env_fns: Sequence[Callable[[], Any]], wait_num: int | None = None, timeout: float | None = None
    ) -> None:
        super().__init__(make_for(LIBRARY, MODE, list(env_fns), {"batch_size": 1}), wait_num, timeout)


class SubprocVectorEnv(TianshouVecEnv):
    """A replacement for Tianshou's SubprocVectorEnv. A worker process may hold several environments.

    wait_num, timeout: see TianshouVecEnv. share_memory: ignored, because rows always go through shared memory. context:
    "fork" or "spawn", by default fork if that is safe. num_workers: the number of processes, by default one per
    available CPU; Tianshou starts one per environment.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        wait_num: int | None = None,
        timeout: float | None = None,
        share_memory: bool = False,
        context: str | None = None,
        num_workers: int | None = None,
    ) -> None:
        kwargs = {"backend": "pool", "batch_size": 1, "context": context, "num_workers": num_workers}
        super().__init__(make_for(LIBRARY, MODE, list(env_fns), kwargs), wait_num, timeout)


def make(
    env: EnvSource, wait_num: int | None = None, timeout: float | None = None, **kwargs: Unpack[MakeParameters]
) -> TianshouVecEnv:
    """Return ``pufferlib.make(env, …)``, by default on ``backend="pool"``, as a TianshouVecEnv.

    wait_num, timeout: see TianshouVecEnv. The other arguments are those of ``pufferlib.make``, except batch_size, which
    is 1. Raises the errors of ``pufferlib.make`` and of TianshouVecEnv.
    """
    return TianshouVecEnv(
        make_for(LIBRARY, MODE, env, {"backend": "pool", "batch_size": 1, **kwargs}), wait_num, timeout
    )


__getattr__ = renamed_members(__name__, {"Face": "TianshouVecEnv"})
