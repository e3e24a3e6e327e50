"""What stepping costs in this process besides the environments: Stable-Baselines3's DummyVecEnv and ours.

    python -m benchmarks.adapter_overhead       seconds; needs pufferlib[sb3]

The environment does nothing. CPU time, which says the same on a busy machine, in microseconds a step of an environment:
medians, least and most. Writes benchmarks/results/adapter_overhead.json.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common import vec_env as theirs
from stable_baselines3.common.monitor import Monitor

from benchmarks.ratios import Spread
from benchmarks.revisions import version
from pufferlib.adapters import sb3 as ours
from pufferlib.bench import machine

NUM_ENVS, NUM_STEPS, REPEATS = 16, 1500, 7
LENGTHS = {"no episode ends": 10**9, "episodes of 20 steps": 20}
RESULT = Path(__file__).parent / "results" / "adapter_overhead.json"


class Nothing(gymnasium.Env[Any, Any]):
    """Does nothing until its episodes end."""

    observation_space = spaces.Box(-1, 1, (8,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length = length
        self.observation = np.zeros(8, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.tick = 0
        return self.observation, {}

    def step(self, action: Any) -> Any:
        self.tick += 1
        return self.observation, 1.0, self.tick == self.length, False, {}


def cost_us(envs: Any) -> float:
    """Return the CPU time of a step of one environment, in microseconds."""
    actions = np.zeros(NUM_ENVS, np.int64)
    begun = time.process_time()
    for _ in range(NUM_STEPS):
        envs.step(actions)
    return 1e6 * (time.process_time() - begun) / (NUM_STEPS * NUM_ENVS)


def main() -> None:
    kinds: dict[str, Callable[[int], Any]] = {
        "ours": lambda length: ours.DummyVecEnv([lambda: Nothing(length)] * NUM_ENVS),
        "theirs": lambda length: theirs.DummyVecEnv([lambda: Nothing(length)] * NUM_ENVS),
        "theirs, each in a Monitor": lambda length: theirs.DummyVecEnv([lambda: Monitor(Nothing(length))] * NUM_ENVS),
    }
    found: dict[str, dict[str, list[float]]] = {}
    for name, length in LENGTHS.items():
        envs = {kind: make(length) for kind, make in kinds.items()}
        for each in envs.values():
            each.reset()
            cost_us(each)
        found[name] = {kind: [] for kind in kinds}
        for _ in range(REPEATS):
            for kind, each in envs.items():
                found[name][kind].append(cost_us(each))
        for each in envs.values():
            each.close()
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    RESULT.write_text(
        json.dumps({"machine": machine(), "revision": version(), "date": date, "us_per_step": found}, indent=1) + "\n"
    )
    print(machine(), "", f"| | {' | '.join(kinds)} |", "|" + " --- |" * (1 + len(kinds)), sep="\n")
    for name, costs in found.items():
        cells = [f"{Spread.of(each):.2f}" for each in costs.values()]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
