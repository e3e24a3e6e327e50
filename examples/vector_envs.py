"""Environments that are already vectorized: each copy becomes a row; everything else works as with other environments.

python examples/vector_envs.py --library ale          # pip install ale-py
python examples/vector_envs.py --library envpool      # pip install envpool
python examples/vector_envs.py --library gymnasium --backend multiprocessing --num-envs 2
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import pufferlib


def make_ale(copies: int, env_index: int) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv("breakout", copies)


def make_envpool(copies: int, env_index: int) -> Any:
    import envpool

    # EnvPool is seeded when it is created; with equal seeds all environments would play the same episodes.
    return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=copies, seed=env_index * copies)


def make_gymnasium(copies: int, env_index: int) -> Any:
    import gymnasium

    return gymnasium.make_vec("CartPole-v1", num_envs=copies, vectorization_mode="sync")


LIBRARIES = {"ale": make_ale, "envpool": make_envpool, "gymnasium": make_gymnasium}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--library", choices=LIBRARIES, default="ale")
    parser.add_argument("--copies", type=int, default=8, help="copies in each environment")
    parser.add_argument("--num-envs", type=int, default=1, help="environments, each with all of its copies")
    parser.add_argument("--backend", default="serial")
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()

    vec = pufferlib.make(
        LIBRARIES[arguments.library],
        backend=arguments.backend,
        num_envs=arguments.num_envs,
        env_kwargs={"copies": arguments.copies},
        seed=1,
    )
    with vec:
        vec.action_space.seed(1)
        vec.reset()
        transitions, returns = 0, []
        start_s = time.perf_counter()
        for _ in range(arguments.steps):
            infos = vec.step(vec.action_space.sample())[4]
            assert vec.batch is not None
            transitions += int(vec.batch.masks.sum())  # an episode's first row is no transition
            returns += [info["episode"]["r"] for info in infos if info.get("env")]
        seconds = time.perf_counter() - start_s
        print(f"{vec.num_envs} x {vec.agents_per_env} copies, rows of {vec.single_observation_space}")
        print(f"{transitions} transitions in {seconds:.1f} s, {len(returns)} episodes", end="")
        print(f" of {sum(returns) / len(returns):.1f} on average" if returns else "")


if __name__ == "__main__":
    main()
