"""Who plays in an evaluation: a policy, or chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

import pufferlib
from pufferlib.distributions import Decisions
from pufferlib.models import action_mask_reader

Act = Callable[[pufferlib.Batch], Any]  # flat actions for a batch


def actor(vec: pufferlib.VecEnv, policy: nn.Module, *, greedy: bool = False, seed: int = 0) -> Act:
    """Return what plays a policy on a VecEnv: flat actions for a batch.

    greedy: the likeliest actions instead of drawn ones. seed: of what is drawn. A policy with a memory has a state for
    each agent, wherever its row comes, and begins anew where an episode does.
    """
    decisions = Decisions(vec.single_action_space)
    read_mask = action_mask_reader(vec.observation_layout, vec.single_action_space)
    generator = torch.Generator().manual_seed(seed)
    initial_state = getattr(policy, "initial_state", None)
    states = None if initial_state is None else initial_state(vec.num_envs * vec.agents_per_env)

    @torch.inference_mode()
    def act(batch: pufferlib.Batch) -> Any:
        observations, state = torch.as_tensor(batch.observations), None
        if states is not None:
            agents, begun = torch.tensor(np.asarray(batch.agent_ids)), ~torch.tensor(np.asarray(batch.masks))
            for kept, new in zip(states, initial_state(len(agents)), strict=True):
                kept[agents[begun]] = new[begun]
            state = tuple(kept[agents] for kept in states)
        mask = None if read_mask is None else read_mask(observations)
        outputs, _, state = policy(observations, state, mask)
        for kept, new in zip(states or (), state or (), strict=True):
            kept[agents] = new
        distribution = decisions.distribution(outputs, mask)
        return decisions.actions(*(distribution.mode() if greedy else distribution.sample(generator)))

    return act


def random_actor(vec: pufferlib.VecEnv, *, seed: int = 0) -> Act:
    """Return what plays at random: samples of the action space, of choices only those that a mask allows."""
    read_mask = action_mask_reader(vec.observation_layout, vec.single_action_space) if _has_choices(vec) else None
    space = vec.action_space
    space.seed(seed)
    if read_mask is None:
        return lambda batch: space.sample()
    decisions, generator = Decisions(vec.single_action_space), torch.Generator().manual_seed(seed)

    def act(batch: pufferlib.Batch) -> Any:
        mask = read_mask(torch.as_tensor(batch.observations))
        alike = torch.zeros(mask.shape), *[torch.zeros(len(mask), decisions.num_aims)] * 2
        choices, aims = decisions.distribution(alike if decisions.num_aims else alike[0], mask).sample(generator)
        flat, drawn = decisions.actions(choices, aims), space.sample()
        if not isinstance(flat, tuple):
            return flat
        parts = zip(vec.single_action_space, flat, drawn, strict=True)
        return tuple(free if isinstance(part, spaces.Box) else chosen for part, chosen, free in parts)

    return act


def _has_choices(vec: pufferlib.VecEnv) -> bool:
    space = vec.single_action_space
    return not all(isinstance(part, spaces.Box) for part in (space if isinstance(space, spaces.Tuple) else (space,)))
