"""Play Tianshou's vector environments, with ``wait_num`` for batches of some environments.

They do not reset by themselves: the player resets them as Tianshou's collectors do.
"""

from __future__ import annotations

import numpy as np
from player import Player, Task
from tianshou.env import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv


def start(task: Task) -> Player:
    processes = {"subproc": SubprocVectorEnv, "shmem": ShmemVectorEnv, "subproc-timed": SubprocVectorEnv}
    kind = task.choose(dummy=DummyVectorEnv, **processes)
    task.need(own_processes=kind is not DummyVectorEnv)
    options = {"wait_num": task.batch_size} if task.batch_size < task.num_envs else {}
    if task.arrangement == "subproc-timed":
        options["timeout"] = 2
    vec = kind([task.env_creator] * task.num_envs, **options)
    vec.seed(0)
    vec.reset()
    actions = np.array([space.sample() for space in vec.action_space])
    ready = np.arange(task.num_envs)  # environments that wait for an action

    def recv() -> int:
        nonlocal ready
        _, _, terminated, truncated, infos = vec.step(actions[ready], ready)
        ready = np.array([info["env_id"] for info in infos])
        over = ready[np.logical_or(terminated, truncated)]
        if len(over):
            vec.reset(over)
        return len(ready)

    return Player(recv, lambda: None, vec.close)
