"""Run one learner of each library that has an adapter, over the library's vectorizers and over ours.

    python -m benchmarks.adapter_learners sb3 ours-processes 16 2 20000      prints the result as JSON

Run it in the library's Python. Each learner is the library's smallest on-policy one, used as the library documents it,
on CartPole-v1. Steps per second count environment steps, over collection and updates, from the end of the first round,
which warms up.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import gymnasium
import torch

ROUND = 64  # steps of each environment between updates
PACKAGES = {"sb3": "stable-baselines3", "tianshou": "tianshou", "torchrl": "torchrl", "rllib": "ray", "skrl": "skrl"}


def make_env() -> Any:
    """Return one environment."""
    return gymnasium.make("CartPole-v1")


def sb3(kind: str, num_envs: int, num_workers: int) -> Iterator[None]:
    """Run PPO; yield after each round."""
    from stable_baselines3 import PPO
    from stable_baselines3.common import vec_env as theirs

    from pufferlib.adapters import sb3 as ours

    kinds: dict[str, Callable[..., Any]] = {
        "theirs": theirs.DummyVecEnv,
        "ours": ours.DummyVecEnv,
        "theirs-processes": functools.partial(theirs.SubprocVecEnv, start_method="fork"),
        "ours-processes": functools.partial(ours.SubprocVecEnv, num_workers=num_workers),
    }
    envs = kinds[kind]([make_env] * num_envs)
    agent = PPO("MlpPolicy", envs, n_steps=ROUND, batch_size=256, n_epochs=4, seed=1, device="cpu")
    while True:
        agent.learn(ROUND * num_envs, reset_num_timesteps=False)
        yield


def tianshou(kind: str, num_envs: int, num_workers: int) -> Iterator[None]:
    """Run REINFORCE; yield after each round."""
    import tianshou.env as theirs
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, Reinforce
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor
    from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode

    from pufferlib.adapters import tianshou as ours

    kinds: dict[str, Callable[..., Any]] = {
        "theirs": theirs.DummyVectorEnv,
        "ours": ours.DummyVectorEnv,
        "theirs-processes": theirs.SubprocVectorEnv,
        "ours-processes": functools.partial(ours.SubprocVectorEnv, num_workers=num_workers),
    }
    envs = kinds[kind]([make_env] * num_envs)
    net = DiscreteActor(
        preprocess_net=Net(state_shape=(4,), hidden_sizes=[64, 64]), action_shape=(2,), softmax_output=False
    )
    policy = DiscreteActorPolicy(actor=net, action_space=envs.action_space[0])
    algorithm = Reinforce(policy=policy, optim=AdamOptimizerFactory(lr=1e-3))
    collector = Collector(algorithm, envs, VectorReplayBuffer(ROUND * num_envs, num_envs))
    collector.reset()
    while True:
        with policy_within_training_step(policy):
            collector.collect(n_step=ROUND * num_envs)
            with torch_train_mode(policy):
                algorithm.update(buffer=collector.buffer, batch_size=256, repeat=4)
        collector.reset_buffer(keep_statistics=True)
        yield


def torchrl(kind: str, num_envs: int, num_workers: int) -> Iterator[None]:
    """Run PPO's clipped loss over a Collector; yield after each round."""
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, ParallelEnv, SerialEnv
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    from pufferlib.adapters import torchrl as ours

    make_theirs = functools.partial(GymEnv, "CartPole-v1", categorical_action_encoding=True)
    kinds: dict[str, Callable[[], Any]] = {
        "theirs": lambda: SerialEnv(num_envs, make_theirs),
        "ours": lambda: ours.make("CartPole-v1", num_envs=num_envs),
        "theirs-processes": lambda: ParallelEnv(num_envs, make_theirs, mp_start_method="fork"),
        "ours-processes": lambda: ours.make(
            "CartPole-v1", num_envs=num_envs, num_workers=num_workers, backend="multiprocessing"
        ),
    }
    layers = torch.nn.Sequential(
        torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)
    )
    actor = ProbabilisticActor(
        TensorDictModule(layers, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(
        torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)), in_keys=["observation"]
    )
    advantages, loss = GAE(gamma=0.99, lmbda=0.95, value_network=critic), ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
    for data in Collector(kinds[kind](), actor, frames_per_batch=ROUND * num_envs, total_frames=-1):
        advantages(data)
        rows = data.reshape(-1)
        for _ in range(4):
            for part in rows[torch.randperm(len(rows))].split(256):
                losses = loss(part)
                optimizer.zero_grad()
                sum(value for key, value in losses.items() if key.startswith("loss_")).backward()
                optimizer.step()
        yield


def rllib(kind: str, num_envs: int, num_workers: int) -> Iterator[None]:
    """Run PPO on the new API stack, with its env runner in this process; yield after each round."""
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0", RAY_raylet_start_wait_time_s="120"
    )  # Ray starts slowly on a busy machine
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    from pufferlib.adapters import rllib as ours

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    config = PPOConfig().env_runners(num_env_runners=0).learners(num_learners=0).debugging(seed=1)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
    config.training(train_batch_size_per_learner=ROUND * num_envs, minibatch_size=256, num_epochs=4, lr=1e-3)
    config.env_runners(rollout_fragment_length=ROUND)
    if kind.startswith("ours"):
        backend = {"backend": "multiprocessing", "num_workers": num_workers} if kind.endswith("processes") else {}
        config = ours.environment(config, "CartPole-v1", num_envs=num_envs, **backend)
    else:
        mode = "async" if kind.endswith("processes") else "sync"
        config.environment("CartPole-v1")
        config.env_runners(num_envs_per_env_runner=num_envs, gym_env_vectorize_mode=mode)
    algorithm = config.build_algo()
    while True:
        algorithm.train()
        yield


def skrl(kind: str, num_envs: int, num_workers: int) -> Iterator[None]:
    """Run PPO, stepped as by SequentialTrainer; yield after each round."""
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
    from skrl.agents.torch.ppo import PPO
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
    from skrl.trainers.torch import SequentialTrainerCfg

    from pufferlib.adapters import skrl as ours

    same = {"autoreset_mode": AutoresetMode.SAME_STEP}
    kinds: dict[str, Callable[[], Any]] = {
        "theirs": lambda: wrap_env(SyncVectorEnv([make_env] * num_envs, **same)),
        "ours": lambda: ours.make("CartPole-v1", num_envs=num_envs),
        "theirs-processes": lambda: wrap_env(AsyncVectorEnv([make_env] * num_envs, **same)),
        "ours-processes": lambda: ours.make(
            "CartPole-v1", num_envs=num_envs, num_workers=num_workers, backend="multiprocessing"
        ),
    }
    envs = kinds[kind]()

    def model(mixin: Any, num_outputs: int) -> Any:
        class Net(mixin, Model):  # type: ignore[misc]
            def __init__(self) -> None:
                spaces = {"observation_space": envs.observation_space, "action_space": envs.action_space}
                Model.__init__(self, **spaces, device="cpu")
                mixin.__init__(self)
                self.net = torch.nn.Sequential(
                    torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
                    torch.nn.Linear(64, num_outputs),
                )  # fmt: skip

            def compute(self, inputs: Any, role: str = "") -> Any:
                return self.net(inputs["observations"]), {}

        return Net()

    agent = PPO(
        models={"policy": model(CategoricalMixin, 2), "value": model(DeterministicMixin, 1)},
        memory=RandomMemory(memory_size=ROUND, num_envs=num_envs, device="cpu"),
        observation_space=envs.observation_space,
        action_space=envs.action_space,
        device="cpu",
        cfg={
            "rollouts": ROUND,
            "learning_epochs": 4,
            "mini_batches": max(1, ROUND * num_envs // 256),
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        },
    )
    agent.init(trainer_cfg=SequentialTrainerCfg(timesteps=10**9))
    agent.enable_training_mode(True)
    observations, _ = envs.reset()
    step = 0
    while True:
        for _ in range(ROUND):
            with torch.no_grad():
                actions, _ = agent.act(observations, None, timestep=step, timesteps=10**9)
                next_observations, rewards, terminated, truncated, infos = envs.step(actions)
                agent.record_transition(
                    observations=observations, states=None, actions=actions, rewards=rewards,
                    next_observations=next_observations, next_states=None, terminated=terminated, truncated=truncated,
                    infos=infos, timestep=step, timesteps=10**9,
                )  # fmt: skip
            agent.post_interaction(timestep=step, timesteps=10**9)
            observations, step = next_observations, step + 1
        yield


LEARNERS = {"sb3": sb3, "tianshou": tianshou, "torchrl": torchrl, "rllib": rllib, "skrl": skrl}


def main() -> None:
    library, kind = sys.argv[1:3]
    num_envs, num_workers, num_steps = map(int, sys.argv[3:])
    torch.set_num_threads(1)
    rounds = LEARNERS[library](kind, num_envs, num_workers)
    next(rounds)
    begun, begun_cpu, played = time.perf_counter(), time.process_time(), 0
    while played < num_steps:
        next(rounds)
        played += ROUND * num_envs
    rates = {
        "steps_per_s": played / (time.perf_counter() - begun),
        "steps_per_cpu_s": played / (time.process_time() - begun_cpu),  # of this process alone
    }
    versions = {name: version(name) for name in (PACKAGES[library], "torch", "gymnasium", "numpy")}
    print(json.dumps({**rates, "num_steps": played, "versions": versions}), flush=True)


if __name__ == "__main__":
    main()
