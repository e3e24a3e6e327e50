"""Play Stable-Baselines3's vector environments; processes are forked, since by default each would import torch."""

from __future__ import annotations

import functools

import numpy as np
from player import Player, Task
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv


def start(task: Task) -> Player:
    kind = task.choose(dummy=DummyVecEnv, subproc=SubprocVecEnv, forkserver=SubprocVecEnv)
    task.need(synchronous=True, own_processes=kind is SubprocVecEnv)
    options = {"start_method": "fork"} if task.arrangement == "subproc" else {}
    vec = kind([task.env_creator] * task.num_envs, **options)
    vec.seed(0)
    vec.reset()
    actions = np.array([vec.action_space.sample() for _ in range(task.num_envs)])
    send, step_wait, num_envs = functools.partial(vec.step_async, actions), vec.step_wait, task.num_envs

    def recv() -> int:
        step_wait()
        return num_envs

    send()
    return Player(recv, send, vec.close)
