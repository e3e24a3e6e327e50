"""Play ALE's vector environment of Atari games, written in C++, without a wrapper."""

from __future__ import annotations

import functools

import envs
from player import NotHandled, Player, Task


def start(task: Task) -> Player:
    task.choose(vector=None)
    if task.env != "breakout":
        raise NotHandled("runs Atari games only")
    task.need(synchronous=True)
    vec = envs.atari_vector(task.num_envs, task.num_workers)
    vec.reset(seed=0)
    vec.action_space.seed(0)
    actions, received, num_envs = vec.action_space.sample(), vec.recv, task.num_envs
    send = functools.partial(vec.send, actions)

    def recv() -> int:
        received()
        return num_envs

    send()
    return Player(recv, send, vec.close)
