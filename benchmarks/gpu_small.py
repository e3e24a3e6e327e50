"""Play a few steps of every kernel under a tool that watches the device: compute-sanitizer or ncu.

    compute-sanitizer --tool racecheck python -m benchmarks.gpu_small              few environments of every shape
    ncu -k regex:kernel_ python -m benchmarks.gpu_small --sizes full               three kernels at full size
    python -m benchmarks.gpu_small --device host                                   the same without a GPU

Each kernel plays single steps from logits, in both autoreset modes, and, with few agents, a rollout of a network.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import torch

import pufferlib
from benchmarks.gpu import Case, network, options_of

__all__ = ["SIZES", "play"]

FEW_AGENTS = 32  # the most with which a network plays


def tag(env: str, num_agents: int) -> tuple[str, dict[str, Any], int]:
    """Return seven small environments whose episodes end soon."""
    return env, {**Case(env, 7, num_agents).env_kwargs, "grid_length": 9, "episode_length": 3}, 7


SIZES: Mapping[str, list[tuple[str, dict[str, Any], int]]] = {
    "few": [
        *(tag("tag/grid", num_agents) for num_agents in (5, 33)),
        *(tag("tag/continuous", num_agents) for num_agents in (5, 40, 300)),
        ("ocean/squared", {}, 7),
        ("classic/cartpole", {}, 7),
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
        logits = torch.randn(vec.agents_per_batch, sum(options_of(vec)), device=where)
        for _ in range(num_steps):
            vec.send_logits(logits)  # type: ignore[attr-defined]
            vec.recv()
        assert vec.batch is not None
        assert bool(torch.as_tensor(vec.batch.rewards).isfinite().all()), (env, mode)
        if vec.agents_per_env <= FEW_AGENTS:
            num_inputs = int(torch.as_tensor(vec.batch.observations)[0].numel())
            vec.rollout(num_steps, policy=network(num_inputs, logits.shape[1]).to(where))  # type: ignore[attr-defined]


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


if __name__ == "__main__":
    main()
