"""Policies of torch for ``pufferlib.evaluate``, which finds this file by name, as it lies in a lower layer.

The actions that they sample are functions of an episode's seed, the step and the agent (evaluation/noise.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from pufferlib.errors import PlanError
from pufferlib.evaluation.noise import gumbels, normals, uniforms
from pufferlib.evaluation.policies import Act, PolicyBatch
from pufferlib.models.distributions import Decisions, Distribution
from pufferlib.models.inference import Actor, BatchPlayer
from pufferlib.models.making import action_mask_reader
from pufferlib.util.annotations import Array
from pufferlib.vectorization import VecEnv

__all__ = ["SeededPlayer", "SeededRandom", "fixed_threads", "row_noise", "seeded_policy"]


@contextmanager
def seeded_policy(policy: Any, vec: VecEnv, *, num_slots: int, greedy: bool, torch_threads: int) -> Iterator[Act]:
    """Yield the function that plays a policy in a VecEnv. Afterwards, restore its training mode and torch's threads.

    policy: "random", an Actor, a torch module, or an object with a method ``actor(layout, action_space)`` that returns
    an Actor, such as a SavedPolicy. num_slots: one more than the largest env_id. greedy, torch_threads: as for
    ``evaluate``. Raises PlanError for a module with another interface, and the errors of ``Actor`` and of that method.
    """
    with fixed_threads(torch_threads):
        if isinstance(policy, str):
            yield SeededRandom(vec)
            return
        actor = actor_of(policy, vec)
        trained = [module for module in actor.policy.modules() if module.training]
        actor.policy.eval()
        try:
            yield SeededPlayer(actor, num_slots, vec.agents_per_env, greedy=greedy)
        finally:
            for module in trained:
                module.training = True


def actor_of(policy: Any, vec: VecEnv) -> Actor:
    """Return the Actor for a policy that is one, is a module, or makes one. Raises PlanError for other modules."""
    if isinstance(policy, Actor):
        return policy
    if isinstance(policy, nn.Module):
        _require_forward(policy)
        return Actor(lambda layout, action_space: policy, vec.observation_layout, vec.single_action_space)
    if isinstance(policy.actor, Actor):  # of a BatchPlayer
        return policy.actor
    with torch.random.fork_rng(devices=()):  # a new network draws its weights, before it gets the saved ones
        actor: Actor = policy.actor(vec.observation_layout, vec.single_action_space)
    return actor


def _require_forward(module: nn.Module) -> None:
    """Raise PlanError for a module whose ``forward`` cannot take observations, a state and an action mask."""
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # of compiled code
        return
    num = 3 + hasattr(module, "num_places")
    try:
        signature.bind(*[None] * num)
    except TypeError:
        name = type(module).__name__
        way = "the model instead of its policy" if hasattr(module, "predict") else "a function of a batch that calls it"
        raise PlanError(
            f"the policy's {name}.forward{signature} cannot be called with (observations, state, action_mask); pass "
            f"{way}, or a module with the interface of pufferlib.models"
        ) from None


@contextmanager
def fixed_threads(num_threads: int) -> Iterator[None]:
    """Set the number of torch's threads, on which results may depend in their last bits; restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)  # the default is one per core, which workers need as well
    try:
        yield
    finally:
        torch.set_num_threads(before)


def row_noise(batch: PolicyBatch, num_agents: int, num: int) -> Array:
    """Return uniform random numbers for each row of a batch, float64 (rows, num)."""
    seeds, steps = batch.seeds.repeat(num_agents), batch.steps.repeat(num_agents)
    return uniforms(seeds, steps, batch.agent_ids % num_agents, num)


class _Sampler:
    """A sampler of distributions whose random numbers are those of a batch's rows."""

    def __init__(self, decisions: Decisions, num_agents: int) -> None:
        self.decisions, self._num_agents = decisions, num_agents
        self._num_options, self._num_continuous = decisions.num_options, decisions.num_aims

    def __call__(self, batch: PolicyBatch, distribution: Distribution) -> Any:
        """Return the flat actions for the rows of a batch."""
        numbers = row_noise(batch, self._num_agents, self._num_options + 2 * self._num_continuous)
        noise = gumbels(numbers[:, : self._num_options]), normals(numbers[:, self._num_options :])
        device = distribution.mean.device
        decided = distribution.sample_with(*(torch.from_numpy(part.astype(np.float32)).to(device) for part in noise))
        return self.decisions.actions(*decided)


class SeededPlayer:
    """An Actor as a function of a PolicyBatch. It keeps frames and states by agent id, and begins again where masks do.

    num_slots: one more than the largest env_id. num_agents: agents per environment. Raises SpaceError if the policy
    was made for another number of agents per environment.
    """

    def __init__(self, actor: Actor, num_slots: int, num_agents: int, *, greedy: bool) -> None:
        self._player = BatchPlayer(actor, num_slots * num_agents, agents_per_env=num_agents, seed=0)
        self._greedy, self._sample = greedy, _Sampler(actor.decisions, num_agents)

    @torch.inference_mode()
    def __call__(self, batch: PolicyBatch) -> Any:
        """Return the flat actions for the rows of a batch."""
        distribution = self._player.distribution(batch.observations, batch.agent_ids, batch.masks)
        if self._greedy:
            return self._sample.decisions.actions(*distribution.mode())
        return self._sample(batch, distribution)


class SeededRandom:
    """Random actions from the whole action space; of discrete actions, only those that the action mask allows."""

    def __init__(self, vec: VecEnv) -> None:
        space = vec.single_action_space
        self._parts = tuple(space.spaces) if isinstance(space, spaces.Tuple) else (space,)
        self._joined, self._num_agents = isinstance(space, spaces.Tuple), vec.agents_per_env
        self._boxes = [part for part in self._parts if isinstance(part, spaces.Box)]
        self._num_free = sum(int(np.prod(box.shape)) for box in self._boxes)
        discrete = [part for part in self._parts if not isinstance(part, spaces.Box)]
        self._sample: _Sampler | None = None
        self._read_mask: Callable[[torch.Tensor], torch.Tensor] | None = None
        if discrete:
            self._sample = _Sampler(Decisions(space), self._num_agents)
            self._read_mask = action_mask_reader(vec.observation_layout, space)

    def __call__(self, batch: PolicyBatch) -> Any:
        """Return the flat actions for the rows of a batch."""
        chosen: Any = None
        if self._sample is not None:
            decisions = self._sample.decisions
            zeros = torch.zeros(len(batch.agent_ids), decisions.num_options)
            flat = torch.zeros(len(zeros), decisions.num_aims)
            outputs = (zeros, flat, flat) if decisions.num_aims else zeros
            mask = None if self._read_mask is None else self._read_mask(torch.from_numpy(batch.observations))
            chosen = self._sample(batch, decisions.distribution(outputs, mask))
            if not self._joined:
                return chosen
        # The noise of the continuous parts comes after that of the discrete ones.
        first = 0 if self._sample is None else self._sample.decisions.num_options
        numbers = row_noise(batch, self._num_agents, first + 2 * self._num_free)[:, first:]
        standard, drawn, used = normals(numbers), [], 0
        for index, part in enumerate(self._parts):
            if isinstance(part, spaces.Box):
                num = int(np.prod(part.shape))
                drawn.append(_box_elements(part, numbers[:, used : used + num], standard[:, used : used + num]))
                used += num
            else:
                drawn.append(chosen[index])
        return tuple(drawn) if self._joined else drawn[0]


def _box_elements(box: spaces.Box, numbers: Array, standard: Array) -> Array:
    """Return elements of a Box, distributed like those of its ``sample``.

    numbers, standard: uniform and normal random numbers, (rows, size).
    """
    shape = len(numbers), *box.shape
    numbers, standard = numbers.reshape(shape), standard.reshape(shape)
    integral = not np.issubdtype(box.dtype, np.floating)
    low, high = box.low.astype(np.float64), box.high.astype(np.float64)
    below, above = np.isfinite(low), np.isfinite(high)
    exponential = -np.log(numbers)
    with np.errstate(invalid="ignore", over="ignore"):
        uniform = low + numbers * (high - low + integral)
    from_one_bound = np.where(below, low + exponential, high - exponential)
    values = np.where(below & above, uniform, np.where(below | above, from_one_bound, standard))
    return np.clip(np.floor(values) if integral else values, box.low, box.high).astype(box.dtype)
