"""Train with Stable-Baselines3's PPO and the settings of all contestants.

Options: vectorizer, dummy or subproc; curve, whether to record returns, and "seconds" for those over seconds.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import stable_baselines3
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv
from torch import Tensor, nn
from trainers.contestant import ENVS, Outcome, print_result, read_task
from trainers.network import convolutions, features
from trainers.settings import Settings

VECTORIZERS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}


class Numbers(BaseFeaturesExtractor):
    """A features extractor that scales observations as the other contestants do; SB3 scales images itself."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        super().__init__(observation_space, observation_space.shape[0])

    def forward(self, observations: Tensor) -> Tensor:
        return features(observations)


class Images(BaseFeaturesExtractor):
    """A features extractor with the convolutions of the other contestants."""

    def __init__(self, observation_space: gymnasium.spaces.Box, channels: tuple[int, int, int]) -> None:
        height, width = (((side - 8) // 4 + 1 - 4) // 2 + 1 - 2 for side in observation_space.shape[1:])
        super().__init__(observation_space, channels[-1] * height * width)
        self.convolutions = convolutions(observation_space.shape[0], channels)

    def forward(self, observations: Tensor) -> Tensor:
        return self.convolutions(observations)


class Curve(BaseCallback):
    """A callback that records the mean return of the last hundred episodes after each rollout.

    by_seconds: record it over seconds since the object was made, and not over steps.
    """

    def __init__(self, by_seconds: bool) -> None:
        super().__init__()
        self.by_seconds, self.made_s = by_seconds, time.perf_counter()
        self.points: list[tuple[float, float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        if returns:
            x = time.perf_counter() - self.made_s if self.by_seconds else self.num_timesteps
            self.points.append((x, sum(returns) / len(returns)))


def policy_kwargs(settings: Settings, images: bool) -> dict[str, Any]:
    """Return the arguments that give SB3's policy the network of the other contestants."""
    return {
        "net_arch": {"pi": [settings.hidden_size] * 2, "vf": [settings.hidden_size] * 2},
        "activation_fn": nn.Tanh,
        "features_extractor_class": Images if images else Numbers,
        "features_extractor_kwargs": {"channels": settings.channels} if images else {},
        "share_features_extractor": False,
    }


def main() -> None:
    settings, options, launched = read_task()
    vectorizer = VECTORIZERS[options["vectorizer"]]
    env = make_vec_env(ENVS[settings.env], n_envs=settings.num_envs, seed=settings.seed, vec_env_cls=vectorizer)
    images = len(env.observation_space.shape) == 3
    model = PPO(
        "CnnPolicy" if images else "MlpPolicy",
        env,
        learning_rate=lambda left: settings.learning_rate * left,
        n_steps=settings.rollout_length,
        batch_size=settings.minibatch_size,
        n_epochs=settings.num_epochs,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip,
        ent_coef=settings.entropy_coefficient,
        vf_coef=settings.value_coefficient / 2,  # its value loss is not halved
        max_grad_norm=settings.max_grad_norm,
        policy_kwargs=policy_kwargs(settings, images),
        seed=settings.seed,
        device="cpu",
    )
    curve = Curve(options.get("curve") == "seconds")
    began = time.time()
    model.learn(settings.total_steps, curve if options.get("curve") else None)
    ended = time.time()
    returns, _ = evaluate_policy(model, env, settings.eval_episodes, deterministic=False, return_episode_rewards=True)
    num_parameters = sum(part.numel() for part in model.policy.parameters())
    versions = {"stable-baselines3": stable_baselines3.__version__}
    outcome = Outcome(
        began, ended, model.num_timesteps, num_parameters, sum(returns) / len(returns), versions, curve.points
    )
    print_result(outcome, settings, launched)
    env.close()


if __name__ == "__main__":
    main()
