"""Batches as torch tensors: a policy that uses no NumPy, on the CPU or on a GPU.

python examples/torch_policy.py --backend multiprocessing --num-envs 32
python examples/torch_policy.py --device cuda
"""

from __future__ import annotations

import argparse
import time

import torch

import pufferlib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--env", default="classic/cartpole", help="with vector observations and discrete actions")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="serial")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()

    vec = pufferlib.make(
        arguments.env,
        backend=arguments.backend,
        num_envs=arguments.num_envs,
        batch_size=arguments.batch_size,
        device=arguments.device,  # "cpu" is the same as as_torch=True: tensors over the environments' memory
        seed=1,
    )
    with vec:
        (size,), num_actions = vec.single_observation_space.shape, int(vec.single_action_space.n)
        policy = torch.nn.Sequential(torch.nn.Linear(size, 64), torch.nn.Tanh(), torch.nn.Linear(64, num_actions))
        policy = policy.to(arguments.device)
        returns, start_s = [], time.perf_counter()
        vec.async_reset()
        for _ in range(arguments.steps):
            batch = vec.recv()
            with torch.no_grad():
                logits = policy(batch.observations)  # (rows, num_actions)
            vec.send(torch.distributions.Categorical(logits=logits).sample())
            returns += [info["episode"]["r"] for info in batch.infos if info.get("env")]
        seconds = time.perf_counter() - start_s
        observations = batch.observations
        print(f"{type(observations).__name__} of {tuple(observations.shape)} on {observations.device}")
        print(f"{arguments.steps * vec.agents_per_batch / seconds:,.0f} rows a second, {len(returns)} episodes", end="")
        print(f" of {sum(returns) / len(returns):.1f} on average" if returns else "")


if __name__ == "__main__":
    main()
