"""Measure an iteration of cleanrl_demo.ppo_fused, for benchmarks.gpu_train: on a GPU, one CUDA graph of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

from benchmarks.gpu import Case, timed
from cleanrl_demo import ppo_cuda, ppo_fused
from pufferlib.training.cuda_graphs import GraphedIteration, on_own_stream
from pufferlib.training.session import environments, origin_of, torch_set_up

__all__ = ["fused_figure", "iteration"]

GRADIENT_GROUPS = 256  # so that a minibatch's gradients occupy all multiprocessors


def fused_figure(case: Case, device: str, rollout_length: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment steps per second of iterations with as many epochs and minibatches as ppo_cuda's.

    The keys are those of a case, and median, least, greatest and repeats. On the host, the host's learner learns.
    Raises KernelError for observations too large for the learner.
    """
    defaults = ppo_cuda.Config
    num_rows = rollout_length * case.num_envs * case.num_agents
    config = ppo_fused.Config(
        env=case.env,
        env_kwargs=case.env_kwargs,
        num_envs=case.num_envs,
        device=device,
        rollout_length=rollout_length,
        num_epochs=defaults.num_epochs,
        minibatch_size=max(2, num_rows // defaults.num_minibatches),
        gradient_groups=GRADIENT_GROUPS,
        runs=None,
    )
    with torch_set_up(config), environments(config, None) as vec, on_own_stream(config.device):
        learner = ppo_fused.Learner(vec, origin_of(config, None), config)
        iterate = iteration(vec, learner, config)

        def play() -> int:
            iterate()
            return rollout_length

        for _ in range(3 if learner.on_device is not None else 0):  # the third is captured
            play()
        rates = [rate * case.num_envs for rate in timed(play, dict(settings), torch.device(config.device))[0]]
    sizes = {"env": case.env, "num_envs": case.num_envs, "num_agents": case.num_agents}
    return {**sizes, "median": median(rates), "least": min(rates), "greatest": max(rates), "repeats": len(rates)}


def iteration(vec: Any, learner: ppo_fused.Learner, config: ppo_fused.Config) -> Callable[[], Any]:
    """Return a function that plays a rollout of newly reset environments, and learns from it."""
    vec.async_reset(seed=1)
    if learner.on_device is not None:
        rollout = ppo_fused.DeviceRollout(vec, learner, learner.on_device, config)
        rollout.begin()
        learner.on_device.learning_rate.fill_(config.learning_rate)
        return GraphedIteration(rollout.play_and_update, learner.generator, config)
    on_host = ppo_fused.Rollout(vec, learner, config)
    on_host.begin()

    def play_and_update() -> None:
        on_host.play()
        ppo_fused.update(learner, on_host, config.learning_rate)

    return play_and_update
