"""Play EnvPool's environments, written in C++, with its default settings."""

from __future__ import annotations

import envpool
import numpy as np
from player import NotHandled, Player, Task

GAMES = {"cartpole": "CartPole-v1", "breakout": "Breakout-v5"}


def start(task: Task) -> Player:
    task.choose(threads=None)
    if task.env not in GAMES:
        raise NotHandled("runs its own environments only")
    plan = dict(num_envs=task.num_envs, batch_size=task.batch_size, num_threads=task.num_workers)
    vec = envpool.make(GAMES[task.env], env_type="gymnasium", seed=0, **plan)
    actions = np.array([vec.action_space.sample() for _ in range(task.batch_size)])
    env_ids = np.arange(task.num_envs)
    vec.async_reset()

    def recv() -> int:
        nonlocal env_ids
        env_ids = vec.recv()[4]["env_id"]
        return len(env_ids)

    def send() -> None:
        vec.send(actions, env_ids)

    return Player(recv, send, vec.close)
