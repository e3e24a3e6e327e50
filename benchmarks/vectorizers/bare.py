"""Play the floor: one Python loop that steps environments and stores their results in arrays, without a library.

With processes, each runs such a loop; a byte in a pipe starts a step, and a byte in another one reports its end. The
arrangement "steps" stores nothing, and so measures the environments alone, with any kind of results. "copies" calls C's
memmove for each observation, and "calls" makes the same calls for no bytes: the difference is the time of the copies.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import traceback
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import replayed
from gymnasium import spaces
from player import NotHandled, Player, Task


def start(task: Task) -> Player:
    kind = task.choose(loop=_loop, processes=_processes, steps=_steps, copies=_copies, calls=_copies)
    task.need(single_agent=kind is not _steps, synchronous=True)
    return kind(task)


def _loop(task: Task) -> Player:
    return Player(_stepping(task, range(task.num_envs), _arrays(task, np.zeros)), lambda: None, lambda: None)


def _steps(task: Task) -> Player:
    environments = [task.env_creator() for _ in range(task.num_envs)]
    for env_id, env in enumerate(environments):
        env.reset(seed=env_id)
    make = _stepping_agents if task.multi_agent else _stepping_native if task.env == "native" else _stepping_alone
    return Player(make(environments), lambda: None, lambda: None)


def _stepping_alone(environments: list[Any]) -> Callable[[], int]:
    actions = [env.action_space.sample() for env in environments]
    actions = [int(action) if isinstance(action, np.integer) else action for action in actions]

    def recv() -> int:
        for index, env in enumerate(environments):
            _, _, terminated, truncated, _ = env.step(actions[index])
            if terminated or truncated:
                env.reset()
        return len(environments)

    return recv


def _stepping_agents(environments: list[Any]) -> Callable[[], int]:
    """Return a step that passes the same actions of all possible agents; environments read those of living ones."""
    actions = [{agent: env.action_space(agent).sample() for agent in env.possible_agents} for env in environments]

    def recv() -> int:
        for index, env in enumerate(environments):
            env.step(actions[index])
            if not env.agents:
                env.reset()
        return len(environments)

    return recv


def _stepping_native(environments: list[Any]) -> Callable[[], int]:
    """Return a step that calls only the PufferEnv's ``step``, without the code that zeroes its arrays first."""
    step = type(environments[0]).step
    actions = np.zeros(environments[0].num_agents, np.int64)

    def recv() -> int:
        for env in environments:
            step(env, actions)
        return len(environments)

    return recv


def _copies(task: Task) -> Player:
    """Return a player that copies the observations of recordings, whose addresses are known in advance."""
    from pufferlib.vectorization.core.slab import NUM_BUFFERS  # here, since the other arrangements need no library

    if task.env != "replayed":
        raise NotHandled("copies only the observations of recordings, which lie at known addresses")
    sources = _sources(replayed.load(task.env_kwargs["recording"]))
    environments = [task.env_creator() for _ in range(task.num_envs)]
    for env_id, env in enumerate(environments):
        env.reset(seed=env_id)
    sizes = [nbytes for _, nbytes in next(iter(sources.values()))]
    # As many batches as our slab holds, which take turns: the size decides how much of it the caches hold.
    slab = np.zeros((NUM_BUFFERS, task.num_envs, sum(sizes)), np.uint8)
    batches = cycle([[_targets(row, sizes) for row in batch] for batch in slab])
    memmove, copies = ctypes.memmove, task.arrangement == "copies"

    def recv() -> int:
        for env, targets in zip(environments, next(batches), strict=True):
            observation, _, terminated, truncated, _ = env.step(0)
            if terminated or truncated:
                env.reset()
            for target, (address, nbytes) in zip(targets, sources[id(observation)], strict=True):
                memmove(target, address, nbytes if copies else 0)
        return len(environments)

    return Player(recv, lambda: None, lambda: None)


def _sources(recording: dict[str, Any]) -> dict[int, list[tuple[ctypes.c_void_p, int]]]:
    """Return the address and size of each array of each observation, by the observation's id."""
    sources = {}
    for _, results in recording["episodes"]:
        for observation, *_ in results:
            arrays = [array for _, array in sorted(observation.items())] if type(observation) is dict else [observation]
            if not all(type(array) is np.ndarray and array.flags.c_contiguous for array in arrays):
                raise NotHandled("copies arrays that are one block of memory each")
            sources[id(observation)] = [(ctypes.c_void_p(array.ctypes.data), array.nbytes) for array in arrays]
    return sources


def _targets(row: np.ndarray[Any, Any], sizes: list[int]) -> list[Any]:
    """Return views of consecutive parts of a row."""
    ends = np.cumsum(sizes).tolist()
    return [(ctypes.c_char * size).from_buffer(row[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def _processes(task: Task) -> Player:
    arrays = _arrays(task, _shared)
    shares = np.array_split(range(task.num_envs), task.num_workers)
    gos, dones = [os.pipe() for _ in shares], [os.pipe() for _ in shares]
    for share, (go, _), (_, done) in zip(shares, gos, dones, strict=True):
        if os.fork():
            continue
        try:
            for _, outlet in gos:
                os.close(outlet)  # so that the pipe closes when the parent ends
            step = _stepping(task, share, [array[share[0] : share[-1] + 1] for array in arrays])
            while os.read(go, 1):
                step()
                os.write(done, b"!")
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)

    def send() -> None:
        for _, outlet in gos:
            os.write(outlet, b"!")

    def recv() -> int:
        for inlet, _ in dones:
            os.read(inlet, 1)
        return task.num_envs

    def close() -> None:
        for end in [end for ends in (*gos, *dones) for end in ends]:
            os.close(end)
        for _ in shares:
            os.wait()

    send()
    return Player(recv, send, close)


def _arrays(task: Task, zeros: Callable[..., Any]) -> list[Any]:
    """Return arrays for observations, rewards, terminations and truncations."""
    space = task.env_creator().observation_space
    if not isinstance(space, spaces.Box):
        raise NotHandled("stores arrays, and observations are nested")
    kinds = ((space.shape, space.dtype), ((), np.float32), ((), np.bool_), ((), np.bool_))
    return [zeros((task.num_envs, *shape), dtype) for shape, dtype in kinds]


def _shared(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array of zeros that forked processes share."""
    return np.frombuffer(mmap.mmap(-1, int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)


def _stepping(task: Task, env_ids: Any, arrays: list[Any]) -> Callable[[], int]:
    """Make environments seeded with their ids; return a function that steps each of them once."""
    observations, rewards, terminations, truncations = arrays
    environments = [task.env_creator() for _ in env_ids]
    actions = [int(env.action_space.sample()) for env in environments]
    for index, (env_id, env) in enumerate(zip(env_ids, environments, strict=True)):
        observations[index] = env.reset(seed=int(env_id))[0]

    def step() -> int:
        for index, env in enumerate(environments):
            observation, reward, terminated, truncated, _ = env.step(actions[index])
            observations[index] = observation
            rewards[index] = reward
            terminations[index] = terminated
            truncations[index] = truncated
            if terminated or truncated:
                observations[index] = env.reset()[0]
        return len(environments)

    return step
