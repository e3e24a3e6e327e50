"""Policies that ``evaluate`` can play: what one may be, and the batch with which it is called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pufferlib.errors import PlanError
from pufferlib.util.annotations import Array
from pufferlib.vectorization import VecEnv
from pufferlib.vectorization.core.tensors import imported_torch

__all__ = ["Act", "PolicyBatch", "loaded", "opened", "wrap_kwargs_of"]

TORCH_POLICIES = "pufferlib.models.seeded"  # by name, as it is in a higher layer; it imports torch
SB3_POLICIES = "pufferlib.adapters.sb3_policy"  # likewise


class PolicyBatch(NamedTuple):
    """The rows that ``evaluate`` passes to a policy: always those of ``policy_batch`` environments.

    An episode's rows are always at the same place, that of its seed modulo ``policy_batch``. Earlier rows fill the
    places at which no environment waits, with an env_id and agent_ids of their own, mask False, and 1 as the number of
    steps; the actions for them are ignored. A slot is an environment of the VecEnv: it plays one episode after another.
    The arrays are used again for the next call: do not write to them, and copy what you keep.
    """

    observations: Array  # (rows, *single_observation_space.shape)
    rewards: Array  # (rows,) float32: of the step that led to the observation
    masks: Array  # (rows,) bool: False where an episode begins, and for absent agents
    env_ids: Array  # (policy_batch,) int64: the slot
    agent_ids: Array  # (rows,) int64: env_id * agents_per_env + agent index
    seeds: Array  # (policy_batch,) int64: the seed of the slot's episode
    steps: Array  # (policy_batch,) int64: the number of steps that the slot's episode has had


Act = Callable[[PolicyBatch], Any]  # actions (rows, …), as ``VecEnv.send`` takes them


def wrap_kwargs_of(policy: Any) -> dict[str, Any]:
    """Return the arguments of ``wrap`` that a saved policy was trained with; {} for any other policy."""
    return dict(getattr(getattr(policy, "origin", None), "wrap_kwargs", {}))


def loaded(policy: Any, env: Any, *, trust: bool) -> Any:
    """Return the saved policy for the path of a file or folder; any other policy unchanged.

    env: the environment to play. Raises CheckpointError for a file that cannot be read or is not trusted, MissingExtra
    without torch.
    """
    if _is_random(policy) or not isinstance(policy, (str, os.PathLike)):
        return policy
    imported_torch()
    return importlib.import_module("pufferlib.models").read_policy(Path(policy), env=env, trust=trust)


@contextmanager
def opened(policy: Any, vec: VecEnv, *, policy_batch: int, greedy: bool, torch_threads: int) -> Iterator[Act]:
    """Yield the function that plays a policy in a VecEnv; restore what it has changed of the policy and of torch.

    policy: "random", a saved policy, an Actor, a torch module, a Stable-Baselines3 model, or a function of a
        PolicyBatch. policy_batch: the number of environments in a PolicyBatch. greedy: whether to take the likeliest
        actions instead of sampled ones. torch_threads: the number of threads that torch uses meanwhile.

    Raises PlanError for anything else, MissingExtra if torch is needed and not installed, and the errors of ``Actor``.
    """
    torch = sys.modules.get("torch")
    if _is_random(policy) or _is_actor(policy) or _is_module(policy, torch):
        imported_torch()
        maker = importlib.import_module(TORCH_POLICIES).seeded_policy
    elif hasattr(policy, "predict"):  # a model of SAC has an actor, too
        maker = importlib.import_module(SB3_POLICIES).sb3_policy
    elif hasattr(policy, "actor"):
        maker = importlib.import_module(TORCH_POLICIES).seeded_policy
    elif callable(policy):
        yield policy
        return
    else:
        raise PlanError(
            f"policy={policy!r:.80} is no policy; pass a function of a batch, the path of a policy.pt, a torch module, "
            'a model of Stable-Baselines3, or "random"'
        )
    with maker(policy, vec, num_slots=vec.num_envs + policy_batch, greedy=greedy, torch_threads=torch_threads) as act:
        yield act


def _is_random(policy: Any) -> bool:
    return isinstance(policy, str) and policy == "random"


def _is_actor(policy: Any) -> bool:
    inference = sys.modules.get("pufferlib.models.inference")
    return inference is not None and isinstance(policy, inference.Actor)


def _is_module(policy: Any, torch: Any) -> bool:
    return torch is not None and isinstance(policy, torch.nn.Module)
