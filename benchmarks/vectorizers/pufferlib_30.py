"""Play PufferLib 3.0.0: Serial, and Multiprocessing in any number of processes."""

from __future__ import annotations

import functools

import numpy as np
from padding import padded
from player import NotHandled, Player, Task

import pufferlib.emulation
import pufferlib.vector


def start(task: Task) -> Player:
    if task.arrangement == "emulate":
        return _pack(task)
    backend = task.choose(serial="Serial", processes="Multiprocessing")
    if task.num_envs % task.num_workers:
        raise NotHandled("workers have equal shares only")
    wrapper, creator = pufferlib.emulation.GymnasiumPufferEnv, task.env_creator
    if task.multi_agent:
        wrapper, creator = pufferlib.emulation.PettingZooPufferEnv, functools.partial(padded, creator)
    plan = {}
    if backend == "Multiprocessing":  # overwork: allows more processes than cores
        plan = dict(num_workers=task.num_workers, batch_size=task.batch_size, overwork=True)
    vec = pufferlib.vector.make(
        functools.partial(wrapper, env_creator=creator), backend=backend, num_envs=task.num_envs, **plan
    )
    vec.async_reset(seed=0)
    vec.action_space.seed(0)
    actions = vec.action_space.sample()
    received, batch_size = vec.recv, task.batch_size

    def recv() -> int:
        received()
        return batch_size

    return Player(recv, functools.partial(vec.send, actions), vec.close)


def _pack(task: Task) -> Player:
    """Pack one observation into one row of its structured array."""
    env = pufferlib.emulation.GymnasiumPufferEnv(env_creator=task.env_creator)
    sample = env.env.observation_space.sample()
    rows = np.zeros(1, env.obs_dtype)

    def recv() -> int:
        for _ in range(100):
            pufferlib.emulation.emulate(rows, sample)
        return 100

    return Player(recv, lambda: None, lambda: None)
