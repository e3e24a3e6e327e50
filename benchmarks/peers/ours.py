"""This project, as a user has it: public calls, default checks, masks and episode statistics on."""

from __future__ import annotations

import functools
from typing import Any

import envs
import numpy as np
from player import Player, Task

import pufferlib
from pufferlib.layout import Layout


def start(task: Task) -> Player:
    if task.arrangement == "pack":
        return _pack(task)
    if task.arrangement == "ale":  # a vector environment is one environment of as many rows
        creator = functools.partial(envs.atari_vector, task.num_envs, task.num_workers)
        return _play(pufferlib.make(creator, seed=0), task.num_envs)
    backend = task.choose(serial="serial", processes="multiprocessing", pool="pool", unwatched="multiprocessing")
    vec = pufferlib.make(
        task.env_creator,
        backend=backend,
        num_envs=task.num_envs,
        num_workers=task.num_workers,
        batch_size=task.batch_size,
        seed=0,
        backend_kwargs={"telemetry": False} if task.arrangement == "unwatched" else None,
    )
    return _play(vec, task.batch_size)


def _play(vec: pufferlib.VecEnv, steps: int) -> Player:
    vec.action_space.seed(0)
    actions = vec.action_space.sample()
    received, send = vec.recv, functools.partial(vec.send, actions)

    def recv() -> int:
        received()
        return steps

    vec.async_reset()
    return Player(recv, send, vec.close)


def _pack(task: Task) -> Player:
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
    """Say which path is in use."""
    try:
        from pufferlib import _native
    except ImportError:
        return {"path": "portable: this version has no compiled path"}
    return {"path": "compiled" if _native.available else f"portable: {_native.reason}"}
