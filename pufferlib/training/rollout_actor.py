"""Actors that play rollouts: each has its own environments, and a copy of the policy that plays them."""

from __future__ import annotations

import pickle
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

import pufferlib
from pufferlib.models import Actor, Origin
from pufferlib.training.fleet import RolloutReport, node_name
from pufferlib.training.lines import Lines
from pufferlib.training.recent_statistics import numbers_in
from pufferlib.training.session import environments
from pufferlib.vectorization.core import transfer
from pufferlib.vectorization.ray.connection import ray_module

__all__ = ["RolloutActor", "packed"]

Infos = list[list[dict[str, Any]]]  # by batch


def packed(config: Any, env: Callable[..., Any] | None, origin: Origin) -> bytes:
    """Serialize the arguments, together with ``sys.path``, for the ``setup`` of a ``RolloutActor``."""
    return pickle.dumps((sys.path, transfer.dumps((config, env, origin))))


class RolloutActor(ABC):
    """The base class of a trainer's actors; ``Fleet`` makes them Ray actors.

    A trainer defines ``begin`` and ``play_rollout``, which use ``config``, ``actor`` (the policy), ``seed`` and
    ``num_agents``, the number of agents in all of the actor's environments.

    index: the actor's number among all actors. setup: what ``packed`` returned for the configuration, the creator of
    environments (None if the configuration names them) and the policy's origin. It is unpacked in the first call of
    ``play``, so that the caller gets any errors; in the constructor they would end the actor.
    """

    config: Any
    actor: Actor

    def __init__(self, index: int, setup: bytes) -> None:
        self.index, self.setup = index, setup
        self.vec: pufferlib.VecEnv | None = None
        self.seed = self.version = -1
        self.num_agents, self.since_s = 0, 0.0

    @abstractmethod
    def begin(self, vec: pufferlib.VecEnv) -> None:
        """Prepare for rollouts of environments that are about to be reset."""

    @abstractmethod
    def play_rollout(self, vec: pufferlib.VecEnv) -> tuple[Lines, Infos]:
        """Play a rollout; return its rows, and the ``global_infos`` of each batch."""

    def play(self, seed: int, version: int, weights: list[Any]) -> tuple[RolloutReport, Lines]:
        """Play a rollout; return a report, and the rollout's rows.

        seed: the environments' seed; they are reset when it changes. version: the policy version to play. weights: a
        list whose only item is a Ray reference to this version's weights, which are fetched if the version has changed.
        """
        vec = self._opened() if self.vec is None else self.vec
        if seed != self.seed:
            self.seed = seed
            torch.manual_seed(seed)
            self.begin(vec)
            vec.async_reset(seed=seed)
        if version != self.version:
            arrays = ray_module().get(weights[0])
            self.actor.policy.load_state_dict({name: torch.from_numpy(part.copy()) for name, part in arrays.items()})
            self.version = version
        lines, infos = self.play_rollout(vec)
        now_s = time.perf_counter()
        seconds, self.since_s = now_s - self.since_s, now_s
        return RolloutReport(version, node_name(), int(lines.masks.sum()), seconds, infos), lines

    def global_infos(self, batch: Any) -> list[dict[str, Any]]:
        """Return the numbers in a batch's infos, with env_id and agent_id unique among all actors."""
        return [self._global_info(info) for info in batch.infos]

    def close(self) -> None:
        """Close the environments."""
        if self.vec is not None:
            self.vec.close()

    def _opened(self) -> pufferlib.VecEnv:
        """Unpack ``setup``, and make the environments and the policy."""
        path, rest = pickle.loads(self.setup)
        sys.path += [folder for folder in path if folder not in sys.path]  # where the rest may be defined
        arguments = transfer.loads(rest)
        assert isinstance(arguments, tuple), arguments
        config, env, origin = arguments
        self.config = config
        torch.set_num_threads(config.torch_threads)
        self.since_s = time.perf_counter()
        self.vec = vec = environments(config, env)
        self.actor = origin.actor(vec.observation_layout, vec.single_action_space)
        self.num_agents = vec.num_envs * vec.agents_per_env
        return vec

    def _global_info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        numbers = numbers_in(info)
        numbers["env_id"] += self.index * self.config.num_envs
        if "agent_id" in numbers:
            numbers["agent_id"] += self.index * self.num_agents
        return numbers
