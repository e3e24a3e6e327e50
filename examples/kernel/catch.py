"""Your own environment as a CUDA kernel: a schema, a reference in NumPy, and a .cuh file next to this one.

    python examples/kernel/catch.py                    # the kernel on the CPU
    python examples/kernel/catch.py --device cuda      # on a GPU
    puffer check catch:KERNEL --backend cuda --device host      # in this folder

A fruit falls from the top, and a basket below moves left, stays or moves right. A caught fruit pays 1, a missed one -1.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import pufferlib
from cuda_ext.schema import Field, KernelEnv, Parameter, Schema
from pufferlib.testing import check_kernel
from pufferlib.util.philox import below, episode_of, philox

START = 1  # the purpose of random numbers; the kernel has the same


class Catch(pufferlib.PufferEnv):
    """The reference: plain and readable; the kernel must equal it bit for bit.

    Its arithmetic on observations and rewards is float32. The names in the schema are its attributes: the parameters
    ``width`` and ``height`` and the fields ``fruit`` and ``basket``. All references have ``seed``, ``episode``, ``t``.
    """

    single_action_space = spaces.Discrete(3)  # left, stay, right

    def __init__(self, width: int = 7, height: int = 9) -> None:
        self.width, self.height = width, height
        self.single_observation_space = spaces.Box(0, 1, (3,), np.float32)
        self.seed: int | None = None
        self.episode = self.t = 0
        self.fruit = self.basket = 0

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Start episode 0 of a seed, or without a seed the next episode of the last one."""
        super().reset(seed=seed)
        self.seed, self.episode = episode_of(seed, self.seed, self.episode)
        self.t = 0
        words = philox(self.seed, self.episode, 0, 0, START)
        self.fruit, self.basket = below(words[0], self.width), below(words[1], self.width)
        self._observe()

    def step(self, actions: Any) -> None:
        self.t += 1
        self.basket = min(max(self.basket + int(actions[0]) - 1, 0), self.width - 1)
        if self.t >= self.height:
            self.terminations[0] = True
            self.rewards[0] = 1 if self.basket == self.fruit else -1
        self._observe()

    def _observe(self) -> None:
        numbers = np.float32([self.fruit, self.basket, self.t])
        self.observations[0] = numbers / np.float32([self.width, self.width, self.height])


KERNEL = KernelEnv(
    name="catch",
    source=str(Path(__file__).with_suffix(".cuh")),
    reference="catch:Catch",  # found from this folder
    schema=Schema(
        parameters=(Parameter("width", "int32"), Parameter("height", "int32")),
        fields=(Field("fruit", "int32", per="env"), Field("basket", "int32", per="env")),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="host", help='"host", or "cuda"')
    device = parser.parse_args().device

    report = check_kernel(KERNEL, device=device)
    print(report)
    assert report.passed

    with pufferlib.make(KERNEL, backend="cuda", device=device, num_envs=4096, seed=1) as vec:
        observations, _ = vec.reset()
        total_reward, num_fruits = 0.0, 0
        for _ in range(100):
            fruit, basket = observations[:, 0], observations[:, 1]
            actions = 1 + (fruit > basket).long() - (fruit < basket).long()  # go below it
            observations, rewards, terminations, _, _ = vec.step(actions)
            total_reward, num_fruits = total_reward + rewards.sum().item(), num_fruits + terminations.sum().item()
    print(f"{num_fruits:,} fruits fell, of which {(total_reward + num_fruits) / 2 / num_fruits:.0%} were caught")


if __name__ == "__main__":
    main()
