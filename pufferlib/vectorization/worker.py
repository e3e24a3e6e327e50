"""One worker's environments: make, reset, step, and THE autoreset. It runs in a process, an actor, or in place."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pufferlib.emulation import emulate
from pufferlib.emulation.rows import RowEnv
from pufferlib.errors import SpaceError
from pufferlib.vectorization.messages import Call, Done, EnvFace, Failed, Ready, Reply, Reset
from pufferlib.vectorization.slab import Slab

__all__ = ["Worker", "WorkerTask", "seed_globals"]


class WorkerTask(NamedTuple):
    """What a worker is told at its start. creators: one an environment of the share, called as ``creator()``."""

    worker: int
    env_ids: range
    creators: list[Callable[[], Any]]
    wrap_kwargs: dict[str, Any]
    autoreset_mode: str
    each: bool  # announce each environment as it finishes, rather than all of a request at once


class Worker:
    """The environments of one share. Every answer goes to ``emit``, as a message."""

    def __init__(self, task: WorkerTask, emit: Callable[[Any], None]) -> None:
        self.task = task
        self.emit = emit
        self.envs: dict[int, RowEnv] = {}
        self._over: set[int] = set()  # whose next action starts an episode instead (next_step)
        self._same_step = task.autoreset_mode == "same_step"
        self._next_step = task.autoreset_mode == "next_step"
        self._slab: Slab | None = None
        self._actions: dict[int, Any] = {}

    def build(self) -> None:
        """Make the environments; emits Ready, or Failed."""
        first: EnvFace | None = None
        for env_id, creator in zip(self.task.env_ids, self.task.creators, strict=True):
            try:
                env = self.envs[env_id] = emulate(creator(), **self.task.wrap_kwargs)
                face = EnvFace.of(env)
                if first is None:
                    first = face
                require_same_face(first, self.task.env_ids[0], face, env_id)
            except (Exception, SystemExit) as error:
                self.emit(self._failed(env_id, "__init__", error))
                return
        assert first is not None
        self.emit(Ready(self.task.worker, first))

    def attach(self, slab: Slab) -> None:
        """Take the arrays to read actions from and to write rows to."""
        self._slab = slab
        self._actions = {env_id: slab.action(env_id) for env_id in self.envs}

    def step(self, env_ids: Sequence[int], laps: Sequence[int]) -> None:
        """Play one step of these environments, in this order, each into a lap of its rows."""
        slab = self._slab
        assert slab is not None
        envs, actions, over_set = self.envs, self._actions, self._over
        done: list[int] = []
        overs: list[bool] = []
        infos: list[dict[str, Any]] = []
        try:
            for env_id, lap in zip(env_ids, laps, strict=True):
                env = envs[env_id]
                phase = "step"
                try:
                    rows = slab.rows(env_id, lap)
                    if env_id in over_set:
                        phase = "reset"
                        over_set.discard(env_id)
                        env.reset(None, None)
                        over = False
                    else:
                        over = env.step(actions[env_id])
                    env.write_observations(rows)
                    env.write_outcome(rows)
                    if over:
                        if self._next_step:
                            over_set.add(env_id)
                        elif self._same_step:
                            final = env.infos
                            ended = rows.terminations | rows.truncations
                            observations = rows.observations.copy()
                            phase = "reset"
                            env.reset(None, None)
                            env.write_observations(rows)
                            env.infos = _with_finals(final, env, ended, observations)
                except (Exception, SystemExit) as error:
                    self.emit(self._failed(env_id, phase, error))
                    continue
                done.append(env_id)
                overs.append(over)
                if env.infos:
                    infos += self._infos(env_id, env)
                if self.task.each:
                    self.emit(Done(done, overs, infos))
                    done, overs, infos = [], [], []
        finally:  # also where Ctrl-C interrupts an environment of this very process
            if done:
                self.emit(Done(done, overs, infos))

    def reset(self, request: Reset) -> None:
        """Reset environments, each into a lap of its rows."""
        slab = self._slab
        assert slab is not None
        for env_id, lap, seed, options in request.orders:
            env = self.envs[env_id]
            try:
                env.reset(seed, options)
                rows = slab.rows(env_id, lap)
                env.write_observations(rows)
                env.write_outcome(rows)
            except (Exception, SystemExit) as error:
                self.emit(self._failed(env_id, "reset", error))
                continue
            self._over.discard(env_id)
            self.emit(Done([env_id], [False], self._infos(env_id, env) if env.infos else []))

    def call(self, request: Call) -> None:
        """Call a method, or get or set an attribute, of environments; emits Reply."""
        results: list[Any] = []
        failed = None
        for index, env_id in enumerate(request.env_ids):
            env = self.envs[env_id].env
            try:
                if request.action == "set":
                    _set_attribute(env, request.name, request.args[index])
                    results.append(None)
                    continue
                value = _get_attribute(env, request.name)
                if request.action == "call" and callable(value):
                    value = value(*request.args, **request.kwargs)
                results.append(value)
            except (Exception, SystemExit) as error:
                failed = self._failed(env_id, f"{request.action} {request.name!r}", error)
                break
        self.emit(Reply(request.ticket, self.task.worker, results, failed))

    def close(self) -> None:
        """Close every environment, the others too if one raises; emits Failed for those."""
        for env_id, env in self.envs.items():
            try:
                env.close()
            except (Exception, SystemExit) as error:
                self.emit(self._failed(env_id, "close", error))
        self.envs = {}

    def _infos(self, env_id: int, env: RowEnv) -> list[dict[str, Any]]:
        first_agent = env_id * env.num_agents
        infos = []
        for place, info in env.infos:
            info["env_id"] = env_id
            if place is not None:
                info["agent_id"] = first_agent + place
            infos.append(info)
        env.infos = []
        return infos

    def _failed(self, env_id: int, phase: str, error: BaseException) -> Failed:
        return Failed.of(env_id, self.task.worker, phase, error)


def _with_finals(
    final: list[tuple[int | None, dict[str, Any]]], env: RowEnv, ended: Any, observations: Any
) -> list[tuple[int | None, dict[str, Any]]]:
    """Return the new episode's infos, those of the ended agents extended by final_obs and final_info.

    Episode statistics stay at the top, where they are in every autoreset mode.
    """
    firsts: dict[int | None, dict[str, Any]] = {}
    for place, info in env.infos:
        firsts.setdefault(place, {}).update(info)
    lasts: dict[int | None, dict[str, Any]] = {}
    for place, info in final:
        lasts.setdefault(place, {}).update(info)
    for place in np.flatnonzero(ended).tolist():
        lasts.setdefault(place, {})
    for place, last in lasts.items():
        info = firsts.setdefault(place, {})
        if "episode" in last:
            info["episode"] = last["episode"]
        if "env" in last:
            info["env"] = last["env"]
        if place is not None and ended[place]:
            info["final_obs"] = observations[place].copy() if observations[place].ndim else observations[place]
        info["final_info"] = last
    return list(firsts.items())


def require_same_face(first: EnvFace, first_id: int, face: EnvFace, env_id: int) -> None:
    """Raise SpaceError unless both environments fill the same rows: agents, shapes, dtypes and layout."""

    def rows(face: EnvFace) -> dict[str, Any]:
        observation, action = face.observation_layout, face.action_layout
        return {
            "number of agents": face.num_agents,
            "observations": (face.observation_space.shape, face.observation_space.dtype),
            "observation leaves": getattr(observation, "leaves", None),
            "kind of actions": type(face.action_space),
            "actions": (face.action_space.shape, face.action_space.dtype),
            "action leaves": getattr(action, "leaves", None),
        }

    expected, found = rows(first), rows(face)
    for name in expected:
        if expected[name] != found[name]:
            raise SpaceError(
                f"environments {first_id} and {env_id} differ in their {name}: {expected[name]} and {found[name]}; "
                "all environments of one VecEnv must fill the same rows, so make one VecEnv for each kind"
            )


def _get_attribute(env: Any, name: str) -> Any:
    getter = getattr(env, "get_wrapper_attr", None)  # Gymnasium's own way through its wrappers
    return getattr(env, name) if getter is None else getter(name)


def _set_attribute(env: Any, name: str, value: Any) -> None:
    setter = getattr(env, "set_wrapper_attr", None)
    if setter is None:
        setattr(env, name, value)
    else:
        setter(name, value)


def accepts_env_index(creator: Callable[..., Any]) -> bool:
    """Return whether a creator has a parameter ``env_index``."""
    try:
        return "env_index" in inspect.signature(creator).parameters
    except (TypeError, ValueError):  # builtins and some extension types have no signature
        return False


def seed_globals(entropy: Any, worker: int) -> None:
    """Seed the global generators of this worker process, for environments that draw from those.

    Environments should draw from the generator that ``reset(seed)`` seeds; those that do not would repeat
    each other, process by process, after a fork.
    """
    seed = int(np.random.SeedSequence(entropy, spawn_key=(worker, 0, 1)).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
