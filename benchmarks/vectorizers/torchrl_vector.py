"""Play TorchRL's ParallelEnv, and its asynchronous pool with shared memory.

Processes are forked, like Stable-Baselines3's; importing TorchRL makes Python spawn them by default.
"""

from __future__ import annotations

import functools
import multiprocessing

import torch
from player import Player, Task
from torchrl.envs import AsyncEnvPool, GymWrapper, ParallelEnv


def start(task: Task) -> Player:
    kind = task.choose(parallel=_parallel, pool=_pool, **{"parallel-timed": _parallel})
    task.need(own_processes=True)
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)
    return kind(task, functools.partial(_make, task))


def _make(task: Task) -> GymWrapper:
    return GymWrapper(task.env_creator(), categorical_action_encoding=True)


def _parallel(task: Task, make: functools.partial[GymWrapper]) -> Player:
    task.need(synchronous=True)
    vec = ParallelEnv(task.num_envs, make, mp_start_method="fork")
    state = vec.reset()
    if task.arrangement == "parallel-timed":
        vec.BATCHED_PIPE_TIMEOUT = 2.0  # the environment variable would set it for starting workers, too
    actions = vec.action_spec.rand()

    def recv() -> int:
        nonlocal state
        state["action"] = actions
        _, state = vec.step_and_maybe_reset(state)
        return task.num_envs

    return Player(recv, lambda: None, vec.close)


def _pool(task: Task, make: functools.partial[GymWrapper]) -> Player:
    vec = AsyncEnvPool([make] * task.num_envs, backend="multiprocessing", exchange="auto")
    state = vec.reset()
    action = int(vec.action_spec.rand().flatten()[0])

    def recv() -> int:
        nonlocal state
        _, state = vec.async_step_and_maybe_reset_recv(min_get=task.batch_size)
        return len(state)

    def send() -> None:
        state["action"] = torch.full((len(state),), action)
        vec.async_step_and_maybe_reset_send(state)

    send()
    return Player(recv, send, vec.close)
