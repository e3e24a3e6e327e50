"""RLlib's PPO over pufferlib's environments, in a process that Ray may have to itself: prints returns of an iteration.

python tests/helpers/rllib_learner.py single 0.9      ends once the mean return is that, or after 30 iterations
"""

from __future__ import annotations

import os
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_raylet_start_wait_time_s"] = "120"  # on a busy machine

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from pufferlib.adapters import rllib

NUM_ENVS = 16
MAX_ITERATIONS = 30


def main(kind: str, bar: float) -> None:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    config = PPOConfig().env_runners(num_env_runners=0).learners(num_learners=0).debugging(seed=1)
    config.training(lr=0.01, train_batch_size_per_learner=512, minibatch_size=128, num_epochs=4)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation="tanh"))
    if kind == "multi":
        config.multi_agent(policies={"agent_0", "agent_1"}, policy_mapping_fn=lambda agent, episode: agent)
        config = rllib.environment(config, "ocean/multiagent", num_envs=NUM_ENVS)
    else:
        config = rllib.environment(config, "ocean/bandit", num_envs=NUM_ENVS, backend="multiprocessing", num_workers=2)
    algorithm = config.build_algo()
    for _ in range(MAX_ITERATIONS):
        score = algorithm.train()["env_runners"]["episode_return_mean"]
        print(score, flush=True)
        if score >= bar:
            break
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
