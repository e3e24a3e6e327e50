"""Play this project as users do: through public calls, with default checks, masks and episode statistics."""

from __future__ import annotations

import functools
from itertools import product
from typing import Any

import envs
import numpy as np
from player import NotHandled, Player, Task

import pufferlib

BACKENDS = {"serial": "serial", "processes": "multiprocessing", "pool": "pool"}
OPTIONS: dict[str, dict[str, Any]] = {
    "timed": {"step_timeout": 2.0, "reset_timeout": 2.0},
    "restart": {"on_error": "restart"},
    "restart-timed": {"on_error": "restart", "step_timeout": 2.0, "reset_timeout": 2.0},
    "armed": {"on_error": "restart", "step_timeout": 60.0, "reset_timeout": 60.0},
}
ARRANGEMENTS: dict[str, dict[str, Any]] = {
    **{name: {"backend": backend} for name, backend in BACKENDS.items()},
    **{
        f"{name}-{suffix}": {"backend": BACKENDS[name], **OPTIONS[suffix]}
        for name, suffix in product(BACKENDS, OPTIONS)
    },
    "serial-same-step": {"backend": "serial", "autoreset_mode": "same_step"},
    "serial-copy": {"backend": "serial", "copy": True},
    "serial-list": {"backend": "serial"},
    "serial-plain": {"backend": "serial"},
    "processes-read": {"backend": "multiprocessing"},
    "processes-column": {"backend": "multiprocessing"},
    "processes-plain": {"backend": "multiprocessing"},
    "unwatched": {"backend": "multiprocessing", "backend_kwargs": {"telemetry": False}},
}


def start(task: Task) -> Player:
    if task.arrangement == "pack":
        return _pack(task)
    if task.arrangement == "ale":  # a vector environment counts as one environment of several rows
        creator = functools.partial(envs.atari_vector, task.num_envs, task.num_workers)
        return _play(pufferlib.make(creator, seed=0), task.num_envs)
    options = task.choose(**ARRANGEMENTS)
    if task.arrangement.endswith("-plain"):  # to compare with, in the same run
        task = task._replace(env_kwargs={**task.env_kwargs, "returns": "plain"})
    vec = pufferlib.make(
        task.env_creator,
        num_envs=task.num_envs,
        num_workers=task.num_workers,
        batch_size=task.batch_size,
        seed=0,
        **options,
    )
    if task.arrangement in ("processes-read", "processes-column"):
        return _reading(vec, task.arrangement == "processes-column")
    player = _play(vec, task.batch_size, listed=task.arrangement == "serial-list")
    return _with_infos(player, vec) if task.env in envs.FAULTY_ENVS else player


def _play(vec: pufferlib.VecEnv, steps: int, listed: bool = False) -> Player:
    vec.action_space.seed(0)
    actions = vec.action_space.sample()
    if listed:
        actions = actions.tolist()
    received, send = vec.recv, functools.partial(vec.send, actions)

    def recv() -> int:
        received()
        return steps

    vec.async_reset()
    return Player(recv, send, vec.close)


def _reading(vec: pufferlib.VecEnv, column: bool) -> Player:
    """Return a player that reads the infos of each batch: all their values, or those of one key as a column."""
    player = _play(vec, vec.batch_size)
    infos = vec.recv().infos
    if column and not hasattr(infos, "column"):
        vec.close()
        raise NotHandled("this version's infos have no columns")
    player.send()

    def recv() -> int:
        batch = vec.recv()
        if column:
            batch.infos.column("key_0")
        else:
            for info in batch.infos:
                for _ in info.values():
                    pass
        return vec.batch_size

    return player._replace(recv=recv)


def _with_infos(player: Player, vec: pufferlib.VecEnv) -> Player:
    """Return a player that stores the last batch's infos. Only benchmarks/faults.py uses it, which times no steps."""
    infos: list[dict[str, Any]] = []

    def recv() -> int:
        batch = vec.recv()
        infos[:] = batch.infos
        return len(batch.env_ids)

    return player._replace(recv=recv, infos=lambda: infos)


def _pack(task: Task) -> Player:
    from pufferlib.layout import Layout  # here, since this file also plays older revisions

    space = task.env_creator().observation_space
    layout = Layout(space)
    sample = space.sample()
    row = np.zeros(layout.shape, layout.dtype)

    def recv() -> int:
        for _ in range(100):
            layout.pack(sample, row)
        return 100

    return Player(recv, lambda: None, lambda: None)


def about() -> dict[str, Any]:
    """Return the path in use: compiled or portable."""
    try:
        from pufferlib import _native
    except ImportError:
        return {"path": "portable: this version has no compiled path"}
    return {"path": "compiled" if _native.available else f"portable: {_native.reason}"}
