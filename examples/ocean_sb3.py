"""Ocean examines Stable-Baselines3's PPO on its own DummyVecEnv, with the demo trainer's settings.

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
from ocean.suite.tasks import Cannot, Task
from pufferlib import registry


def train(task: Task) -> Callable[[Any], Any]:
    """Train on a task, and return a function that plays. Raises Cannot if Stable-Baselines3 does not support it."""
    torch.set_num_threads(1)  # such small networks are slower with more
    envs = DummyVecEnv([lambda: single(task.env)] * task.num_envs)
    settings = task.settings
    model = PPO(
        "MlpPolicy",
        envs,
        learning_rate=lambda remaining: remaining * settings["learning_rate"],
        n_steps=settings["rollout_length"],
        batch_size=settings["rollout_length"] * task.num_envs // settings["num_minibatches"],
        n_epochs=settings["num_epochs"],
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        clip_range=settings["clip"],
        ent_coef=settings["entropy_coefficient"],
        vf_coef=settings["value_coefficient"] / 2,  # its value loss is not halved
        max_grad_norm=settings["max_grad_norm"],
        seed=task.seed,
        device="cpu",
    )
    model.learn(task.total_steps)
    layout = envs.envs[0].get_wrapper_attr("observation_layout")
    envs.close()
    return lambda batch: model.predict(numbers(layout, batch.observations))[0]


def single(name: str) -> gymnasium.Env[Any, Any]:
    """Return an environment of one agent whose observations are one leaf and whose actions are one array."""
    env = pufferlib.wrap(registry.creator(name)())
    if not isinstance(env, gymnasium.Env):
        raise Cannot(f"Stable-Baselines3 trains one agent per environment, and {name} has several")
    if isinstance(env.action_space, gymnasium.spaces.Tuple):
        raise Cannot(f"Stable-Baselines3 supports no mixed discrete and continuous actions, as {name} has")
    return Numbers(env) if len(env.observation_layout.leaves) > 1 else env


class Numbers(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapper whose nested observations are float32 numbers instead of the bytes of a struct."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self.observation(env.reset()[0]).shape)

    def observation(self, observation: Any) -> Any:
        return numbers(self.env.observation_layout, observation[None])[0]


def numbers(layout: Any, rows: np.ndarray) -> np.ndarray:
    """Return rows of Dict observations as float32 (rows, numbers); observations of a single leaf unchanged."""
    parts = layout.unflatten(rows)
    if not isinstance(parts, dict):
        return rows
    return np.concatenate([part.reshape(len(rows), -1).astype(np.float32) for part in parts.values()], axis=1)
