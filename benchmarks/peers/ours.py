"""This project, as a user has it: public calls, default checks, masks and episode statistics on."""

from __future__ import annotations

from typing import Any

from player import Player, Task

import pufferlib
from pufferlib.layout import Layout


def start(task: Task) -> Player:
    if task.arrangement == "pack":
        return _pack(task)
    backend = task.choose(serial="serial", processes="multiprocessing", pool="pool")
    vec = pufferlib.make(
        task.env_creator,
        backend=backend,
        num_envs=task.num_envs,
        num_workers=task.num_workers,
        batch_size=task.batch_size,
        seed=0,
    )
    vec.action_space.seed(0)
    actions = vec.action_space.sample()
    batch_size = task.batch_size
    vec.async_reset()
    received, sent = vec.recv, vec.send

    def recv() -> int:
        received()
        return batch_size

    return Player(recv, lambda: sent(actions), vec.close)


def _pack(task: Task) -> Player:
    space = task.env_creator().observation_space
    layout = Layout(space)
    sample = space.sample()

    def recv() -> int:
        for _ in range(100):
            layout.flatten(sample)
        return 100

    return Player(recv, lambda: None, lambda: None)


def about() -> dict[str, Any]:
    """Say which path is in use."""
    try:
        from pufferlib import _native
    except ImportError:
        return {"path": "portable: this version has no compiled path"}
    return {"path": "compiled" if _native.available else f"portable: {_native.reason}"}
