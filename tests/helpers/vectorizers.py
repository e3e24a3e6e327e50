"""Ours and Gymnasium's vector environments behind one small face, so that one test body runs over them all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

import pufferlib


class Rows(NamedTuple):
    """What one call gave back, one entry an environment, observations in their own structure."""

    observations: list[Any]
    rewards: Any
    terminations: Any
    truncations: Any
    infos: list[dict[str, Any]]


class Vectorized(Protocol):
    """Environments behind one object, actions and observations in the spaces of a single one."""

    single_observation_space: Any
    single_action_space: Any

    def reset(self, seed: int | None = None, env_ids: Sequence[int] | None = None) -> Rows: ...
    def step(self, actions: Sequence[Any]) -> Rows: ...
    def get_attr(self, name: str) -> Sequence[Any]: ...
    def close(self) -> None: ...


Vectorizer = Callable[..., Any]  # (creators, **some arguments of make) -> a context manager of Vectorized


class Ours:
    """A VecEnv, by that face."""

    def __init__(self, backend: str, creators: Sequence[Callable[[], Any]], **kwargs: Any) -> None:
        self.vec = pufferlib.make(creators, backend=backend, **kwargs)
        self.single_observation_space = self.vec.single_observation_space
        self.single_action_space = self.vec.single_action_space
        self.get_attr = self.vec.get_attr
        self.close = self.vec.close

    def rows(self) -> Rows:
        batch = self.vec.batch
        assert batch is not None
        infos: list[dict[str, Any]] = [{} for _ in range(self.vec.num_envs)]
        row_infos: Sequence[dict[str, Any]] = batch.infos
        for info in row_infos:
            infos[info["env_id"]].update(info)
        observations = [self.vec.observation_layout.decode(row) for row in batch.observations]
        outcome = (batch.rewards.copy(), batch.terminations.copy(), batch.truncations.copy())
        return Rows._make((observations, *outcome, infos))

    def reset(self, seed: int | None = None, env_ids: Sequence[int] | None = None) -> Rows:
        self.vec.reset(seed=seed, env_ids=env_ids)
        return self.rows()

    def step(self, actions: Sequence[Any]) -> Rows:
        flat = [self.vec.action_layout.flatten(action) for action in actions]
        pairs = isinstance(flat[0], tuple)  # of discrete and continuous components
        self.vec.step(tuple(map(np.stack, zip(*flat, strict=True))) if pairs else np.stack(flat))
        return self.rows()

    def __enter__(self) -> Ours:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Gymnasiums:
    """One of Gymnasium's vector environments, by the same face."""

    def __init__(
        self,
        make: Callable[..., Any],
        creators: Sequence[Callable[[], Any]],
        seed: int | None = None,
        autoreset_mode: str = "next_step",
        num_workers: int | None = None,  # Gymnasium has one an environment
        wrap_kwargs: Any = None,
    ) -> None:
        self.vec = make(creators, autoreset_mode=gymnasium.vector.AutoresetMode[autoreset_mode.upper()])
        self.seed = seed
        self.broken = False
        self.single_observation_space = self.vec.single_observation_space
        self.single_action_space = self.vec.single_action_space
        self.get_attr = self.vec.get_attr

    def rows(self, observations: Any, *outcome: Any) -> Rows:
        *flags, infos = outcome
        env_infos = [self.infos_of(env_id, infos) for env_id in range(self.vec.num_envs)]
        single = isinstance(observations, tuple) and not isinstance(self.single_observation_space, spaces.Tuple)
        values = observations if single else iterate(self.vec.observation_space, observations)  # of what has no batches
        return Rows._make((list(values), *(flags or (None,) * 3), env_infos))

    def infos_of(self, env_id: int, infos: dict[str, Any]) -> dict[str, Any]:
        return {
            key: self.infos_of(env_id, values) if isinstance(values, dict) else values[env_id]
            for key, values in infos.items()
            if f"_{key}" in infos and infos[f"_{key}"][env_id]
        }

    def reset(self, seed: int | None = None, env_ids: Sequence[int] | None = None) -> Rows:
        seed, self.seed = (self.seed if seed is None else seed), None
        options = None
        if env_ids is not None:
            options = {"reset_mask": np.isin(np.arange(self.vec.num_envs), env_ids)}
        return self.rows(*self.vec.reset(seed=seed, options=options))

    def step(self, actions: Sequence[Any]) -> Rows:
        space = self.single_action_space
        empty: Any = create_empty_array(space, len(actions))
        batch = concatenate(space, actions, empty)
        self.broken = True
        rows = self.rows(*self.vec.step(batch))
        self.broken = False
        return rows

    def close(self) -> None:
        self.vec.close(**({"terminate": True} if self.broken else {}))  # or it waits for what never comes
        for process in getattr(self.vec, "processes", ()):
            process.close()
        queue = getattr(self.vec, "error_queue", None)
        if queue is not None:  # else its pipe stays open for as long as anyone holds the exception
            queue._reader.close()
            queue._writer.close()

    def __enter__(self) -> Gymnasiums:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


OURS: dict[str, Vectorizer] = {
    backend: functools.partial(Ours, backend) for backend in ("serial", "multiprocessing", "pool")
}
PROCESSES = {name: make for name, make in OURS.items() if name != "serial"}
GYMNASIUMS: dict[str, Vectorizer] = {}
if tuple(map(int, gymnasium.__version__.split(".")[:2])) >= (1, 4):  # what is said of Gymnasium is said of 1.4
    GYMNASIUMS = {
        "gymnasium-sync": functools.partial(Gymnasiums, gymnasium.vector.SyncVectorEnv),
        "gymnasium-shared": functools.partial(Gymnasiums, gymnasium.vector.AsyncVectorEnv),
        "gymnasium-pipes": functools.partial(
            Gymnasiums, functools.partial(gymnasium.vector.AsyncVectorEnv, shared_memory=False)
        ),
    }
GYMNASIUM_PROCESSES = {name: make for name, make in GYMNASIUMS.items() if name != "gymnasium-sync"}
ALL = {**OURS, **GYMNASIUMS}


def over(vectorizers: dict[str, Vectorizer], **fails: tuple[Any, str]) -> Any:
    """Parametrize by these vectorizers; those named must fail, with this exception and for this reason."""
    marks = {
        name.replace("_", "-"): [pytest.mark.xfail(raises=raises, reason=reason, strict=True)]
        for name, (raises, reason) in fails.items()
    }
    params = [pytest.param(make, id=name, marks=marks.get(name, ())) for name, make in vectorizers.items()]
    return pytest.mark.parametrize("vectorizer", params)
