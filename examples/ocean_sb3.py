"""Stable-Baselines3's PPO under examination: over its own DummyVecEnv, with the settings of the demo trainer.

puffer ocean --trainer examples.ocean_sb3:train --backend serial          # pip install stable-baselines3
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

import pufferlib
from cleanrl_demo.suite.tasks import Cannot, Task
from pufferlib import registry


def train(task: Task) -> Callable[[Any], Any]:
    """Train on a task, and return what plays. Raises Cannot for what Stable-Baselines3 has no way to learn."""
    torch.set_num_threads(1)  # networks so small are slower with more
    envs = DummyVecEnv([lambda: single(task.env)] * task.num_envs)
    told = task.settings
    model = PPO(
        "MlpPolicy",
        envs,
        learning_rate=lambda left: left * told["learning_rate"],
        n_steps=told["rollout_length"],
        batch_size=told["rollout_length"] * task.num_envs // told["num_minibatches"],
        n_epochs=told["num_epochs"],
        gamma=told["gamma"],
        gae_lambda=told["gae_lambda"],
        clip_range=told["clip"],
        ent_coef=told["entropy_coefficient"],
        vf_coef=told["value_coefficient"] / 2,  # its value loss is not halved
        max_grad_norm=told["max_grad_norm"],
        seed=task.seed,
        device="cpu",
    )
    model.learn(task.total_steps)
    layout = envs.envs[0].get_wrapper_attr("observation_layout")
    envs.close()
    return lambda batch: model.predict(numbers(layout, batch.observations))[0]


def single(name: str) -> gymnasium.Env[Any, Any]:
    """Return an environment of one agent, with observations of one kind and actions that are one array."""
    env = pufferlib.wrap(registry.creator(name)())
    if not isinstance(env, gymnasium.Env):
        raise Cannot(f"Stable-Baselines3 learns one agent an environment, and {name} has several")
    if isinstance(env.action_space, gymnasium.spaces.Tuple):
        raise Cannot(f"Stable-Baselines3 has no actions of choices and real numbers together, as {name} has")
    return Numbers(env) if len(env.observation_layout.leaves) > 1 else env


class Numbers(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapped environment whose nested observations are all float32, rather than the bytes of a struct."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self.observation(env.reset()[0]).shape)

    def observation(self, observation: Any) -> Any:
        return numbers(self.env.observation_layout, observation[None])[0]


def numbers(layout: Any, rows: np.ndarray) -> np.ndarray:
    """Return rows of a Dict's observations as numbers, float32 (rows, numbers); those of a single leaf as they are."""
    parts = layout.unflatten(rows)
    if not isinstance(parts, dict):
        return rows
    return np.concatenate([part.reshape(len(rows), -1).astype(np.float32) for part in parts.values()], axis=1)
