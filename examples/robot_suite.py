"""Evaluate a policy of action chunks on a suite of tasks, as `lerobot-eval` does.

python examples/robot_suite.py --n-episodes 50 --batch-size 16 --save suite.jsonl

The suite is a stand-in: an arm's tip in a square reaches for a target, with or without drift. Where LeRobot steps one
batch of environments for each task until the longest episode is over, a queue deals the episodes of all tasks to
whichever environment is free. After a kill, the same command with ``--save`` plays the episodes that are missing.
"""

from __future__ import annotations

import argparse
import json

import gymnasium
import numpy as np
from gymnasium import spaces

import pufferlib
from pufferlib.evaluation import ChunkedPolicy

CHUNK, STEPS_PLAYED, MAX_STEPS = 16, 8, 40
SUITE = {
    "reach": {"drift": 0.0, "radius": 0.1},
    "reach precisely": {"drift": 0.0, "radius": 0.02},
    "reach in the wind": {"drift": 0.05, "radius": 0.05},
}


class Reach(gymnasium.Env):
    """A task: bring the tip within ``radius`` of the target. ``drift`` pushes it at random, and stronger each step."""

    observation_space = spaces.Dict(
        agent_pos=spaces.Box(-1, 1, (2,), np.float32), target=spaces.Box(-1, 1, (2,), np.float32)
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, drift, radius):
        self.drift, self.radius = drift, radius

    def observe(self):
        return {"agent_pos": self.tip.astype(np.float32), "target": self.target.astype(np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tip, self.target = self.np_random.uniform(-1, 1, (2, 2))
        self.num_steps = 0
        return self.observe(), {}

    def step(self, action):
        self.num_steps += 1
        push = self.drift * self.num_steps / 10 * self.np_random.normal(size=2)
        self.tip = np.clip(self.tip + 0.1 * action + push, -1, 1)
        distance = float(np.linalg.norm(self.target - self.tip))
        is_success = distance < self.radius
        return self.observe(), -distance, is_success, self.num_steps == MAX_STEPS, {"is_success": is_success}


def predict(batch):
    """Return chunks (rows, CHUNK, 2): straight to the target, in steps that were planned at the chunk's beginning."""
    agent_pos, target = batch.observations[:, :2], batch.observations[:, 2:]
    way = (target - agent_pos)[:, None] / 0.1  # in steps of length 1
    done = np.arange(CHUNK)[None, :, None] / np.maximum(1, np.abs(way).max(-1, keepdims=True))
    return np.where(done < 1, np.clip(way, -1, 1), 0).astype(np.float32)


def summary(result):
    """Return what `lerobot-eval` reports: the share of successes and the mean sum of rewards, by task and overall."""
    successes, rewards = result.scores("is_success"), result.scores()
    per_task = {
        task: {
            "pc_success": 100 * float(successes[task].mean()),
            "avg_sum_reward": float(rewards[task].mean()),
            "n_episodes": len(rewards[task]),
        }
        for task in rewards
    }
    share, low, high = (100 * number for number in result.mean("is_success"))
    overall = {"pc_success": share, "interval": [low, high], "avg_sum_reward": result.mean().value}
    return {"per_task": per_task, "overall": {**overall, "eval_s": result.wall_s}}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n-episodes", type=int, default=50, help="of each task")
    parser.add_argument("--batch-size", type=int, default=16, help="environments at a time, of all tasks together")
    parser.add_argument("--start-seed", type=int, default=1000)
    parser.add_argument("--backend", default="pool")
    parser.add_argument("--save", help="a file from which a killed evaluation goes on")
    options = parser.parse_args(arguments)
    result = pufferlib.evaluate(
        Reach,
        ChunkedPolicy(predict, STEPS_PLAYED),
        tasks=SUITE,
        seeds=range(options.start_seed, options.start_seed + options.n_episodes),
        num_envs=options.batch_size,
        backend=options.backend,
        infos=("is_success",),
        save=options.save,
    )
    print(json.dumps(summary(result), indent=2))


if __name__ == "__main__":
    main()
