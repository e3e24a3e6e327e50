"""Trace the rows that environments return on a backend, to compare backends bit for bit."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from pufferlib.construct import make
from pufferlib.emulation.action_masks import ACTION_MASK, has_mask
from pufferlib.testing.play import Subject, sampled
from pufferlib.vectorization import Batch, VecEnv

__all__ = ["EnvActions", "stacked", "trace_rows"]

RECV_TIMEOUT_S = 300.0


def trace_rows(subject: Subject, backend: str, num_steps: int, seed: int, **counts: int) -> list[list[str]]:
    """Play environments with random actions that the masks allow, and return digests of their rows.

    The result has one list per environment, with the digests of its first ``num_steps`` resets and steps. A digest
    covers the rows of all the environment's agents. counts: num_envs, num_workers and batch_size, as in
    ``pufferlib.make``. Raises the errors of ``make`` and ``recv``.
    """
    with make(
        subject.creator,
        backend=backend,
        env_args=subject.env_args,
        env_kwargs=subject.env_kwargs,
        wrap_kwargs=subject.wrap_kwargs,
        seed=seed,
        check="always",
        **counts,  # type: ignore[arg-type]
    ) as vec:
        traces: list[list[str]] = [[] for _ in range(vec.num_envs)]
        actors = [EnvActions(vec, [seed, env_id]) for env_id in range(vec.num_envs)]
        vec.async_reset()
        while True:
            batch = vec.recv(timeout=RECV_TIMEOUT_S)
            actions: list[Any] = []
            for index, env_id in enumerate(batch.env_ids.tolist()):
                mine = slice(index * vec.agents_per_env, (index + 1) * vec.agents_per_env)
                digest = hashlib.sha256()
                for array in (batch.observations, batch.rewards, batch.terminations, batch.truncations, batch.masks):
                    digest.update(array[mine].tobytes())
                traces[env_id].append(digest.hexdigest())
                actions += actors[env_id].actions(batch, mine)
            if min(map(len, traces)) >= num_steps:
                return [trace[:num_steps] for trace in traces]
            vec.send(stacked(vec.single_action_space, actions))


class EnvActions:
    """A random policy for one environment; its actions do not depend on the batches in which the rows arrive."""

    def __init__(self, vec: VecEnv, entropy: list[int]) -> None:
        self._layouts = vec.observation_layouts
        self._space = copy.deepcopy(vec.single_action_space)
        self._space.seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))

    def actions(self, batch: Batch, mine: slice) -> list[Any]:
        """Return an action for each of the environment's rows, which are the slice ``mine`` of the batch."""
        masks = {
            info["agent_id"]: info[ACTION_MASK] for info in batch.infos if {"agent_id", ACTION_MASK} <= info.keys()
        }
        chosen = []
        for layout, row, agent_id in zip(
            self._layouts, batch.observations[mine], batch.agent_ids[mine].tolist(), strict=True
        ):
            mask = masks.get(agent_id)
            if mask is None and has_mask(layout.space):
                mask = layout.unflatten(_agent_part(layout, row))[ACTION_MASK]
            chosen.append(sampled(self._space, None if mask is None else _fitted(self._space, mask)))
        return chosen


def _agent_part(layout: Any, row: Any) -> Any:
    """Return an agent's flat observation from its row, without padding."""
    flat = row.reshape(-1)
    if flat.dtype != layout.dtype:
        flat = flat[: flat.size - flat.size % layout.dtype.itemsize].view(layout.dtype)
    return flat[: int(np.prod(layout.shape))].reshape(layout.shape)


def _fitted(space: Space[Any], mask: Any) -> Any:
    """Convert an agent's mask to the form that ``space.sample`` takes; pad it if ``space`` has more actions."""
    if isinstance(space, spaces.Discrete) and np.size(mask) <= space.n:
        return np.pad(np.ravel(mask), (0, int(space.n) - np.size(mask)))
    if isinstance(space, spaces.MultiDiscrete) and not isinstance(mask, tuple) and np.size(mask) == space.nvec.sum():
        return tuple(np.split(np.ravel(mask), np.cumsum(space.nvec.ravel())[:-1]))
    return mask


def stacked(space: Space[Any], actions: list[Any]) -> Any:
    """Stack samples of a space into an array with a row per sample; for a Tuple space, into a tuple of such arrays."""
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(part, [action[i] for action in actions]) for i, part in enumerate(space.spaces))
    return np.stack(actions).astype(space.dtype)
