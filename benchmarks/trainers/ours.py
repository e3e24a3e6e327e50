"""Train with cleanrl_demo/ppo.py and the settings of all contestants. Options: those of pufferlib.make."""

from __future__ import annotations

from typing import Any

from trainers.contestant import ENVS, Outcome, print_result, read_task
from trainers.settings import Settings

import pufferlib
from cleanrl_demo import ppo
from pufferlib import _native
from pufferlib.training.plot import TAG, read


def config_of(settings: Settings, options: dict[str, Any]) -> ppo.Config:
    """Return the trainer's configuration."""
    return ppo.Config(
        env=settings.env,
        num_envs=settings.num_envs,
        seed=settings.seed,
        total_steps=settings.total_steps,
        rollout_length=settings.rollout_length,
        learning_rate=settings.learning_rate,
        num_epochs=settings.num_epochs,
        num_minibatches=settings.num_minibatches,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip=settings.clip,
        entropy_coefficient=settings.entropy_coefficient,
        value_coefficient=settings.value_coefficient,
        max_grad_norm=settings.max_grad_norm,
        policy_kwargs={"hidden_size": settings.hidden_size, "channels": settings.channels},
        torch_threads=settings.torch_threads,
        eval_episodes=settings.eval_episodes,
        **{"runs": None, **options},
    )


def main() -> None:
    settings, options, launched = read_task()
    result = ppo.train(config_of(settings, options), ENVS[settings.env])
    num_parameters = sum(part.numel() for part in result.policy.parameters())
    ended = result.began + result.seconds
    versions = {"pufferlib": f"{pufferlib.__version__}, {'compiled' if _native.available else 'portable'} path"}
    curve = []
    if result.run_folder is not None:
        steps, values = read(result.run_folder, TAG)
        curve = list(zip(steps.tolist(), values.tolist(), strict=True))
    outcome = Outcome(result.began, ended, result.num_steps, num_parameters, result.mean_return, versions, curve)
    print_result(outcome, settings, launched)


if __name__ == "__main__":
    main()
