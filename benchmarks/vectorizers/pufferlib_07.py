"""Play PufferLib 0.7.3: Serial, and Multiprocessing in any number of processes, as a pool for smaller batches."""

from __future__ import annotations

import functools

import numpy as np
from padding import padded
from player import NotHandled, Player, Task

import pufferlib.emulation
import pufferlib.vectorization


def start(task: Task) -> Player:
    if task.arrangement == "flatten":
        return _pack(task)
    kind = task.choose(serial=pufferlib.vectorization.Serial, processes=pufferlib.vectorization.Multiprocessing)
    if task.num_envs % task.num_workers:
        raise NotHandled("workers have equal shares only")
    wrapper, creator = pufferlib.emulation.GymnasiumPufferEnv, task.env_creator
    if task.multi_agent:
        wrapper, creator = pufferlib.emulation.PettingZooPufferEnv, functools.partial(padded, creator)
    vec = kind(
        env_creator=functools.partial(wrapper, env_creator=creator),
        num_envs=task.num_envs,
        envs_per_worker=task.num_envs // task.num_workers,
        envs_per_batch=task.batch_size,
        env_pool=task.batch_size < task.num_envs,
    )
    vec.async_reset(seed=0)
    actions = np.array([vec.single_action_space.sample() for _ in range(vec.agents_per_batch)])
    received, batch_size = vec.recv, task.batch_size

    def recv() -> int:
        received()
        return batch_size

    return Player(recv, functools.partial(vec.send, actions), vec.close)


def _pack(task: Task) -> Player:
    """Pack one observation into one row, by its compiled ``flatten`` and the ``concatenate`` that it uses itself."""
    space = task.env_creator().observation_space
    sample = space.sample()
    flatten, concatenate = pufferlib.emulation.flatten, pufferlib.emulation.concatenate
    row = np.zeros_like(concatenate(flatten(sample)))

    def recv() -> int:
        for _ in range(100):
            row[:] = concatenate(flatten(sample))
        return 100

    return Player(recv, lambda: None, lambda: None)
