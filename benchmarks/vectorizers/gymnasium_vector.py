"""Play Gymnasium's vector environments; the asynchronous one uses shared memory, its default."""

from __future__ import annotations

import functools

from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from player import Player, Task


def start(task: Task) -> Player:
    if task.arrangement in ("flatten", "concatenate"):
        return _pack(task)
    kinds = {"async": AsyncVectorEnv, "async-timed": AsyncVectorEnv}
    kind = task.choose(sync=SyncVectorEnv, **dict.fromkeys(("sync-list", "sync-same-step"), SyncVectorEnv), **kinds)
    task.need(synchronous=True, own_processes=kind is AsyncVectorEnv)
    options = {"autoreset_mode": AutoresetMode.SAME_STEP} if task.arrangement == "sync-same-step" else {}
    vec = kind([task.env_creator] * task.num_envs, **options)
    vec.reset(seed=0)
    vec.action_space.seed(0)
    actions = vec.action_space.sample()
    if task.arrangement == "sync-list":
        actions = actions.tolist()
    num_envs = task.num_envs
    if kind is SyncVectorEnv:
        step = functools.partial(vec.step, actions)

        def recv() -> int:
            step()
            return num_envs

        return Player(recv, lambda: None, vec.close)
    send = functools.partial(vec.step_async, actions)
    step_wait = functools.partial(vec.step_wait, timeout=2.0) if task.arrangement == "async-timed" else vec.step_wait

    def recv() -> int:
        step_wait()
        return num_envs

    def close() -> None:
        step_wait()
        vec.close()

    send()
    return Player(recv, send, close)


def _pack(task: Task) -> Player:
    """Pack one observation into one row: of the flat space, or of the arrays of Gymnasium's vector environments."""
    from gymnasium.vector.utils import concatenate, create_empty_array

    space = task.env_creator().observation_space
    sample = space.sample()
    row = create_empty_array(space, 1)

    def recv() -> int:
        for _ in range(100):
            if flat:
                spaces.flatten(space, sample)
            else:
                concatenate(space, [sample], row)
        return 100

    flat = task.arrangement == "flatten"
    return Player(recv, lambda: None, lambda: None)
