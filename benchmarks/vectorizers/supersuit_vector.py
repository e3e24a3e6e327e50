"""Play SuperSuit's vector environments of PettingZoo's, with padded spaces and black observations of dead agents."""

from __future__ import annotations

import functools

import numpy as np
import supersuit
from player import NotHandled, Player, Task


def start(task: Task) -> Player:
    num_cpus = task.choose(processes=task.num_workers, serial=0)  # 0: it steps all in this process
    task.need(single_agent=False, synchronous=True)
    if not task.multi_agent:
        raise NotHandled("runs PettingZoo's environments only")
    env = task.env_creator()
    env = supersuit.black_death_v3(supersuit.pad_action_space_v0(supersuit.pad_observations_v0(env)))
    vec = supersuit.concat_vec_envs_v1(
        supersuit.pettingzoo_env_to_vec_env_v1(env), task.num_envs, num_cpus=num_cpus, base_class="gymnasium"
    )
    vec.reset(seed=0)
    actions = np.array([vec.action_space.sample() for _ in range(vec.num_envs)])
    step, num_envs = functools.partial(vec.step, actions), task.num_envs

    def recv() -> int:
        step()
        return num_envs

    return Player(recv, lambda: None, vec.close)
