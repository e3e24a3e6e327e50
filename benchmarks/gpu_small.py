"""Play a few steps of every kernel under a tool that watches the device: compute-sanitizer or ncu.

    compute-sanitizer --tool racecheck python -m benchmarks.gpu_small              few environments of every shape
    ncu -k regex:kernel_ python -m benchmarks.gpu_small --sizes full               three kernels at full size
    python -m benchmarks.gpu_small --device host                                   the same without a GPU

Each kernel plays single steps from logits, in both autoreset modes, and a rollout of random actions; with few agents
also one of a network, and on a GPU one of the network on tensor cores. Then ppo_fused trains for two iterations.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

import pufferlib
from benchmarks.gpu import Case, network, options_of
from benchmarks.gpu_fused import iteration
from cleanrl_demo import ppo_fused
from cuda_ext.sources import stems
from pufferlib.training.cuda_graphs import on_own_stream
from pufferlib.training.session import environments, origin_of, torch_set_up

__all__ = ["SIZES", "play"]

KERNELS = [importlib.import_module(f"cuda_ext.{stem}").KERNEL for stem in stems()]
FEW_AGENTS = 32  # the most with which a network plays


def tag(env: str, num_agents: int) -> tuple[str, dict[str, Any], int]:
    """Return seven small environments whose episodes end soon."""
    return env, {**Case(env, 7, num_agents).env_kwargs, "grid_length": 9, "episode_length": 3}, 7


SIZES: Mapping[str, list[tuple[str, dict[str, Any], int]]] = {
    "few": [
        *(tag("tag/grid", num_agents) for num_agents in (5, 33)),
        *(tag("tag/continuous", num_agents) for num_agents in (5, 40, 300)),
        *((kernel.name, {}, 7) for kernel in KERNELS if not kernel.name.startswith("tag/")),
    ],
    "full": [
        (case.env, case.env_kwargs, case.num_envs)
        for case in map(Case.of, ("tag/grid:2000x5", "tag/grid:2000x1000", "tag/continuous:2000x105"))
    ],
}


def play(env: str, env_kwargs: Mapping[str, Any], num_envs: int, device: str, mode: str, num_steps: int) -> None:
    """Play some steps of an environment; raise AssertionError if a reward on the device is not finite."""
    options: dict[str, Any] = dict(num_envs=num_envs, seed=3, env_kwargs=dict(env_kwargs), autoreset_mode=mode)
    with pufferlib.make(env, backend="cuda", device=device, **options) as vec:
        vec.reset()
        where: torch.device = vec.device  # type: ignore[attr-defined]
        space: Any = vec.single_action_space
        is_box = isinstance(space, gymnasium.spaces.Box)
        num_logits = int(np.prod(space.shape)) if is_box else sum(options_of(vec))
        logits = torch.randn(vec.agents_per_batch, num_logits, device=where)
        for _ in range(num_steps):
            if is_box:
                vec.send(logits)
            else:
                vec.send_logits(logits)  # type: ignore[attr-defined]
            vec.recv()
        vec.rollout(num_steps)  # type: ignore[attr-defined]
        assert vec.batch is not None
        assert bool(torch.as_tensor(vec.batch.rewards).isfinite().all()), (env, mode)
        if vec.agents_per_env <= FEW_AGENTS and not is_box:
            num_inputs = int(torch.as_tensor(vec.batch.observations)[0].numel())
            policy = network(num_inputs, logits.shape[1]).to(where)
            for precision in ("float32", "bfloat16")[: 1 + (where.type == "cuda")]:
                vec.rollout(num_steps, policy=policy, precision=precision)  # type: ignore[attr-defined]


def learn(env: str, env_kwargs: Mapping[str, Any], num_envs: int, device: str) -> None:
    """Train with ppo_fused for two iterations, without a graph; raise AssertionError if a weight is not finite."""
    config = ppo_fused.Config(
        env=env, env_kwargs=env_kwargs, num_envs=num_envs, device=device, rollout_length=9, minibatch_size=20,
        num_epochs=2, gradient_groups=3, graphs=False, runs=None,
    )  # fmt: skip
    with torch_set_up(config), environments(config, None) as vec, on_own_stream(config.device):
        learner = ppo_fused.Learner(vec, origin_of(config, None), config)
        iterate = iteration(vec, learner, config)
        for _ in range(2):
            iterate()
        learner.save()
        assert all(weight.isfinite().all() for weight in learner.actor.policy.parameters()), env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help='"cuda", "cuda:1" or "host"')
    parser.add_argument("--sizes", choices=SIZES, default="few")
    parser.add_argument("--num-steps", type=int, default=4)
    options = parser.parse_args()
    modes = ("next_step", "same_step") if options.sizes == "few" else ("next_step",)
    for env, env_kwargs, num_envs in SIZES[options.sizes]:
        for mode in modes:
            play(env, env_kwargs, num_envs, options.device, mode, options.num_steps)
            print(env, env_kwargs, num_envs, mode, flush=True)
    for env, env_kwargs, num_envs in (tag("tag/grid", 5), ("classic/cartpole", {}, 7)):
        learn(env, env_kwargs, num_envs, options.device)
        print(env, env_kwargs, num_envs, "ppo_fused", flush=True)


if __name__ == "__main__":
    main()
