"""A random policy, as a baseline. Trained policies are played by ``pufferlib.models.BatchPlayer``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces

import pufferlib
from pufferlib.models import Decisions, action_mask_reader

Act = Callable[[pufferlib.Batch], Any]  # flat actions for a batch


def random_actor(vec: pufferlib.VecEnv, *, seed: int = 0) -> Act:
    """Return an ``Act`` that samples actions at random.

    Discrete actions that an action mask forbids are not sampled. Seeds the VecEnv's action space.
    """
    read_mask = (
        action_mask_reader(vec.observation_layout, vec.single_action_space) if _has_discrete_actions(vec) else None
    )
    space, single_space = vec.action_space, vec.single_action_space
    space.seed(seed)
    if read_mask is None:
        return lambda batch: space.sample()
    decisions, generator = Decisions(vec.single_action_space), torch.Generator().manual_seed(seed)

    def act(batch: pufferlib.Batch) -> Any:
        mask = read_mask(torch.as_tensor(batch.observations))
        outputs = torch.zeros(mask.shape), *[torch.zeros(len(mask), decisions.num_aims)] * 2
        discrete_actions, continuous_actions = decisions.distribution(
            outputs if decisions.num_aims else outputs[0], mask
        ).sample(generator)
        flat: Any = decisions.actions(discrete_actions, continuous_actions)
        sample: Any = space.sample()
        if not isinstance(single_space, spaces.Tuple):
            return flat
        parts = zip(single_space, flat, sample, strict=True)
        return tuple(free if isinstance(part, spaces.Box) else chosen for part, chosen, free in parts)

    return act


def _has_discrete_actions(vec: pufferlib.VecEnv) -> bool:
    space = vec.single_action_space
    return not all(isinstance(part, spaces.Box) for part in (space if isinstance(space, spaces.Tuple) else (space,)))
