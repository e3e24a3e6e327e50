"""The floor: one Python loop that steps environments and stores what they return in arrays. No library at all."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from player import NotHandled, Player, Task


def start(task: Task) -> Player:
    task.choose(loop=None)
    task.need(synchronous=True)
    environments = [task.env_creator() for _ in range(task.num_envs)]
    space = environments[0].observation_space
    if not isinstance(space, spaces.Box):
        raise NotHandled("stores arrays, and observations are nested")
    observations = np.zeros((task.num_envs, *space.shape), space.dtype)
    rewards = np.zeros(task.num_envs, np.float32)
    terminations = np.zeros(task.num_envs, np.bool_)
    truncations = np.zeros(task.num_envs, np.bool_)
    actions = [int(env.action_space.sample()) for env in environments]
    for index, env in enumerate(environments):
        observations[index] = env.reset(seed=index)[0]

    def recv() -> int:
        for index, env in enumerate(environments):
            observation, reward, terminated, truncated, _ = env.step(actions[index])
            observations[index] = observation
            rewards[index] = reward
            terminations[index] = terminated
            truncations[index] = truncated
            if terminated or truncated:
                observations[index] = env.reset()[0]
        return len(environments)

    return Player(recv, lambda: None, lambda: None)
